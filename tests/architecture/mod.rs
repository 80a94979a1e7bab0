//! The house rules that the compiler does not know: which room may use which, what the core never sees, that no two
//! files of a room depend on each other in a circle, that the controller has owners, and what every source file looks
//! like.
//!
//! Sources are read as tokens, so that comments and texts say what they like. Left out are items under `#[cfg(test)]`
//! and the files of test modules (`tests.rs`, `*_tests.rs`, `tests/`): tests may look wherever they want.

mod circles;
mod lock;
mod owners;
mod paths;
mod rooms;
mod source;
mod tokens;
mod uses;

use self::circles::circles;
use self::lock::ways_to_the_world;
use self::source::{CORE, CRATES, DAEMON, LAB, Source};
use self::uses::Files;

#[test]
fn the_sources_keep_the_rules_of_the_house() {
    let all: Vec<Source> = CRATES.into_iter().flat_map(Source::all).collect();
    assert!(all.len() > 400, "only {} sources", all.len());
    let found: Vec<String> = all.iter().flat_map(Source::violations).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_controller_has_owners() {
    let sources = Source::all(&DAEMON);
    let found: Vec<String> = sources.iter().flat_map(owners::violations).collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

#[test]
fn files_of_a_room_depend_on_each_other_one_way() {
    let mut found = Vec::new();
    for of in CRATES {
        let sources = Source::all(of);
        let files = Files::of(&sources);
        found.extend(of.rooms.iter().flat_map(|room| circles(&files, room)));
    }
    assert!(found.is_empty(), "{} circles:\n{}", found.len(), found.join("\n"));
}

#[test]
fn core_and_lab_are_built_without_the_world() {
    let lock = include_str!("../../Cargo.lock");
    for of in ["wattune-core", "wattune-lab"] {
        let ways = ways_to_the_world(lock, of);
        assert!(ways.is_empty(), "{of} reaches the world outside:\n{}", ways.join("\n"));
    }
    assert!(!ways_to_the_world(lock, "wattune").is_empty(), "the daemon does reach it");
}

#[test]
fn the_rooms_are_those_of_the_crates() {
    for (of, lib) in [
        (&CORE, include_str!("../../crates/core/src/lib.rs")),
        (&LAB, include_str!("../../crates/lab/src/lib.rs")),
        (&DAEMON, include_str!("../../src/lib.rs")),
    ] {
        let declared = |l: &'static str| l.strip_prefix("pub mod ").or(l.strip_prefix("mod "))?.strip_suffix(';');
        let mut declared: Vec<&str> = lib.lines().filter_map(declared).collect();
        let mut rooms = of.rooms.to_vec();
        declared.sort_unstable();
        rooms.sort_unstable();
        assert_eq!(declared, rooms, "{}/lib.rs against CRATES in this test", of.root);
    }
}
