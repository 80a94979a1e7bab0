//! Tables of the energy ledger. A row is a closed interval of energy; the rows of about an hour form a block. An entry
//! is any other record, such as a settlement: the emissions of an hour, which a later version may replace. Rows and
//! entries are appended with their digests, and derived tables (sums and states that reports read) are updated in the
//! same transaction.

mod base_tables;
mod blocks;
mod chain;
mod changes;
mod checkpoints;
mod correct;
mod derived_tables;
mod export;
mod intervals;
mod lines;
mod open;
mod open_block;
mod page;
mod report;
mod restated;
mod roll_up;
mod settlements;
mod totals;

pub use checkpoints::Checkpoint;
pub use correct::{CorrectionError, CorrectionRequest, CorrectionResult};
pub use open::{LastSeen, OpenIntervalRecord, RecoveredState};
pub use page::{LedgerPage, LedgerRow};
pub use totals::SettledTotal;

pub(super) use chain::append_entry;
pub(super) use changes::{cover_old_rows, reset_checkpoint_digests};

#[cfg(test)]
mod tests;
