// SPDX-License-Identifier: Apache-2.0
//! The documentation compared with the program: links, pictures, commands, configuration and error
//! messages. It reads pages and sources, and runs nothing; `make docs-test` runs the quick starts.

mod addresses;
mod commands;
mod errors;
mod limits;
mod links;
mod matrix;
mod pictures;
mod sentences;
mod vocabulary;

use super::root;

/// A page, by its path in the repository.
struct Page {
    name: String,
    text: String,
}

impl Page {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        Self { name: name.to_owned(), text }
    }

    /// Fenced blocks: their language, and their lines.
    fn blocks(&self) -> Vec<(&str, Vec<&str>)> {
        let mut blocks = Vec::new();
        let mut open: Option<(&str, Vec<&str>)> = None;
        for line in self.text.lines() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => open = Some((language.trim(), Vec::new())),
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some((_, lines))) => lines.push(line),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block has no end", self.name);
        blocks
    }

    /// The text without its fenced blocks.
    fn prose(&self) -> String {
        let parts = self.text.split("\n```").enumerate();
        parts.filter(|(number, _)| number % 2 == 0).map(|(_, part)| part).collect()
    }
}

/// All pages of the documentation.
fn pages() -> Vec<Page> {
    let mut names: Vec<String> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(ToOwned::to_owned)
        .into();
    let mut dirs = vec!["docs".to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).unwrap().flatten() {
            let name = format!("{dir}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                dirs.push(name);
            } else if name.ends_with(".md") {
                names.push(name);
            }
        }
    }
    names.sort();
    assert!(names.len() > 30, "{names:?}");
    names.iter().map(|name| Page::read(name)).collect()
}
