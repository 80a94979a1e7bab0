//! Persistent state: SQLite in the state directory. Only this module converts rows to domain types.
//!
//! Every method returns a [`StoreError`] if the database fails. Each write is one transaction: if a write fails, the
//! database stays as it was.
//!
//! Intervals of energy and carbon intensities are append-only, except that a correction changes who an interval's
//! energy belongs to and a roll-up replaces old intervals by hourly sums. A device's checkpoint (the energy-counter
//! reading up to which energy is recorded) changes in the same transaction as the intervals that it covers, so that a
//! crash neither loses nor duplicates energy.
//!
//! One connection writes and others read concurrently, each on its own thread (`connection.rs`). Requests about
//! recurring jobs (jobs that run again and again with varying batch sizes) use connections of their own and run on the
//! calling thread (`recurring/connection.rs`).

mod audit;
mod connection;
mod database;
mod days;
mod error;
mod events;
mod jobs;
mod known_runs;
mod ledger;
mod migrate;
mod open;
mod presence;
mod profiles;
mod recurring;
mod rows;
mod signals;

pub use audit::{AuditAction, AuditLog, AuditOutcome, AuditPage, AuditQuery, AuditRecord, AuditState, DAEMON};
pub use database::{FILE_NAME, Store};
pub use error::StoreError;
pub use jobs::{LastReport, ReportSummary, StoredFirstPlan, StoredJob, StoredProgress};
pub use known_runs::KnownRun;
pub use ledger::{
    Checkpoint, CorrectionError, CorrectionRequest, CorrectionResult, LastSeen, LedgerPage, LedgerRow,
    OpenIntervalRecord, RecoveredState, SettledTotal,
};
pub use presence::{Absence, ChosenStart, ExpectedSaving, Presence};
pub use recurring::{Created, FullRuns, ListedRecurring, Page, StoredRecurring, UsersOfRecurring};
pub use wattune_core::ledger::due::DueReason;
pub use wattune_core::ledger::hour::SettlementInput;
pub use wattune_core::ledger::sources::SourceKey;

#[cfg(test)]
mod tests;
