//! Experiments on recorded traces: policies, replays and studies behind `wattune simulate`. This crate uses only
//! [`wattune_core`]: no daemon, no hardware, no clock. Only [`traces::TraceFile`] opens files.
//!
//! # The modules, each of which uses only modules above it
//!
//! * [`traces`]: Zeus's trace files, as rows, and as profiles of workloads on a GPU
//! * [`grid`]: recorded grids, and the part of them that was known at a past time
//! * [`replay`]: one job, or several under a node's power cap, replayed from start to end under a policy
//! * [`policy`]: the policies that choose power limits, one to a file
//! * [`study`]: jobs × starts × budgets of extra time × policies, as rows and means
//! * [`waiting`]: jobs that may wait × submissions × policies that choose a start, as rows and means
//! * [`bandit`]: recurring jobs: policies that choose batch sizes, and their regret (cost beyond that of an oracle)

pub mod bandit;
pub mod grid;
pub mod policy;
pub mod replay;
pub mod study;
pub mod traces;
pub mod waiting;
