//! Which room may use which, and what a pure file never sees.

use super::paths::Paths;

use super::source::{CORE, DAEMON, LAB, Source, said};
use super::tokens::{tokens, without_tests};

/// Parts of the standard library that a pure file does not use.
const WORLDLY_STD: [&str; 6] = ["fs", "net", "env", "thread", "process", "os"];

/// The paths of a source that it may not name, a line each.
pub(super) fn violations(source: &Source) -> Vec<String> {
    let module = source.module();
    let rooms = source.of.rooms;
    let Some(room) = module.first() else { return Vec::new() };
    let Some(rank) = rooms.iter().position(|r| r == room) else {
        return vec![source.at(1, format_args!("{room} has no place in the order of rooms (CRATES in this test)"))];
    };
    let mut found = Vec::new();
    for path in Paths::of(&without_tests(tokens(&source.text)), &module).named {
        let names: Vec<&str> = path.names.iter().map(String::as_str).collect();
        if let ["crate", rest @ ..] = names.as_slice() {
            match rest.first().and_then(|r| rooms.iter().position(|room| room == r)) {
                None => found.push(source.at(path.line, format_args!("{} names no room", names.join("::")))),
                Some(used) if used > rank => {
                    found.push(source.at(path.line, format_args!("{room} may not use {}", rooms[used])));
                }
                Some(_) => {}
            }
        }
        if let Some(why) = impurity(&names).filter(|_| source.is_pure()) {
            found.push(source.at(path.line, format_args!("{room} is pure: {} {why}", names.join("::"))));
        }
    }
    found
}

/// What speaks against a path in a pure file.
fn impurity(names: &[&str]) -> Option<&'static str> {
    let pair = |a: &str, b: &str| names.windows(2).any(|w| w == [a, b]);
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
    None
}

#[test]
fn upward_paths_are_found() {
    let core = [
        ("plan/dual.rs", "use crate::ledger::Meter;", "plan may not use ledger"),
        ("plan/dual.rs", "use crate::{units::Watts, bandit::{self, Spec}};", "plan may not use bandit"),
        ("plan/dual.rs", "fn f() { crate::ledger::verify() }", "plan may not use ledger"),
        ("plan/dual.rs", "use super::super::bandit::Spec;", "plan may not use bandit"),
        ("plan/mod.rs", "use super::ledger::Meter;", "plan may not use ledger"),
        ("time.rs", "use super::units::Seconds; use super::domain;", "time may not use domain"),
        ("domain/ids.rs", "mod inner { use super::super::super::forecast::Skill; }", "domain may not use forecast"),
        ("plan/dual.rs", "macro_rules! m { () => { $crate::ledger::run() } }", "plan may not use ledger"),
        ("plan/dual.rs", "use crate::*;", "crate::* names no room"),
        ("plan/dual.rs", "use crate as house;", "crate names no room"),
        ("plan/mod.rs", "use super as house;", "crate names no room"),
        ("plan/dual.rs", "use crate::controller::Job;", "crate::controller::Job names no room"),
        ("attic/mod.rs", "", "attic has no place in the order of rooms (CRATES in this test)"),
    ];
    let lab = [
        ("grid/visible.rs", "use crate::replay::Job;", "grid may not use replay"),
        ("replay/together.rs", "use crate::policy::{self, Policy};", "replay may not use policy"),
        ("policy/wattune.rs", "fn f() { super::super::study::means(&[]) }", "policy may not use study"),
        ("study/run.rs", "use crate::bandit::Job;", "study may not use bandit"),
        ("grid/mod.rs", "use crate::providers::file;", "crate::providers::file names no room"),
    ];
    let daemon = [
        ("gpu/nvml/device.rs", "use self::super::super::super::super::cli::Cli;", "gpu may not use cli"),
        ("http/mod.rs", "use crate::config::Settings;", "http may not use config"),
        ("clock.rs", "use super::{gpu};", "clock may not use gpu"),
        ("gpu/mod.rs", "use crate::units::Watts;", "crate::units::Watts names no room"),
        ("controller/mod.rs", "use crate::demo::World;", "controller may not use demo"),
        ("demo/world.rs", "use crate::cli::Cli;", "demo may not use cli"),
    ];
    let core = core.iter().map(|case| (&CORE, case)).chain(lab.iter().map(|case| (&LAB, case)));
    for (of, (path, code, expected)) in core.chain(daemon.iter().map(|case| (&DAEMON, case))) {
        let said = said(of, path, code);
        assert!(said.iter().any(|s| s == expected), "{path}: {code}: {said:?}");
    }
}

#[test]
fn the_world_is_found_in_pure_files_and_allowed_at_the_edge() {
    let table = [
        "use std::fs;",
        "use std::{fmt, fs::File, collections::BTreeMap};",
        "use std::{env};",
        "use std::env as e;",
        "use ::std::process::Command;",
        "fn f() { let _ = std::net::TcpStream::connect(\"x\"); }",
        "fn f() { std::thread::sleep(d) }",
        "fn f() { let _ = File::open(\"x\"); }",
        "fn f() { let _ = Utc::now(); }",
        "fn f() { let _ = chrono::Utc::now(); }",
        "fn f(x: &dyn ::std::os::fd::AsFd) {}",
        "use std::time::{Duration, SystemTime};",
        "fn f() { let _ = Instant::now(); }",
        "fn f() { rand::rng(); }",
        "use rand::rngs::{ChaCha8Rng, SysRng};",
    ];
    for code in table {
        for (of, room) in [&CORE, &LAB].into_iter().flat_map(|of| of.rooms.iter().map(move |room| (of, room))) {
            let said = said(of, &format!("{room}/part.rs"), code);
            assert!(said.iter().any(|s| s.starts_with(&format!("{room} is pure: "))), "{room}: {code}: {said:?}");
        }
        for (of, path) in [(&DAEMON, "cli/part.rs"), (&LAB, "traces/file.rs")] {
            let elsewhere = said(of, path, code);
            assert!(elsewhere.is_empty(), "{path}: {code}: {elsewhere:?}");
        }
    }
}

#[test]
fn what_is_right_is_left_alone() {
    let core = [
        ("plan/dual.rs", "use crate::profile::concave_envelope;\nuse super::problem::Problem;"),
        ("plan/dual.rs", "use super::super::profile;"),
        ("plan/dual.rs", "// std::fs, crate::cli\n/* std::fs /* nested */ crate::cli */\n/// [`crate::ledger`]"),
        ("plan/dual.rs", "const T: &str = \"crate::cli \\\" std::fs\"; const R: &str = r#\"std::fs \" x\"#;"),
        (
            "plan/dual.rs",
            "fn f<'a>(c: char) -> &'a str { if c == '\"' || c == '\\'' { \"crate::cli\" } else { \"\" } }",
        ),
        ("plan/dual.rs", "#[cfg(test)]\nmod tests { use crate::ledger::Meter; use std::fs; fn f() {} }"),
        ("plan/dual.rs", "#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod tests;"),
        ("plan/tests/oracles.rs", "use crate::ledger::Meter; use std::fs;"),
        ("plan/dual_tests.rs", "use crate::ledger::Meter;"),
        ("ledger/interval.rs", "use crate::time::{Monotonic, Now};\nfn f(now: Now) { now.utc; }"),
        ("ledger/interval.rs", "use chrono::Utc; use std::time::Duration; pub(crate) fn f() { Self::now() }"),
        ("domain/ids.rs", "mod inner { use super::super::series::Slot; }"),
        ("lib.rs", "pub mod plan;"),
    ];
    let lab = [
        ("policy/zeus.rs", "use crate::replay::View;\nuse super::kind::Policy;\nuse wattune_core::units::Watts;"),
        ("study/tests.rs", "use std::fs;"),
        ("lib.rs", "pub mod policy;"),
    ];
    let daemon = [
        ("demo/world.rs", "use crate::controller::Controller;"),
        ("cli/simulate/carbon.rs", "use wattune_lab::policy::POLICIES;"),
        ("gpu/nvml.rs", "use wattune_core::ledger::Meter; fn f(w: wattune_core::units::Watts) {}"),
        ("main.rs", "use wattune::cli::Cli;"),
        ("lib.rs", "pub mod cli;"),
    ];
    let core = core.iter().map(|case| (&CORE, case)).chain(lab.iter().map(|case| (&LAB, case)));
    for (of, (path, code)) in core.chain(daemon.iter().map(|case| (&DAEMON, case))) {
        assert_eq!(said(of, path, code), Vec::<String>::new(), "{path}: {code}");
    }
}

#[test]
fn code_after_a_test_module_counts() {
    let code = "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::ledger::Meter;";
    assert_eq!(said(&CORE, "plan/dual.rs", code), ["plan may not use ledger"]);
    let code = "#[cfg(test)]\nuse crate::bandit::Spec;\nfn f(x: [u8; 3]) { crate::ledger::verify() }";
    assert_eq!(said(&CORE, "plan/dual.rs", code), ["plan may not use ledger"]);
}
