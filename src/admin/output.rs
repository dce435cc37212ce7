// SPDX-License-Identifier: Apache-2.0
//! Output: the formats, and the functions that print answers to standard output. Pages are escaped,
//! then coloured for a person at a terminal; JSON and YAML are escaped by their writers.

use std::io::Write;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Context, Result};
use crate::messages;
use crate::named::named;
use crate::text::printable_page;

use super::exit::DONE;
use super::{paint, progress, yaml};

named! {
    /// The format of the output, with its name on the command line; the default has none.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(super) enum Format {
        /// A page for people.
        #[default]
        Page => "",
        /// A page with more columns.
        Wide => "wide",
        Json => "json",
        Yaml => "yaml",
        /// Only names, one per line, in the form that other verbs accept.
        Name => "name",
        /// A test report for CI systems.
        Junit => "junit",
    }
}

impl Format {
    /// Whether the format is a page for people.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Self::Page | Self::Wide)
    }
}

/// Returns the parser of `--output` that accepts the names of these formats.
fn one_of(formats: &'static [Format]) -> impl TypedValueParser<Value = Format> {
    let named = |word: String| formats.iter().find(|format| format.name() == word).copied();
    PossibleValuesParser::new(formats.iter().map(|format| format.name()))
        .map(move |word| named(word).unwrap_or_default())
}

/// The formats of a list.
#[derive(Debug, Args)]
pub(super) struct ListOutput {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT",
        value_parser = one_of(&[Format::Wide, Format::Json, Format::Yaml, Format::Name]))]
    pub(super) output: Option<Format>,
}

/// The formats of a page with a wide form.
#[derive(Debug, Args)]
pub(super) struct PageOutput {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT",
        value_parser = one_of(&[Format::Wide, Format::Json, Format::Yaml]))]
    pub(super) output: Option<Format>,
}

/// The formats of any other output.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct PlainOutput {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT",
        value_parser = one_of(&[Format::Json, Format::Yaml]))]
    pub(super) output: Option<Format>,
}

/// The formats of a comparison.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ReportOutput {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT",
        value_parser = one_of(&[Format::Json, Format::Yaml, Format::Junit]))]
    pub(super) output: Option<Format>,
}

/// An answer of a verb: the document for `--json`, and a page for people.
pub(super) trait Answer: Serialize {
    /// The function that colours the page.
    const PAINTER: fn(&str) -> String = paint::plain;

    fn page(&self, format: Format) -> String;
}

/// Prints an answer in a format.
pub(super) fn tell<A: Answer>(format: Format, answer: &A) -> Result<u8> {
    match format {
        Format::Json => print_json(&json!(answer)),
        Format::Yaml => print(yaml::yaml(&json!(answer)).as_bytes()),
        Format::Page | Format::Wide | Format::Name | Format::Junit => {
            print_page(&answer.page(format), A::PAINTER)
        }
    }
}

/// Prints a JSON document.
pub(super) fn print_json(document: &Value) -> Result<u8> {
    print(format!("{document}\n").as_bytes())
}

/// Prints a page, escaped, because names that tenants chose must not control the terminal.
pub(super) fn print_page(page: &str, painter: impl Fn(&str) -> String) -> Result<u8> {
    let end = if page.ends_with('\n') || page.is_empty() { "" } else { "\n" };
    let page = printable_page(&format!("{page}{end}"));
    print(paint::for_stdout(&page, painter).as_bytes())
}

/// Writes and flushes, because this program has its own entry point: only the standard library's flushes at
/// exit, and a document without a final line feed would stay in the buffer.
pub(super) fn print(bytes: &[u8]) -> Result<u8> {
    progress::clear();
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).doing(|| "writing the answer")?;
    Ok(DONE)
}

/// Prints a line, with its message code if it has one, to standard error.
pub(super) fn complain(line: &str) {
    progress::clear();
    let line = format!("nri-runc: {}\n", messages::with_code(line));
    let line = paint::for_stderr(&line, paint::complaint);
    let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
}
