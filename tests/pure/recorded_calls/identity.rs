// SPDX-License-Identifier: Apache-2.0
//! `docs/identity.md`: its tables equal those of the program.

use nri_runc::testing::engine::EngineKind;
use nri_runc::testing::engine::identity::{Field, ranks};
use nri_runc::testing::named::Named;

use super::is_kept;

/// One table for each engine: a field, and its sources in the order of trust, each with its writer.
fn tables() -> String {
    let of = |kind: &EngineKind| {
        let rows = Field::ALL.iter().map(|field| {
            let sources = ranks(*kind, *field).iter();
            let cells: Vec<String> = sources
                .map(|(source, writer)| format!("{} ({})", source.name(), writer.name()))
                .collect();
            format!("| {} | {} |", field.name(), cells.join("; "))
        });
        let head = "| field | sources, most trusted first (who writes them) |\n|---|---|";
        let rows: Vec<String> = rows.collect();
        format!("### {}\n\n{head}\n{}", kind.name(), rows.join("\n"))
    };
    EngineKind::ALL.iter().map(of).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn the_page_ranks_the_sources_of_each_field_as_the_code_does() {
    is_kept("docs/identity.md", "tables of tests/pure/recorded_calls/mod.rs", &tables());
}
