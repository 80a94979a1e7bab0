//! The tests that take minutes unoptimised, in a binary of their own: built optimised, the rest would take longer than these run.
//!
//!     cargo test --release --test slow -- --ignored

mod carbon_days;
mod grids;
#[allow(dead_code, unused_imports, reason = "shared with the integration tests, which use more of it")]
mod support;
