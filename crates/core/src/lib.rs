//! Decision logic of wattune, without I/O. Times, readings and random generators are arguments and hardware is
//! abstract, so that the daemon, its demo and its simulators run the same code.
//!
//! # Modules, in order of dependency
//!
//! * [`units`]: physical quantities such as [`units::Watts`] and [`units::Joules`], with their products
//! * [`time`]: monotonic clock readings and instants
//! * [`domain`]: shared types such as [`domain::PowerLimit`] and [`domain::Forecast`]
//! * [`identity`]: the Slurm job, pod, container or user that a process belongs to
//! * [`forecast`]: gapless planning horizons and forecast skill
//! * [`profile`]: the just-in-time profiler, the throughput–power curve and its concave hull
//! * [`plan`]: planning of one job and of several, reasons for a plan's decisions, and the choice whether to keep a
//!   plan
//! * [`cap`]: allocation of a node's power cap to its GPUs: limits are lowered before others are raised
//! * [`bandit`]: the batch size of a recurring job's next run, and the state of the trials of batch sizes
//! * [`ledger`]: energy meters, closed intervals in millijoules, their hash chain, hourly emissions and the versions of
//!   these, and the comparison of a job with the same work at the maximum usable limit

pub mod bandit;
pub mod cap;
pub mod domain;
pub mod forecast;
pub mod identity;
pub mod ledger;
pub mod plan;
pub mod profile;
pub mod time;
pub mod units;
