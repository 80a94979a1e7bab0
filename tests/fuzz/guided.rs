//! Bodies that coverage leads to, for the parsers of all sources: the first byte chooses the source.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wattune::providers::fuzz::{FuzzTarget, targets};

static TARGETS: LazyLock<Vec<FuzzTarget>> = LazyLock::new(targets);

fuzz_target!(|input: &[u8]| {
    let Some((choice, body)) = input.split_first() else { return };
    (TARGETS[usize::from(*choice) % TARGETS.len()].parse)(body);
});
