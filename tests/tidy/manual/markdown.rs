// SPDX-License-Identifier: Apache-2.0
//! Converts Markdown to man pages. A table becomes a list: the first cell of a row is the term, the
//! cells between are "title: text", the last one is the explanation. It reads no file.

#![expect(clippy::wildcard_enum_match_arm, reason = "Markdown has more than these pages use")]

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

/// An argument of a request, in which roff interprets quotes, backslashes and hyphens.
pub(crate) fn argument(text: &str) -> String {
    text.replace('\\', "\\e").replace('"', "\\(dq").replace('-', "\\-")
}

/// Appends a page, without its title.
pub(crate) fn append(roff: &mut Roff, page: &str) {
    let is_section_new =
        roff.to_roff().lines().next_back().is_some_and(|line| line.starts_with(".S"));
    let mut writer = Writer {
        roff,
        words: Vec::new(),
        is_strong: false,
        is_emphasized: false,
        code: None,
        link: None,
        lists: Vec::new(),
        is_item_new: false,
        is_section_new,
        pending: None,
        table: None,
    };
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        writer.take(event);
    }
    assert!(writer.words.is_empty(), "words are left over: {:?}", writer.words);
}

#[derive(Debug, Default)]
struct Table {
    titles: Vec<String>,
    row: Vec<Vec<Inline>>,
}

struct Writer<'r> {
    roff: &'r mut Roff,
    /// The parts of the next line of text.
    words: Vec<Inline>,
    is_strong: bool,
    is_emphasized: bool,
    /// The text of a code block.
    code: Option<String>,
    /// The target of a link, and the number of words before it.
    link: Option<(String, usize)>,
    /// Open lists, with the next number of numbered ones.
    lists: Vec<Option<u64>>,
    /// Whether a paragraph belongs to the mark of a list item.
    is_item_new: bool,
    /// Whether a section has just begun: its first paragraph needs no request.
    is_section_new: bool,
    /// The request before the next line of text.
    pending: Option<&'static str>,
    table: Option<Table>,
}

fn plain(words: &[Inline]) -> String {
    let text = |word: &Inline| match word {
        Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text.clone(),
        _ => " ".to_owned(),
    };
    words.iter().map(text).collect()
}

impl Writer<'_> {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.push(&text),
            },
            Event::Code(text) => self.words.push(bold(text.into_string())),
            Event::SoftBreak => self.words.push(roman(" ")),
            Event::Html(comment) if comment.starts_with("<!--") => {}
            Event::HardBreak => self.words.push(roff::line_break()),
            other => panic!("a man page cannot show {other:?}"),
        }
    }

    fn push(&mut self, text: &str) {
        self.words.push(match (self.is_strong, self.is_emphasized) {
            (true, _) => bold(text),
            (false, true) => italic(text),
            (false, false) => roman(text),
        });
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Strong => self.is_strong = true,
            Tag::Emphasis => self.is_emphasized = true,
            Tag::Link { dest_url, .. } => {
                self.link = Some((dest_url.into_string(), self.words.len()));
            }
            Tag::CodeBlock(_) => self.code = Some(String::new()),
            Tag::List(first) => {
                self.flush();
                if !self.lists.is_empty() {
                    self.roff.control("RS", ["4"]);
                }
                self.lists.push(first);
            }
            Tag::Item => self.start_item(),
            Tag::Table(_) => self.table = Some(Table::default()),
            Tag::Paragraph => {
                let is_first = self.is_item_new || self.is_section_new;
                let request = if self.lists.is_empty() { "PP" } else { "IP" };
                self.pending = (!is_first).then_some(request);
            }
            _ => {}
        }
    }

    fn start_item(&mut self) {
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}.", *number - 1)
            }
            _ => "\\(bu".to_owned(),
        };
        self.roff.control("IP", [mark.as_str(), "4"]);
        (self.is_item_new, self.is_section_new) = (true, false);
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong => self.is_strong = false,
            TagEnd::Emphasis => self.is_emphasized = false,
            TagEnd::Link => self.end_link(),
            TagEnd::Heading(level) => self.heading(level),
            TagEnd::Paragraph => self.flush(),
            TagEnd::Item => {
                self.flush();
                self.is_item_new = false;
            }
            TagEnd::List(_) => {
                self.lists.pop();
                if !self.lists.is_empty() {
                    self.roff.control("RE", []);
                }
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.words);
                self.table.as_mut().unwrap().row.push(cell);
            }
            TagEnd::TableHead => {
                let table = self.table.as_mut().unwrap();
                table.titles = table.row.drain(..).map(|cell| plain(&cell)).collect();
            }
            TagEnd::TableRow => self.end_row(),
            TagEnd::Table => self.table = None,
            _ => {}
        }
    }

    fn flush(&mut self) {
        let words = std::mem::take(&mut self.words);
        let request = self.pending.take();
        if !words.is_empty() {
            if let Some(request) = request {
                self.roff.control(request, []);
            }
            self.roff.text(words);
            (self.is_item_new, self.is_section_new) = (false, false);
        }
    }

    fn heading(&mut self, level: HeadingLevel) {
        self.is_section_new = true;
        let text = plain(&std::mem::take(&mut self.words));
        match level {
            HeadingLevel::H1 => {}
            HeadingLevel::H2 => {
                self.roff.control("SH", [argument(&text.to_uppercase()).as_str()]);
            }
            _ => {
                self.roff.control("SS", [argument(&text).as_str()]);
            }
        }
    }

    /// Appends the link's target, a page's name or the address, if the text does not name it.
    fn end_link(&mut self) {
        let (target, before) = self.link.take().unwrap();
        let page = target.split('#').next().unwrap_or_default();
        let page = page.rsplit('/').next().unwrap_or_default();
        let manual = match page {
            "config.md" => Some("nri-runc-config(5)"),
            "plugins.md" => Some("nri-runc-plugins(7)"),
            _ => None,
        };
        let text = plain(&self.words[before..]);
        if target.starts_with('#') || text == page && manual.is_none() {
            return;
        }
        if let (Some(manual), true) = (manual, text == page) {
            self.words.truncate(before);
            self.words.push(bold(manual));
            return;
        }
        let place = if target.contains("://") { target.as_str() } else { manual.unwrap_or(page) };
        self.words.push(roman(format!(" ({place})")));
    }

    fn end_code(&mut self) {
        let code = self.code.take().unwrap();
        self.flush();
        self.is_section_new = false;
        self.roff.control("RS", ["4"]);
        self.roff.control("EX", []);
        for line in code.lines() {
            self.roff.text([roman(if line.is_empty() { " " } else { line })]);
        }
        self.roff.control("EE", []);
        self.roff.control("RE", []);
    }

    fn end_row(&mut self) {
        let table = self.table.as_mut().unwrap();
        let mut cells = table.row.drain(..).collect::<Vec<_>>();
        let text = if cells.len() > 1 { cells.pop().unwrap() } else { Vec::new() };
        self.is_section_new = false;
        self.roff.control("TP", []);
        let mut term = Vec::new();
        for word in cells.remove(0) {
            term.push(if let Inline::Roman(text) = word { bold(text) } else { word });
        }
        self.roff.text(term);
        let mut line = Vec::new();
        for (cell, title) in cells.into_iter().zip(&table.titles[1..]) {
            if cell.is_empty() {
                continue;
            }
            let comma = if line.is_empty() { "" } else { ", " };
            line.push(roman(format!("{comma}{title}: ")));
            line.extend(cell);
        }
        if !line.is_empty() {
            self.roff.text(line);
            self.roff.control("br", []);
        }
        self.roff.text(if text.is_empty() { vec![roman("\u{2013}")] } else { text });
    }
}
