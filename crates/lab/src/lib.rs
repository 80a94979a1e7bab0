//! Experiments on recorded traces: policies, replays and studies behind `wattune simulate`. This crate uses only
//! [`wattune_core`]: no daemon, no hardware, no clock. Only [`traces::TraceFile`] opens files.
//!
//! # The modules, in the order in which they may depend on one another
//!
//! * [`traces`]: Zeus's trace files, as rows, and as the profile of a workload on a GPU
//! * [`grid`]: recorded grids, and the part of them that is known at a past time
//! * [`replay`]: one job, or several under a node's power cap, replayed from start to end under a policy
//! * [`policy`]: the policies that choose power limits, one to a file
//! * [`study`]: jobs × starts × budgets × policies, as rows and means
//! * [`bandit`]: recurring jobs: policies that choose batch sizes, and their regret against an oracle

pub mod bandit;
pub mod grid;
pub mod policy;
pub mod replay;
pub mod study;
pub mod traces;
