// SPDX-License-Identifier: Apache-2.0
//! Links between pages, and the table of contents of the book.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::super::root;
use super::{Page, pages};

/// The path to which a link of a page leads, relative to the repository.
fn target(page: &str, link: &str) -> PathBuf {
    let mut path = Path::new(page).parent().unwrap().to_path_buf();
    for part in Path::new(link).components() {
        if part == Component::ParentDir {
            assert!(path.pop(), "{page}: {link} leads out of the repository");
        } else {
            path.push(part);
        }
    }
    path
}

/// The links of a page's prose, without those to other hosts.
fn links(page: &Page) -> Vec<String> {
    let prose = page.prose();
    let found = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let found = found.map(|(link, _)| link.to_owned());
    found.filter(|link| !link.contains("://")).collect()
}

/// The name by which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn each_link_of_the_documentation_leads_somewhere() {
    let mut count = 0;
    for page in pages() {
        for link in links(&page) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => PathBuf::from(&page.name),
                path => target(&page.name, path),
            };
            assert!(root().join(&target).exists(), "{}: {link} leads nowhere", page.name);
            count += 1;
            if heading.is_empty() {
                continue;
            }
            let other = Page::read(&target.display().to_string());
            let prose = other.prose();
            let mut headings = prose.lines().filter(|line| line.starts_with('#')).map(anchor);
            assert!(headings.any(|other| other == heading), "{}: no heading {link}", page.name);
        }
    }
    assert!(count > 200, "{count} links were found");
}

/// mdBook needs minutes to build, so this finds without it what fails there: the book has the files of
/// `docs` and those outside that its pages link to (`scripts/docs.sh`), and no other file or folder.
#[test]
fn each_link_of_the_book_stays_in_the_book() {
    let is_ours = |path: &Path| path.starts_with("docs");
    let leads_to = |page: &Page, link: &String| {
        let path = link.split('#').next().unwrap();
        (!path.is_empty()).then(|| target(&page.name, path))
    };
    let targets = |page: &Page| -> Vec<PathBuf> {
        links(page).iter().filter_map(|link| leads_to(page, link)).collect()
    };
    let all = pages();
    let own: Vec<&Page> = all.iter().filter(|page| is_ours(Path::new(&page.name))).collect();
    let copied: BTreeSet<PathBuf> =
        own.iter().flat_map(|page| targets(page)).filter(|path| !is_ours(path)).collect();
    assert!(copied.len() >= 5, "{copied:?}");
    for path in &copied {
        assert!(root().join(path).is_file(), "{} is not a file", path.display());
        if path.extension().is_some_and(|end| end == "md") {
            let page = Page::read(path.to_str().unwrap());
            for target in targets(&page) {
                let is_in_it = is_ours(&target) || copied.contains(&target);
                assert!(is_in_it, "{}: the book lacks {}", page.name, target.display());
            }
        }
    }
}

/// The Markdown files below a folder.
fn markdown_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md"));
    files.chain(dirs.iter().flat_map(|dir| markdown_below(dir))).collect()
}

/// The input of mdBook: `scripts/docs.sh` moves pages and rewrites their links.
#[test]
fn each_link_of_the_copied_book_leads_into_the_book() {
    let folder = tempfile::tempdir().unwrap();
    let mut script = std::process::Command::new("sh");
    script.arg(root().join("scripts/docs.sh")).arg("pages").arg(folder.path());
    let output = script.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let place = |page: &Path, link: &str| page.parent().unwrap().join(link).canonicalize();
    let contents = folder.path().join("SUMMARY.md");
    let summary =
        Page { name: "SUMMARY.md".to_owned(), text: std::fs::read_to_string(&contents).unwrap() };
    // mdBook makes pages only of these.
    let listed: BTreeSet<PathBuf> =
        links(&summary).iter().filter_map(|link| place(&contents, link).ok()).collect();
    let mut count = 0;
    for path in markdown_below(folder.path()) {
        let page = Page {
            name: path.strip_prefix(folder.path()).unwrap().display().to_string(),
            text: std::fs::read_to_string(&path).unwrap(),
        };
        for link in links(&page) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() {
                continue;
            }
            let target = place(&path, file).ok();
            let is_page = file.ends_with(".md");
            let is_in_it = target.is_some_and(|target| !is_page || listed.contains(&target));
            assert!(is_in_it, "{}: {link} leads out of the book", page.name);
            count += 1;
        }
    }
    assert!(count > 300, "{count} links were found");
}

#[test]
fn no_link_text_is_the_name_of_a_page() {
    for page in pages() {
        let prose = page.prose();
        for (before, _) in prose.match_indices("](").map(|(at, _)| prose.split_at(at)) {
            let text = before.rsplit('[').next().unwrap_or_default();
            assert!(!text.ends_with(".md"), "{}: the link {text} is a file's name", page.name);
        }
    }
}

#[test]
fn each_page_is_in_the_book_once() {
    let contents = Page::read("docs/SUMMARY.md");
    let listed = links(&contents);
    let once: BTreeSet<String> = listed.iter().map(|link| format!("docs/{link}")).collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    for page in pages() {
        let is_ours = page.name.starts_with("docs/") && page.name != contents.name;
        assert!(!is_ours || once.contains(&page.name), "docs/SUMMARY.md lacks {}", page.name);
    }
}

#[test]
fn each_page_has_one_title() {
    // The table of contents has a title for each of its parts.
    for page in pages().iter().filter(|page| page.name != "docs/SUMMARY.md") {
        let prose = page.prose();
        let titles = prose.lines().filter(|line| line.starts_with("# ")).count();
        assert_eq!(titles, 1, "{}", page.name);
    }
}

#[test]
fn each_schema_of_an_output_is_on_a_page() {
    let pages = pages();
    let schemas = std::fs::read_dir(root().join("docs/schema")).unwrap().flatten();
    let names = schemas.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names: BTreeSet<String> = names.collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let link = format!("](schema/{name})");
        assert!(pages.iter().any(|page| page.text.contains(&link)), "no page links {name}");
    }
}
