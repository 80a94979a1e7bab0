//! The crates that a pure crate is built with, as `Cargo.lock` has them, those of its tests among them.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;

/// Crates that reach the world outside, or write a log.
const WORLDLY_CRATES: [&str; 7] = ["axum", "hyper", "nvml-wrapper", "reqwest", "rusqlite", "tokio", "tracing"];

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

/// The ways from a crate to worldly ones, a line each. Versions of one crate count as one.
pub(super) fn ways_to_the_world(lock: &str, from: &str) -> Vec<String> {
    let Lock { package } = toml::from_str(lock).expect("a lock file");
    let mut used: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, dependencies } in &package {
        let names = dependencies.iter().filter_map(|d| d.split(' ').next());
        used.entry(name.as_str()).or_default().extend(names);
    }
    assert!(used.contains_key(from), "{from} is not in the lock file");
    let mut ways = BTreeMap::from([(from, from.to_owned())]);
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front() {
        for next in used.get(at).into_iter().flatten().copied() {
            if !ways.contains_key(next) {
                ways.insert(next, format!("{} → {next}", ways[at]));
                open.push_back(next);
            }
        }
    }
    WORLDLY_CRATES.iter().filter_map(|worldly| ways.get(worldly).cloned()).collect()
}

#[test]
fn the_way_to_a_worldly_crate_is_named() {
    let package = |name: &str, dependencies: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\ndependencies = [{dependencies}]\n")
    };
    let serde = package("wattune-core", "\"serde\", \"sums 0.1.0\"") + &package("serde", "");
    let pure = serde.clone() + &package("sums", "\"serde\"") + &package("wattune", "\"tokio\"") + &package("tokio", "");
    assert_eq!(ways_to_the_world(&pure, "wattune-core"), Vec::<String>::new());
    let worldly = serde + &package("sums", "\"tokio\"") + &package("tokio", "");
    assert_eq!(ways_to_the_world(&worldly, "wattune-core"), ["wattune-core → sums → tokio"]);
}
