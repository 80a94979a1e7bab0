//! The house rules that the compiler does not know: which room may use which, what the pure rooms never see, and what
//! every source file looks like.
//!
//! Sources are read as tokens, so that comments and texts say what they like. Left out are items under `#[cfg(test)]`
//! and the files of test modules (`tests.rs`, `*_tests.rs`, `tests/`): tests may look wherever they want.

use std::path::{Path, PathBuf};

/// Each room may use those before it, and itself.
const ROOMS: [&str; 20] = [
    "units",
    "domain",
    "clock",
    "telemetry",
    "files",
    "forecast",
    "profile",
    "plan",
    "bandit",
    "ledger",
    "providers",
    "gpu",
    "cpu",
    "store",
    "recurring",
    "controller",
    "simulate",
    "http",
    "config",
    "cli",
];

/// Rooms that see no socket, no file, no clock and no GPU.
const PURE: [&str; 7] = ["units", "domain", "forecast", "profile", "plan", "bandit", "ledger"];

/// Crates that a pure room does not use.
const WORLDLY_CRATES: [&str; 11] = [
    "tokio",
    "tokio_util",
    "futures_util",
    "reqwest",
    "rusqlite",
    "hyper",
    "axum",
    "nvml_wrapper",
    "nvml_wrapper_sys",
    "tracing",
    "tracing_subscriber",
];

/// Parts of the standard library that a pure room does not use.
const WORLDLY_STD: [&str; 6] = ["fs", "net", "env", "thread", "process", "os"];

/// What of `crate::clock` a pure room may use: moments are arguments, clocks are not.
const PURE_CLOCK: [&str; 2] = ["Monotonic", "Now"];

const LONGEST_FILE: usize = 600;

/// A source file below `src/`.
struct Source {
    /// Relative to `src/`, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Modules from the crate's root to this file: `plan/dual.rs` is `["plan", "dual"]`.
    fn module(&self) -> Vec<&str> {
        let path = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let mut module: Vec<&str> = path.split('/').collect();
        if matches!(module.last(), Some(&"mod" | &"lib" | &"main")) {
            module.pop();
        }
        module
    }

    fn is_test(&self) -> bool {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        file == "tests.rs" || file.ends_with("_tests.rs") || self.path.split('/').any(|part| part == "tests")
    }

    /// Everything that is wrong with it, a line each.
    fn violations(&self) -> Vec<String> {
        let mut found = self.looks();
        if !self.is_test() {
            found.extend(self.dependencies());
        }
        found
    }

    fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("src/{}:{line}: {what}", self.path)
    }

    fn looks(&self) -> Vec<String> {
        let mut found = Vec::new();
        let length = self.text.lines().count();
        if length > LONGEST_FILE {
            found.push(self.at(length, format_args!("{length} lines; split by noun before {LONGEST_FILE}")));
        }
        if !self.is_test() && !self.text.starts_with("//! ") {
            found.push(self.at(1, "the first line must say with `//!` what the file is for"));
        }
        for (number, line) in self.text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let unfinished = words.any(|w| ["TODO", "FIXME"].contains(&w))
                || ["todo!", "unimplemented!"].iter().any(|call| line.contains(call));
            if unfinished {
                found.push(self.at(number + 1, "finish it or leave it out"));
            }
        }
        found
    }

    fn dependencies(&self) -> Vec<String> {
        let module = self.module();
        let Some(room) = module.first() else { return Vec::new() };
        let Some(rank) = ROOMS.iter().position(|r| r == room) else {
            return vec![self.at(1, format_args!("{room} has no place in the order of rooms (ROOMS in this test)"))];
        };
        let mut found = Vec::new();
        for path in paths(&without_tests(tokens(&self.text)), &module) {
            let names: Vec<&str> = path.names.iter().map(String::as_str).collect();
            if let ["crate", rest @ ..] = names.as_slice() {
                match rest.first().and_then(|r| ROOMS.iter().position(|room| room == r)) {
                    None => found.push(self.at(path.line, format_args!("{} names no room", names.join("::")))),
                    Some(used) if used > rank => {
                        found.push(self.at(path.line, format_args!("{room} may not use {}", ROOMS[used])));
                    }
                    Some(_) => {}
                }
            }
            if PURE.contains(room)
                && let Some(why) = impurity(&names)
            {
                found.push(self.at(path.line, format_args!("{room} is pure: {} {why}", names.join("::"))));
            }
        }
        found
    }
}

/// What speaks against a path in a pure room.
fn impurity(names: &[&str]) -> Option<&'static str> {
    let pair = |a: &str, b: &str| names.windows(2).any(|w| w == [a, b]);
    if WORLDLY_CRATES.contains(&names[0]) {
        return Some("reaches the world outside");
    }
    if ["std", "core"].contains(&names[0]) && names.get(1).is_some_and(|n| WORLDLY_STD.contains(n)) {
        return Some("reaches the world outside");
    }
    if pair("Utc", "now") || pair("Local", "now") || names.iter().any(|n| ["SystemTime", "Instant"].contains(n)) {
        return Some("reads a clock; time is an argument");
    }
    if names.contains(&"File") {
        return Some("opens a file");
    }
    if pair("rand", "rng") || names.iter().any(|n| ["thread_rng", "SysRng", "OsRng"].contains(n)) {
        return Some("draws its own randomness; generators are passed in");
    }
    if names.starts_with(&["crate", "clock"]) && !names.get(2).is_some_and(|n| PURE_CLOCK.contains(n)) {
        return Some("is more of the clock than Monotonic and Now");
    }
    None
}

/// A word, `::`, or a single sign, and its line.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// Words that may stand before a path that begins with `::`, and are no part of it.
const KEYWORDS: [&str; 14] =
    ["use", "as", "dyn", "else", "for", "if", "impl", "in", "let", "match", "move", "mut", "return", "while"];

impl Token {
    /// Whether it can be a part of a path.
    fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_') && !KEYWORDS.contains(&self.text.as_str())
    }
}

/// The code of a text: comments and the contents of literals are left out.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    let peek = |i: usize| chars.get(i).copied().unwrap_or('\0');
    while i < chars.len() {
        let start = i;
        match (peek(i), peek(i + 1)) {
            ('/', '/') => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => i = block_comment_end(&chars, i),
            ('"', _) => i = string_end(&chars, i),
            ('\'', '\\') => i += 3 + chars[i + 3..].iter().take_while(|c| **c != '\'').count(),
            ('\'', _) if peek(i + 2) == '\'' => i += 2,
            (':', ':') => {
                out.push(Token { text: "::".into(), line });
                i += 1;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let word: String = chars[i..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                i += word.chars().count();
                let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && peek(i + hashes) == '"' {
                    i = raw_string_end(&chars, i + hashes, hashes);
                } else {
                    i -= 1;
                    out.push(Token { text: word, line });
                }
            }
            (c, _) if c.is_whitespace() => {}
            (c, _) => out.push(Token { text: c.into(), line }),
        }
        i = i.min(chars.len() - 1);
        line += chars[start..=i].iter().filter(|c| **c == '\n').count();
        i += 1;
    }
    out
}

/// The place of a block comment's last sign; they nest.
fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 1,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    chars.len()
}

/// The place of a string's closing quote.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i
}

/// The place of a raw string's last `#`, or of its closing quote.
fn raw_string_end(chars: &[char], quote: usize, hashes: usize) -> usize {
    let closes =
        |i: usize| chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (quote + 1..chars.len()).find(|i| closes(*i)).map_or(chars.len(), |i| i + hashes)
}

/// Takes away the items under `#[cfg(test)]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut out, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        if tokens[i..].len() >= MARK.len() && tokens[i..].iter().zip(MARK).all(|(t, m)| t.text == m) {
            i = item_end(&tokens, i + MARK.len());
        } else {
            out.push(tokens[i].clone());
            i += 1;
        }
    }
    out
}

/// The place after an item: after its `;`, or after the braces that it ends with.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let (mut depth, mut i) = (0_usize, start);
    while i < tokens.len() {
        match tokens[i].text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" if depth == 1 => return i + 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return i + 1,
            _ => {}
        }
        i += 1;
    }
    i
}

/// A path with its groups taken apart and `self` and `super` followed: `["crate", "units", "Watts"]`.
#[derive(Debug, PartialEq)]
struct Named {
    names: Vec<String>,
    line: usize,
}

/// All paths of at least two names, and single ones that are imported.
fn paths(tokens: &[Token], module: &[&str]) -> Vec<Named> {
    let mut found = Vec::new();
    // Inline modules that are open, with the depth of braces at which each ends.
    let (mut depth, mut inline): (usize, Vec<(&str, usize)>) = (0, Vec::new());
    let mut i = 0;
    while i < tokens.len() {
        match tokens[i].text.as_str() {
            "mod" if tokens.get(i + 2).is_some_and(|t| t.text == "{") => {
                depth += 1;
                inline.push((&tokens[i + 1].text, depth));
                i += 3;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                inline.retain(|(_, at)| *at != depth);
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        let next = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
        let here: Vec<&str> = module.iter().copied().chain(inline.iter().map(|(name, _)| *name)).collect();
        if tokens[i].is_name() && next(i + 1) == "::" {
            i = follow(tokens, i, &[], &here, &mut found);
        } else if tokens[i].text == "use" && next(i + 2) != "::" && tokens.get(i + 1).is_some_and(Token::is_name) {
            // `use crate as x` and `use tokio as x` would hide what comes after.
            i = follow(tokens, i + 1, &[], &here, &mut found);
        } else {
            i += 1;
        }
    }
    found
}

/// Reads one path, or one branch of a group, from its first name on. Answers with the place after it.
fn follow(tokens: &[Token], start: usize, before: &[String], here: &[&str], found: &mut Vec<Named>) -> usize {
    let (mut names, mut i, line) = (before.to_vec(), start, tokens[start].line);
    loop {
        match tokens.get(i).map(|t| t.text.as_str()) {
            Some("{") => {
                i += 1;
                while tokens.get(i).is_some_and(|t| t.text != "}") {
                    i = if tokens[i].is_name() || ["*", "{"].contains(&tokens[i].text.as_str()) {
                        follow(tokens, i, &names, here, found)
                    } else {
                        i + 1
                    };
                }
                return i + 1;
            }
            Some("*") => {
                names.push("*".to_owned());
                i += 1;
                break;
            }
            Some("<") | None => break,
            Some(name) => {
                names.push(name.to_owned());
                i += 1;
            }
        }
        match tokens.get(i).map(|t| t.text.as_str()) {
            Some("::") => i += 1,
            // The other name would stand alone in what follows.
            Some("as") if !before.is_empty() => {
                i += 2;
                break;
            }
            _ => break,
        }
    }
    found.push(Named { names: resolve(names, here), line });
    i
}

/// Follows `self` and `super` from the module `here`.
fn resolve(names: Vec<String>, here: &[&str]) -> Vec<String> {
    let ups = names.iter().take_while(|n| ["self", "super"].contains(&n.as_str())).count();
    if ups == 0 {
        return names;
    }
    let supers = names[..ups].iter().filter(|n| *n == "super").count();
    let base = &here[..here.len().saturating_sub(supers)];
    let rest = &names[ups..];
    std::iter::once("crate".to_owned())
        .chain(base.iter().map(|b| (*b).to_owned()).chain(rest.iter().cloned()))
        .collect()
}

fn sources(dir: &Path, root: &Path, out: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("src is there").map(|e| e.expect("readable").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, root, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root).expect("below src").to_string_lossy().replace('\\', "/");
            out.push(Source::new(&name, &std::fs::read_to_string(&path).expect("readable")));
        }
    }
}

#[test]
fn the_sources_keep_the_rules_of_the_house() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    sources(&root, &root, &mut all);
    assert!(all.len() > 50, "only {} sources below {}", all.len(), root.display());
    let found: Vec<String> = all.iter().flat_map(Source::violations).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_room_of_the_crate_has_its_place() {
    let lib = include_str!("../src/lib.rs");
    let rooms: Vec<&str> =
        lib.lines().filter_map(|l| l.strip_prefix("pub mod ").or(l.strip_prefix("mod "))?.strip_suffix(';')).collect();
    assert!(rooms.contains(&"controller"), "{rooms:?}");
    let homeless: Vec<&&str> = rooms.iter().filter(|room| !ROOMS.contains(room)).collect();
    assert!(homeless.is_empty(), "{homeless:?} have no place in the order of rooms");
}

/// What is said about a file with this code, without its place.
fn said(path: &str, code: &str) -> Vec<String> {
    let source = Source::new(path, &format!("//! A file.\n{code}\n"));
    source.violations().iter().map(|v| v.splitn(3, ':').last().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn upward_paths_are_found() {
    let table = [
        ("plan/dual.rs", "use crate::controller::Job;", "plan may not use controller"),
        ("plan/dual.rs", "use crate::{units::Watts, gpu::{nvml, GpuDevice}};", "plan may not use gpu"),
        ("plan/dual.rs", "fn f() { crate::http::serve() }", "plan may not use http"),
        ("plan/dual.rs", "use super::super::store::Store;", "plan may not use store"),
        ("plan/mod.rs", "use super::ledger::Meter;", "plan may not use ledger"),
        ("clock.rs", "use super::domain::Zone; use super::gpu;", "clock may not use gpu"),
        ("gpu/nvml/device.rs", "use self::super::super::super::cli::Cli;", "gpu may not use cli"),
        ("http/mod.rs", "use crate::config::Settings;", "http may not use config"),
        ("domain/ids.rs", "mod inner { use super::super::super::forecast::Skill; }", "domain may not use forecast"),
        ("plan/dual.rs", "macro_rules! m { () => { $crate::cli::run() } }", "plan may not use cli"),
        ("plan/dual.rs", "use crate::*;", "crate::* names no room"),
        ("plan/dual.rs", "use crate as house;", "crate names no room"),
        ("plan/mod.rs", "use super as house;", "crate names no room"),
        ("attic/mod.rs", "", "attic has no place in the order of rooms (ROOMS in this test)"),
    ];
    for (path, code, expected) in table {
        let said = said(path, code);
        assert!(said.iter().any(|s| s == expected), "{path}: {code}: {said:?}");
    }
}

#[test]
fn the_world_is_found_in_pure_rooms_and_allowed_elsewhere() {
    let table = [
        "use tokio::time::sleep;",
        "use tokio as t;",
        "use ::tokio::time::sleep;",
        "fn f(x: &dyn ::tokio::io::AsyncRead) {}",
        "fn f() { tracing::info!(\"said\") }",
        "use reqwest::Client;",
        "fn f() -> rusqlite::Result<()> { Ok(()) }",
        "use axum::Router;",
        "use nvml_wrapper::Nvml;",
        "use std::fs;",
        "use std::{fmt, fs::File, collections::BTreeMap};",
        "use std::{env};",
        "fn f() { let _ = std::net::TcpStream::connect(\"x\"); }",
        "fn f() { std::thread::sleep(d) }",
        "fn f() { let _ = File::open(\"x\"); }",
        "fn f() { let _ = Utc::now(); }",
        "fn f() { let _ = chrono::Utc::now(); }",
        "use std::time::{Duration, SystemTime};",
        "fn f() { let _ = Instant::now(); }",
        "fn f() { rand::rng(); }",
        "use crate::clock::Clock;",
        "use crate::clock::{Now, SystemClock};",
        "use crate::clock;",
    ];
    for code in table {
        for room in PURE.iter().skip(2) {
            let said = said(&format!("{room}/part.rs"), code);
            assert!(said.iter().any(|s| s.starts_with(&format!("{room} is pure: "))), "{room}: {code}: {said:?}");
        }
        let elsewhere = said("cli/part.rs", code);
        assert!(elsewhere.is_empty(), "{code}: {elsewhere:?}");
    }
}

#[test]
fn what_is_right_is_left_alone() {
    let table = [
        ("plan/dual.rs", "use crate::profile::concave_envelope;\nuse super::problem::Problem;"),
        ("plan/dual.rs", "use super::super::profile;"),
        ("plan/dual.rs", "// tokio::spawn, crate::cli\n/* std::fs /* nested */ crate::cli */\n/// [`crate::http`]"),
        ("plan/dual.rs", "const T: &str = \"crate::cli \\\" tokio::spawn\"; const R: &str = r#\"std::fs \" x\"#;"),
        (
            "plan/dual.rs",
            "fn f<'a>(c: char) -> &'a str { if c == '\"' || c == '\\'' { \"crate::cli\" } else { \"\" } }",
        ),
        ("plan/dual.rs", "#[cfg(test)]\nmod tests { use crate::cli::Cli; use tokio::test; fn f() {} }"),
        ("plan/dual.rs", "#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod tests;"),
        ("plan/tests/oracles.rs", "use crate::cli::Cli; use tokio::test;"),
        ("plan/dual_tests.rs", "use crate::cli::Cli;"),
        ("ledger/interval.rs", "use crate::clock::{Monotonic, Now};\nfn f(now: Now) { now.utc; }"),
        ("ledger/interval.rs", "use chrono::Utc; use std::time::Duration; pub(crate) fn f() { Self::now() }"),
        ("domain/ids.rs", "mod inner { use super::super::series::Slot; }"),
        ("main.rs", "use wattune::cli::Cli;"),
        ("lib.rs", "pub mod cli;"),
    ];
    for (path, code) in table {
        assert_eq!(said(path, code), Vec::<String>::new(), "{path}: {code}");
    }
}

#[test]
fn code_after_a_test_module_counts() {
    let code = "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::cli::Cli;";
    assert_eq!(said("plan/dual.rs", code), ["plan may not use cli"]);
    let code = "#[cfg(test)]\nuse crate::cli::Cli;\nfn f(x: [u8; 3]) { crate::http::serve() }";
    assert_eq!(said("plan/dual.rs", code), ["plan may not use http"]);
}

#[test]
fn a_violation_names_file_and_line() {
    let source =
        Source::new("plan/dual.rs", "//! A file.\n\n/* two\nlines */ const A: &str = \"\n\";\nuse crate::cli;\n");
    assert_eq!(source.violations(), ["src/plan/dual.rs:6: plan may not use cli"]);
}

#[test]
fn files_look_alike() {
    let long = Source::new("cli/a.rs", &format!("//! A file.\n{}", "// line\n".repeat(LONGEST_FILE)));
    assert_eq!(long.violations(), ["src/cli/a.rs:601: 601 lines; split by noun before 600"]);
    let bare = Source::new("cli/a.rs", "use std::fmt;\n");
    assert_eq!(bare.violations(), ["src/cli/a.rs:1: the first line must say with `//!` what the file is for"]);
    for unfinished in ["fn f() { todo!() }", "fn f() { unimplemented!(\"x\") }", "// TODO: later", "/* FIXME */"] {
        let said = said("cli/a.rs", unfinished);
        assert!(said.iter().any(|s| s.ends_with("finish it or leave it out")), "{unfinished}: {said:?}");
    }
    assert!(said("cli/a.rs", "// what is still to do, todo lists").is_empty());
}
