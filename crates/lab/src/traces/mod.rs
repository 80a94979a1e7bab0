//! Zeus's trace files as they are: what a workload draws at each power limit, how long training takes, and when jobs
//! were submitted.

mod file;
mod power;
mod rows;
mod submissions;
mod train;

pub use file::{TraceError, TraceFile};
pub use power::{Epoch, PowerRow, Workload, power_profile, power_rows};
pub use rows::TrainingKey;
pub use submissions::{Submission, submissions};
pub use train::{TrainRow, train_rows};
