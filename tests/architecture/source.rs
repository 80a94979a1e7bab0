//! Source files, the crates that they belong to, and what every one of them looks like.

use std::path::{Path, PathBuf};

/// A crate whose sources keep rules.
#[derive(Debug, PartialEq)]
pub(super) struct Crate {
    /// Its sources, from the repository's root on.
    pub(super) root: &'static str,
    /// Each room may use those before it, and itself.
    pub(super) rooms: &'static [&'static str],
    /// The files that may see a socket, a file, a clock or a GPU: what their paths begin with.
    pub(super) edge: &'static [&'static str],
}

/// The crate that decides.
pub(super) const CORE: Crate = Crate {
    root: "crates/core/src",
    rooms: &["units", "time", "domain", "identity", "forecast", "profile", "plan", "cap", "bandit", "ledger"],
    edge: &[],
};

/// The crate of experiments. It may name anything of `wattune_core`.
pub(super) const LAB: Crate = Crate {
    root: "crates/lab/src",
    rooms: &["traces", "grid", "replay", "policy", "study", "waiting", "bandit"],
    edge: &["traces/file.rs"],
};

/// The crate that acts. It may name anything of `wattune_core` and `wattune_lab`.
pub(super) const DAEMON: Crate = Crate {
    root: "src",
    rooms: &[
        "clock",
        "blocking",
        "telemetry",
        "files",
        "providers",
        "gpu",
        "cpu",
        "discovery",
        "store",
        "recurring",
        "controller",
        "reports",
        "demo",
        "http",
        "config",
        "cli",
    ],
    edge: &[""],
};

pub(super) const CRATES: [&Crate; 3] = [&CORE, &LAB, &DAEMON];

pub(super) const LONGEST_FILE: usize = 600;

/// A source file of a crate.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) of: &'static Crate,
    /// Relative to the crate's sources, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    pub(super) fn new(of: &'static Crate, path: &str, text: &str) -> Self {
        Self { of, path: path.to_owned(), text: text.to_owned() }
    }

    /// All sources of a crate, in the order of their paths.
    pub(super) fn all(of: &'static Crate) -> Vec<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(of.root);
        let mut found = Vec::new();
        let mut open = vec![root.clone()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(&directory).expect("the sources are there") {
                let path: PathBuf = entry.expect("readable").path();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let name = path.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/");
                    found.push(Self::new(of, &name, &std::fs::read_to_string(&path).expect("readable")));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// Whether it may not see a socket, a file, a clock or a GPU.
    pub(super) fn is_pure(&self) -> bool {
        !self.of.edge.iter().any(|edge| self.path.starts_with(edge))
    }

    /// Modules from the crate's root to this file: `plan/slots.rs` is `["plan", "slots"]`.
    pub(super) fn module(&self) -> Vec<&str> {
        let path = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let mut module: Vec<&str> = path.split('/').collect();
        if matches!(module.last(), Some(&"mod" | &"lib" | &"main")) {
            module.pop();
        }
        module
    }

    /// Whether it is a file of a test module: tests may look wherever they want.
    pub(super) fn is_test(&self) -> bool {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        file == "tests.rs" || file.ends_with("_tests.rs") || self.path.split('/').any(|part| part == "tests")
    }

    /// A message about one of its lines.
    pub(super) fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}/{}:{line}: {what}", self.of.root, self.path)
    }

    /// Everything that is wrong with it by itself, a line each.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut found = self.looks();
        if !self.is_test() {
            found.extend(super::rooms::violations(self));
        }
        found
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
}

/// What is said about a file with this code, without its place.
pub(super) fn said(of: &'static Crate, path: &str, code: &str) -> Vec<String> {
    let source = Source::new(of, path, &format!("//! A file.\n{code}\n"));
    source.violations().iter().map(|v| v.splitn(3, ':').last().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn a_violation_names_file_and_line() {
    let code = "//! A file.\n\n/* two\nlines */ const A: &str = \"\n\";\nuse crate::cli;\n";
    let found = Source::new(&DAEMON, "gpu/nvml.rs", code).violations();
    assert_eq!(found, ["src/gpu/nvml.rs:6: gpu may not use cli"]);
    let found = Source::new(&CORE, "plan/dual.rs", code).violations();
    assert_eq!(found, ["crates/core/src/plan/dual.rs:6: crate::cli names no room"]);
}

#[test]
fn files_look_alike() {
    let long = Source::new(&DAEMON, "cli/a.rs", &format!("//! A file.\n{}", "// line\n".repeat(LONGEST_FILE)));
    assert_eq!(long.violations(), ["src/cli/a.rs:601: 601 lines; split by noun before 600"]);
    let bare = Source::new(&DAEMON, "cli/a.rs", "use std::fmt;\n");
    assert_eq!(bare.violations(), ["src/cli/a.rs:1: the first line must say with `//!` what the file is for"]);
    for unfinished in ["fn f() { todo!() }", "fn f() { unimplemented!(\"x\") }", "// TODO: later", "/* FIXME */"] {
        let said = said(&DAEMON, "cli/a.rs", unfinished);
        assert!(said.iter().any(|s| s.ends_with("finish it or leave it out")), "{unfinished}: {said:?}");
    }
    assert!(said(&DAEMON, "cli/a.rs", "// what is still to do, todo lists").is_empty());
}
