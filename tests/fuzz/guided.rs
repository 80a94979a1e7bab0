//! Bodies that coverage leads to, for the parsers of all sources: the first byte chooses the source.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattune::providers::fuzz::{FuzzTarget, parse};

fuzz_target!(|input: &[u8]| {
    let Some((choice, body)) = input.split_first() else { return };
    parse(FuzzTarget::ALL[usize::from(*choice) % FuzzTarget::ALL.len()], body);
});
