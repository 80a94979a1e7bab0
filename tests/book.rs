//! The documents: links, citations and paths that they and the sources give lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below a folder whose names end so, in order.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("node_modules") {
                folders.push(path);
            } else if path.to_str().is_some_and(|p| p.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The documents that a person reads, each with its text outside of blocks of code.
fn documents() -> BTreeMap<PathBuf, String> {
    let own = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name));
    let pages = files(&root().join("docs/src"), ".md");
    own.into_iter().chain(pages).map(|path| (path.clone(), prose(&read(&path)))).collect()
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence && !line.starts_with("    ") {
            kept += line;
        }
        kept.push('\n');
    }
    kept
}

/// What stands between single backticks.
fn codes(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
}

/// The anchor that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

fn headings(prose: &str) -> Vec<&str> {
    prose.lines().filter(|l| l.starts_with('#')).map(|l| l.trim_start_matches('#').trim()).collect()
}

/// Targets of links and pictures.
fn links(prose: &str) -> Vec<String> {
    let ends = prose.match_indices("](").map(|(at, _)| &prose[at + 2..]);
    ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let documents = documents();
    let mut wrong = Vec::new();
    for (path, text) in &documents {
        for link in links(text).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').map_or((link.as_str(), None), |(f, h)| (f, Some(h)));
            let target = if file.is_empty() { path.clone() } else { path.parent().expect("a folder").join(file) };
            let there = target.canonicalize().ok();
            let found = there.as_ref().is_some_and(|there| match heading {
                None => true,
                Some(heading) => headings(&prose(&read(there))).iter().any(|h| anchor(h) == heading),
            });
            // Where the book is built, nothing beside it is there.
            let in_book = |path: &Path| path.starts_with(root().join("docs/src"));
            if !found || (in_book(path) && !there.as_deref().is_some_and(in_book)) {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_summary_once() {
    let book = root().join("docs/src");
    let listed: Vec<String> = links(&read(&book.join("SUMMARY.md")));
    let set: BTreeSet<_> = listed.iter().map(|link| book.join(link)).collect();
    assert_eq!(set.len(), listed.len(), "a page is listed twice");
    let pages: BTreeSet<_> = files(&book, ".md").into_iter().filter(|p| !p.ends_with("SUMMARY.md")).collect();
    assert_eq!(set, pages);
}

#[test]
fn the_readme_is_short() {
    assert!(read(&root().join("README.md")).lines().count() <= 200);
}

#[test]
fn examples_use_the_default_address() {
    const LOOPBACK: &str = "127.0.0.1:";
    // The reference has addresses of other programs too.
    let tried = |path: &PathBuf| !path.starts_with(root().join("docs/src/reference"));
    for path in documents().into_keys().filter(tried) {
        let text = read(&path);
        for (at, _) in text.match_indices(LOOPBACK) {
            let port: String = text[at + LOOPBACK.len()..].chars().take_while(char::is_ascii_digit).collect();
            assert!(["4938", "0"].contains(&port.as_str()), "{}: port {port}", path.display());
        }
    }
}

#[test]
fn paths_in_documents_are_there() {
    const FOLDERS: [&str; 10] =
        ["crates/", "src/", "tests/", "benches/", "config/", "dashboards/", "docs/", "clients/", "deploy/", ".ci/"];
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for code in codes(&text) {
            // The rest of a code may be a place within the file, or an argument.
            let named = code.split([' ', ':']).find(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)));
            let Some(named) = named.filter(|named| !named.contains(['<', '{', '*', '…'])) else { continue };
            if !root().join(named).exists() {
                wrong.push(format!("{}: {named}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "paths that are not there:\n{}", wrong.join("\n"));
}

/// A page that a source cites, with what it says of the place: `§2`, `"Hull"`, `3c`.
#[derive(Debug, PartialEq)]
struct Citation {
    page: String,
    places: Vec<String>,
}

/// The citations of a source's comments.
fn citations(source: &str) -> Vec<Citation> {
    // A comment that goes on in the next line is one text.
    let comment =
        |line: &'_ str| line.trim_start().strip_prefix("//").map(|c| c.trim_start_matches(['/', '!', ' ']).to_owned());
    let text: Vec<String> = source.lines().map(|line| comment(line).unwrap_or_else(|| "|".to_owned())).collect();
    let text = text.join(" ");
    let mut found = Vec::new();
    for (at, _) in text.match_indices(".md") {
        let named = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        let begin = text[..at].rfind(|c: char| !named(c)).map_or(0, |i| i + 1);
        let (page, rest) = (format!("{}.md", &text[begin..at]), &text[at + 3..]);
        if begin == at || rest.starts_with(|c: char| c.is_alphanumeric()) {
            continue;
        }
        let mut places = Vec::new();
        let mut rest = rest.trim_start_matches('`');
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            let length = match rest.chars().next() {
                Some('§') => rest.find(|c: char| !(c == '§' || c == '.' || c.is_ascii_digit())).unwrap_or(rest.len()),
                Some('"') => rest[1..].find('"').map_or(0, |end| end + 2),
                Some('1'..='9') => rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len()),
                _ => 0,
            };
            if length == 0 {
                break;
            }
            places.push(rest[..length].trim_end_matches('.').to_owned());
            rest = &rest[length..];
        }
        found.push(Citation { page, places });
    }
    found
}

/// Whether a page has a place: a numbered heading, or a name that stands in bold type.
fn has(page: &str, place: &str) -> bool {
    match place.strip_prefix('§') {
        Some(number) => headings(page)
            .iter()
            .any(|h| h.strip_prefix(number).is_some_and(|rest| rest.starts_with(". ") || rest.starts_with(' '))),
        None => page.contains(&format!("**{}", place.trim_matches('"'))),
    }
}

#[test]
fn what_sources_cite_is_in_the_book() {
    let pages = files(&root().join("docs/src"), ".md");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for source in ["crates", "src", "tests", "benches"].iter().flat_map(|folder| files(&root().join(folder), ".rs")) {
        // This file has examples.
        for Citation { page, places } in
            citations(&read(&source)).into_iter().filter(|_| !source.ends_with("tests/book.rs"))
        {
            seen += 1;
            let beside = [source.parent().expect("a folder").join(&page), root().join(&page)];
            let found = match beside.into_iter().find(|path| path.is_file()) {
                Some(path) => Some(path),
                None => pages.iter().find(|path| path.ends_with(&page)).cloned(),
            };
            match found.map(|path| read(&path)) {
                None => wrong.push(format!("{}: {page} is nowhere", source.display())),
                Some(text) => wrong.extend(
                    places
                        .iter()
                        .filter(|place| !has(&text, place))
                        .map(|p| format!("{}: {page} has no {p}", source.display())),
                ),
            }
        }
    }
    assert!(seen > 40, "only {seen} citations were found");
    assert!(wrong.is_empty(), "citations that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn citations_are_read_with_their_places() {
    let cited = |text: &str| citations(text).into_iter().map(|c| (c.page, c.places.join(" "))).collect::<Vec<_>>();
    let of = |page: &str, places: &str| (page.to_owned(), places.to_owned());
    assert_eq!(cited("//! The optimum (`planning.md` §2, \"Dual form\")."), [of("planning.md", "§2 \"Dual form\"")]);
    assert_eq!(cited("/// shape (`carbon-apis.md`\n    /// §5.1); made up"), [of("carbon-apis.md", "§5.1")]);
    assert_eq!(cited("/// simulator (`zeus-simulator.md`, 3c)."), [of("zeus-simulator.md", "3c")]);
    assert_eq!(cited("// `docs/src/contributing/trial.md` has the rest."), [of("docs/src/contributing/trial.md", "")]);
    assert!(cited("// format.mdx .md").is_empty() && cited("read(\"page.md\", \"§1\")").is_empty());
    assert!(has("# A\n## 5.1 Energy-Charts", "§5.1") && !has("## 5.1 Energy-Charts", "§5"));
    assert!(has("## 2. One job\n\n**Hull.** Draw", "\"Hull\"") && !has("## 2. One job", "\"Hull\""));
}
