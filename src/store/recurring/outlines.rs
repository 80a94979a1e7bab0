//! Recurring jobs that recent requests used, in memory, so that each request need not read all trials of its job.

use std::collections::HashMap;

use rusqlite::Connection;

use super::trials::{StoredRecurring, load, outline};
use crate::store::StoreError;
use wattune_core::domain::JobName;

/// Maximum number of ended trials in memory, of all recurring jobs together: about 5 MB.
const MAX_TRIALS: usize = 65_536;
/// Maximum number of recurring jobs in memory.
const MAX_JOBS: usize = 1024;

/// Outlines of recurring jobs: their running trials with all data, and of the ended trials the data that policies need.
///
/// The database remains the only place where data are kept. An outline in memory is used only if no other connection
/// has changed the database since it was read. The owner of this connection must [clear](Self::clear) the outlines
/// whenever it changes recurring jobs in another way than by [`Self::take`] and [`Self::put`].
#[derive(Debug, Default)]
pub(super) struct Outlines {
    /// SQLite's `data_version` at which the outlines were read: it changes with the changes of other connections.
    version: i64,
    /// Row identifier and outline of each recurring job.
    jobs: HashMap<JobName, (i64, StoredRecurring)>,
    /// Number of ended trials in `jobs`.
    trials: usize,
}

impl Outlines {
    /// Returns the row identifier and the outline of a recurring job, which is no longer in memory then; `None` if there
    /// is no such job. Must be called in a transaction on `db`, which keeps the answer valid to its end.
    pub(super) fn take(
        &mut self,
        db: &Connection,
        name: &JobName,
    ) -> Result<Option<(i64, StoredRecurring)>, StoreError> {
        let version = db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.version {
            self.clear();
            self.version = version;
        }
        let Some(known) = self.jobs.remove(name) else { return load(db, name.clone(), outline) };
        self.trials -= known.1.job.past_trials.len();
        Ok(Some(known))
    }

    /// Keeps the outline of a recurring job in memory. Must be called after the transaction of [`Self::take`] has stored
    /// all changes to `stored`.
    pub(super) fn put(&mut self, id: i64, mut stored: StoredRecurring) {
        stored.job.forget_ended();
        let trials = stored.job.past_trials.len();
        if self.trials + trials > MAX_TRIALS || self.jobs.len() >= MAX_JOBS {
            self.clear();
        }
        if trials <= MAX_TRIALS {
            self.trials += trials;
            self.jobs.insert(stored.name.clone(), (id, stored));
        }
    }

    /// Removes all outlines from memory.
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.trials = 0;
    }
}
