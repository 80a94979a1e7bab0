//! The tests that take minutes unoptimised, in a package that is built optimised anyway: benches/Cargo.toml.
//!
//!     cargo test --release -p wattune-benches --test slow -- --ignored

mod carbon_days;
mod grids;
mod support {
    mod job;
    mod traces;

    pub(crate) use job::job;
    pub(crate) use traces::traces;
}
