//! Mutated bodies for the parsers of all sources: few of those that `fuzz_parsers` tries many of.

mod bodies;

use wattune::providers::fuzz::{FuzzTarget, parse, parse_all};

#[test]
fn no_mutated_body_panics() {
    let (seeds, mut dice) = (bodies::seeds(), bodies::Dice(2));
    for _ in 0..20_000 {
        let seed = &seeds[dice.below(seeds.len())];
        parse(seed.target, &bodies::mutated(seed, &seeds, &mut dice));
    }
}

#[test]
fn every_source_takes_the_bodies_of_every_other() {
    for seed in bodies::seeds() {
        parse_all(&seed.bytes);
    }
}

/// The guided run tells sources by their number, `seeds.sh` by their name.
#[test]
fn seeds_are_numbered_in_the_order_of_the_targets() {
    let script = include_str!("seeds.sh");
    let names = FuzzTarget::ALL.map(FuzzTarget::name).join(" ");
    assert!(script.contains(&format!("for source in {names}; do")), "{names}");
}
