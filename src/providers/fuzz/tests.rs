//! Runs all parsers on a small number of mutated bodies; the example `fuzz_parsers` tries many more.

#[path = "../../../tests/fuzz/bodies.rs"]
mod bodies;

use super::targets;

/// Returns the bodies in the corpus of all targets.
fn seeds() -> Vec<bodies::Seed> {
    bodies::seeds(&targets().iter().map(|target| target.name).collect::<Vec<_>>())
}

#[test]
fn no_mutated_body_panics() {
    let (targets, seeds, mut dice) = (targets(), seeds(), bodies::Dice(2));
    for _ in 0..20_000 {
        let seed = &seeds[dice.below(seeds.len())];
        (targets[seed.target].parse)(&bodies::mutated(seed, &seeds, &mut dice));
    }
}

#[test]
fn every_target_takes_the_bodies_of_every_other() {
    for seed in seeds() {
        targets().iter().for_each(|target| (target.parse)(&seed.bytes));
    }
}

/// The two orders must agree: `tests/fuzz/seeds.sh` numbers the corpus's folders by name, and the guided fuzz run
/// numbers the targets.
#[test]
fn folders_of_the_corpus_are_the_targets() {
    let corpus = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus")).expect("a corpus");
    let mut folders: Vec<_> = corpus.map(|entry| entry.expect("readable").file_name()).collect();
    folders.sort();
    assert_eq!(folders, targets().iter().map(|target| target.name).collect::<Vec<_>>());
}
