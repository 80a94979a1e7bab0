//! Zeus's trace files: power of a workload at each power limit, number of epochs that training takes, and submissions
//! of jobs.

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
