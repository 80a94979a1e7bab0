//! Zeus's trace files: power of a training workload at each power limit, numbers of epochs that training runs took, and
//! submissions of jobs.

mod file;
mod power;
mod rows;
mod submissions;
mod train;

pub use file::{TraceError, TraceFile};
pub use power::{Epoch, PowerRow, Workload, power_profile, power_rows};
pub(crate) use power::{chosen_optimizer, distinct};
pub use rows::TrainingKey;
pub use submissions::{Submission, submissions};
pub use train::{TrainRow, train_rows};
