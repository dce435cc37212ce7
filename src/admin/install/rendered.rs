// SPDX-License-Identifier: Apache-2.0
//! containerd of a distribution that regenerates its file at each start. An addition goes to the
//! directory that the file imports, else to the distribution's template, but never to the file
//! itself. This module does no I/O.
//!
//! A template is Go's `text/template`, which only the distribution can parse. So `install` only
//! appends to it, between two comments that survive the rendering and mark the addition in the
//! template and in the rendered file. Only new tables are added, because containerd exits on a
//! duplicate table: the rendered file with the addition must be valid TOML.

use toml_edit::{Document, TableLike};

use super::containerd_files::{Files, OLD_CRI, drop_in_path, last_setting, parse_in_order};
use super::containerd_nri::{has_nri_table, is_nri_off, nri_table};
use super::cri_entry::{Addition, DROP_IN};
use super::distribution::{self, Distribution};
use super::edit::{self, text_at};
use super::plan::{Plan, Registration, Texts};
use crate::error::{Error, Result};

const BEGIN: &str =
    "# nri-runc: added by `nri-runc nri install`, removed by `nri-runc nri uninstall`\n";
const END: &str = "# nri-runc: end\n";
/// The content of a k3s or RKE2 template that only includes the built-in one.
const BASE: &str = "{{ template \"base\" . }}\n";

/// Plans the changes for the containerd of this distribution, whose file is `main`.
pub(super) fn plan(
    main: &str,
    distribution: Distribution,
    registration: &Registration,
    texts: &Texts,
) -> Result<Plan> {
    // An addition to the template stays there even if a newer version imports a directory.
    let templates = [2, 3].into_iter().filter_map(|version| distribution::template(main, version));
    let mut templates = templates.filter_map(|path| texts.get(&path));
    let is_added = templates.any(|text| text.contains(BEGIN));
    let own = drop_in_path(main, DROP_IN, texts).filter(|_| !is_added);
    // Leaves out an earlier addition, which is not part of the files to extend.
    let mut others = texts.clone();
    if let Some(own) = &own {
        others.remove(own);
    }
    if let Some(text) = others.get_mut(main) {
        *text = without_addition(text);
    }
    let files = parse_in_order(main, &others)?;
    let mut plan = Plan::default();
    let addition = Addition::of(registration, main, &files, &mut plan)?;
    match own {
        Some(path) => addition.as_file(&path, &files, texts, &mut plan)?,
        None => addition.as_template(main, distribution, &files, texts, &mut plan)?,
    }
    Ok(plan)
}

impl Addition<'_> {
    /// Plans the addition at the end of the template from which k3s or RKE2 renders the file.
    fn as_template(
        &self,
        main: &str,
        distribution: Distribution,
        files: &Files,
        texts: &Texts,
        plan: &mut Plan,
    ) -> Result<()> {
        let (title, version) = (distribution.title(), self.version);
        let Some(path) = distribution::template(main, version) else {
            return Err(Error::new(format!("{main} cannot be changed, and imports no folder"))
                .hint(format!("install for a file of your own: --engine-config; {title} reads it if its containerd is configured to")));
        };
        let tables = self.tables(distribution, files)?;
        if tables.is_empty() {
            return Ok(());
        }
        let rendered = texts.get(main).map_or("", String::as_str);
        let probe = format!("{}\n{tables}", without_addition(rendered));
        if Document::parse(probe.as_str()).is_err() {
            return Err(Error::new(format!(
                "{main} already has a table that {path} would have to add"
            ))
            .hint("remove that table from the template, or register under another --name"));
        }
        if tables.contains("{{") {
            return Err(Error::new(format!(
                "{path}: {title} reads two opening braces as a template action"
            ))
            .hint("choose a path without them: --binary"));
        }
        let now = texts.get(&path).map(|text| without_addition(text));
        let old = match now {
            Some(text) if !text.trim().is_empty() => text,
            Some(_) | None => {
                require_base(distribution, version, files, &path)?;
                BASE.to_owned()
            }
        };
        let line_feed = if old.ends_with('\n') { "" } else { "\n" };
        plan.files.insert(path, format!("{old}{line_feed}\n{BEGIN}{tables}{END}"));
        Ok(())
    }

    fn tables(&self, distribution: Distribution, files: &Files) -> Result<String> {
        let title = distribution.title();
        let mut tables = self.entry.clone();
        if self.sets_default {
            let has_table = last_setting(files, &self.cri)
                .and_then(|(_, item)| item.as_table())
                .is_some_and(|table| !table.is_implicit());
            if has_table {
                let name = &self.registration.name;
                return Err(Error::new(format!(
                    "{title} writes the table that names the default runtime itself"
                ))
                .hint(format!(
                    "install without --default, and start {title} with --default-runtime {name}"
                )));
            }
            let (header, name) = (edit::header(&self.cri), edit::string(&self.registration.name));
            tables.push_str(&format!("\n{header}\n  default_runtime_name = {name}\n"));
        }
        if self.takes_over() && is_nri_off(files) != Some(true) {
            if has_nri_table(files) {
                return Err(Error::new(format!(
                    "the configuration of {title} has a table for NRI without disable = true"
                ))
                .hint("set `disable = true` in its template, or install with --beside"));
            }
            tables.push_str(&nri_table());
        }
        Ok(tables)
    }
}

/// Returns a template without `install`'s addition; `None` if it has none.
pub(super) fn template_alone(text: &str) -> Option<String> {
    text.contains(BEGIN).then(|| without_addition(text))
}

/// Whether a template only includes the built-in one.
pub(super) fn is_base(text: &str) -> bool {
    text.trim() == BASE.trim()
}

/// Returns a text without `install`'s addition; a line feed that was added before it may stay.
fn without_addition(text: &str) -> String {
    let Some((before, rest)) = text.split_once(BEGIN) else { return text.to_owned() };
    let Some((_, after)) = rest.split_once(END) else { return text.to_owned() };
    // One line feed separates the addition from the text above it.
    format!("{}{after}", before.strip_suffix('\n').unwrap_or(before))
}

/// Refuses to write a template that includes the built-in one if this k3s or RKE2 may be too old for such
/// templates: it would not start again. With containerd 1.x, a `config_path` of the registries proves a
/// version that is new enough, because that key came a few months after such templates.
fn require_base(distribution: Distribution, version: i64, files: &Files, path: &str) -> Result<()> {
    let registries = ["plugins", OLD_CRI, "registry"];
    let has_folder = last_setting(files, &registries)
        .and_then(|(_, item)| item.as_table_like())
        .is_some_and(|table: &dyn TableLike| text_at(table, &["config_path"]).is_some());
    if version >= 3 || has_folder {
        return Ok(());
    }
    let title = distribution.title();
    Err(Error::new(format!(
        "this {title} is too old for a template that extends its default: {path} would replace the default"
    ))
    .hint(format!("update {title} to a version of 2024 or later, or write this template yourself")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_recovered_only_from_a_text_with_our_addition() {
        let text = format!("{BASE}\n{BEGIN}[x]\n{END}");
        assert_eq!(template_alone(&text).as_deref(), Some(BASE));
        assert_eq!(template_alone("version = 3\n[x]\n"), None);
    }

    #[test]
    fn an_addition_is_removed_and_its_surroundings_stay() {
        let text = format!("a\n\n{BEGIN}[x]\n{END}b\n");
        assert_eq!(without_addition(&text), "a\nb\n");
        for text in ["", "a\n", "# nri-runc: end\n", BEGIN, "a\n\nb"] {
            assert_eq!(without_addition(text), text);
        }
    }
}
