//! Decision logic of wattune, without I/O. Times, readings and random generators are arguments and hardware is
//! abstract, so that the daemon, its demo and its simulators run the same code.
//!
//! # Modules, in order of dependency
//!
//! * [`units`]: [`units::Watts`], [`units::Joules`] and the others, with only the products that physics has
//! * [`time`]: moments, and readings of a duration clock
//! * [`domain`]: the nouns that all share, such as [`domain::PowerLimit`] and [`domain::Forecast`]
//! * [`forecast`]: a gapless horizon to plan over, and how far a source is to be believed
//! * [`profile`]: the just-in-time profiler, the curve of throughput over power, its concave hull
//! * [`plan`]: the problem, its optimum, the same as a linear programme, the receding horizon, reasons
//! * [`cap`]: how a node's cap is allocated to its GPUs: limits are lowered before others are raised
//! * [`bandit`]: which batch size a recurring job's next run takes, and the life of its trials
//! * [`ledger`]: meters, closed intervals in whole millijoules, the chain over them, what hours emitted and in which
//!   version, the comparison with the ceiling

pub mod bandit;
pub mod cap;
pub mod domain;
pub mod forecast;
pub mod ledger;
pub mod plan;
pub mod profile;
pub mod time;
pub mod units;
