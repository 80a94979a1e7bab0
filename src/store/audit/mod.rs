//! The audit log: a record of each control action, appended and never changed.
//!
//! Control never waits for the disk. Records wait in a queue in memory, which the thread of the writing connection
//! empties: after each tick of the control loop, before the log is read, and when the store is closed. A daemon that is
//! killed loses the records of its last tick. The queue is bounded; records that do not fit are counted, and the log
//! says how many there were.

mod log;
mod record;

pub use log::{AuditLog, AuditPage, AuditQuery};
pub use record::{AuditAction, AuditOutcome, AuditRecord, AuditState, DAEMON};

pub(super) use log::{KEPT_DAYS, expire};

#[cfg(test)]
mod tests;
