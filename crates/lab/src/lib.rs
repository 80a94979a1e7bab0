//! Experiments on recorded traces: policies, replays and studies behind `wattune simulate`. It uses [`wattune_core`]
//! only: no daemon, no hardware, no clock. Its one file that opens files is the one of [`traces::TraceFile`].
//!
//! # The rooms, in the order in which they may depend on one another
//!
//! * [`traces`]: Zeus's trace files, as rows and as the profile of a workload on a GPU
//! * [`grid`]: recorded grids, and the part of them that is known at a moment
//! * [`replay`]: one job, or several under a node's cap, from start to end under a policy
//! * [`policy`]: the policies that decide about limits, one to a file
//! * [`study`]: jobs × starts × budgets × policies, as rows and means
//! * [`bandit`]: recurring jobs: policies for batch sizes, regret against an oracle

pub mod bandit;
pub mod grid;
pub mod policy;
pub mod replay;
pub mod study;
pub mod traces;
