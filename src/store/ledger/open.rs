//! Open intervals as they would be closed now, stored for the next start in case this daemon is killed.
//!
//! Rows of the ledger are written once, so that an open interval cannot be one of them. It is stored separately and
//! deleted in the transaction that records the interval: after a kill exactly one of the two exists.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::store::connection::writing;
use crate::store::{Checkpoint, Store, StoreError, StoredProgress, rows};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::Interval;
use wattune_core::ledger::entry::{Entry, Lost};
use wattune_core::units::Seconds;

/// An open interval as it would be closed at the time of its storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenIntervalRecord {
    /// Device that the interval is of.
    pub device: DeviceId,
    /// Time up to which the energy of the interval is known.
    pub until: DateTime<Utc>,
    /// Rows that closing the interval would append to the ledger.
    pub intervals: Vec<Interval>,
    /// Checkpoint with the counter reading that these rows reach, for a device with a counter.
    pub checkpoint: Option<Checkpoint>,
    /// Time with unknown energy, if there is one.
    pub lost: Option<Lost>,
}

/// Last sign of life of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastSeen {
    /// Time of the last sign of life.
    pub at: DateTime<Utc>,
    /// Id of the machine's boot, which changes when the machine restarts.
    pub boot_id: String,
    /// Uptime of the machine, if known: the wall clock may be set before the next start.
    pub uptime: Option<Seconds>,
    /// Remaining time of each open job's lease.
    pub leases: BTreeMap<JobId, Seconds>,
}

/// State that the last daemon left.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// Last sign of life of the last daemon.
    pub last_seen: Option<LastSeen>,
    /// Time up to which the energy of each device with an open interval is known.
    pub known_until: BTreeMap<DeviceId, DateTime<Utc>>,
}

impl Store {
    /// Stores open intervals, with the progress of jobs that have reported, in place of the previous ones.
    pub async fn store_open_intervals(
        &self,
        open: &[OpenIntervalRecord],
        last_seen: &LastSeen,
        progress: &[(JobId, StoredProgress)],
    ) -> Result<(), StoreError> {
        let lines = open.iter().map(|interval| Ok((interval.device.clone(), rows::json(interval)?)));
        let lines: Vec<(DeviceId, String)> = lines.collect::<Result<_, StoreError>>()?;
        let last_seen = rows::json(last_seen)?;
        let progress = progress.iter().map(|(id, progress)| Ok((id.clone(), rows::json(progress)?)));
        let progress: Vec<(JobId, String)> = progress.collect::<Result<_, StoreError>>()?;
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            let sql =
                "INSERT INTO open_books (device, line) VALUES (?1, ?2) ON CONFLICT (device) DO UPDATE SET line = ?2";
            for (device, line) in &lines {
                rows::execute(&tx, sql, [device.as_str(), line])?;
            }
            let sql = "INSERT INTO last_seen (one, line) VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET line = ?1";
            rows::execute(&tx, sql, [last_seen])?;
            for (job, progress) in &progress {
                let sql = "UPDATE jobs SET progress = ?2 WHERE id = ?1 AND ended_us IS NULL";
                rows::execute(&tx, sql, [job.as_str(), progress])?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// Records the intervals that the last daemon left open, and returns its last sign of life. Unreadable intervals
    /// are omitted: the counters still have their energy.
    ///
    /// # Errors
    ///
    /// If the database cannot be read or written; then the open intervals stay for the next start.
    pub async fn recover_open_intervals(&self) -> Result<RecoveredState, StoreError> {
        let mut taken = RecoveredState::default();
        let last_seen = "SELECT line FROM last_seen";
        let last_seen: Option<String> = self.read.run(move |db| rows::optional(db, last_seen, [], rows::first)).await?;
        taken.last_seen = last_seen.and_then(|line| readable("last sign of life", &line));
        let found = "SELECT line FROM open_books ORDER BY device";
        let found: Vec<String> = self.read.run(move |db| rows::all(db, found, [], rows::first)).await?;
        let (mut intervals, mut checkpoints) = (Vec::new(), Vec::new());
        for line in &found {
            let Some(interval) = readable::<OpenIntervalRecord>("open interval", line) else { continue };
            // Record the loss before the checkpoint moves: afterwards it cannot be detected again.
            if let Some(lost) = interval.lost {
                self.append_entry(&Entry::Lost(lost)).await?;
            }
            taken.known_until.insert(interval.device, interval.until);
            intervals.extend(interval.intervals);
            checkpoints.extend(interval.checkpoint);
        }
        if !intervals.is_empty() || !checkpoints.is_empty() {
            self.append(&intervals, &checkpoints).await?;
        }
        if !found.is_empty() {
            self.write.run(|db| rows::execute(db, "DELETE FROM open_books", [])).await?;
        }
        Ok(taken)
    }
}

fn readable<T: serde::de::DeserializeOwned>(what: &str, line: &str) -> Option<T> {
    let read = serde_json::from_str(line);
    read.inspect_err(|error| tracing::error!(what, %error, "unreadable state of the last daemon was ignored")).ok()
}

/// Deletes stored open intervals that are recorded now.
pub(super) fn drop_open(tx: &Connection, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
    let devices = intervals.iter().map(|row| &row.device).chain(checkpoints.iter().map(|point| &point.device));
    for device in devices.collect::<BTreeSet<_>>() {
        rows::execute(tx, "DELETE FROM open_books WHERE device = ?1", [device.as_str()])?;
    }
    Ok(())
}
