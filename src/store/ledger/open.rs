//! Open intervals of energy as they would be closed now, stored for the next start in case this daemon is killed.
//!
//! Rows of the ledger are written once, so that an interval that still grows cannot be one of them. An open interval is
//! stored in a table of its own, and deleted in the transaction that appends its rows to the ledger: after a kill,
//! either the open interval exists or its rows, never both.

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

/// An open interval as it would be closed at the time when it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenIntervalRecord {
    /// Device whose energy the interval contains.
    pub device: DeviceId,
    /// Time up to which the energy of the interval is known.
    pub until: DateTime<Utc>,
    /// Rows that closing the interval would append to the ledger.
    pub intervals: Vec<Interval>,
    /// Reading of the device's energy counter up to which these rows contain the energy; `None` for a device without a
    /// counter.
    pub checkpoint: Option<Checkpoint>,
    /// Time in which the device's energy is unknown, if there is one.
    pub lost: Option<Lost>,
}

/// Last sign of life of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastSeen {
    /// Time of the daemon's last checkpoint.
    pub at: DateTime<Utc>,
    /// Id of the machine's boot, which changes when the machine restarts.
    pub boot_id: String,
    /// Uptime of the machine at that time, if known: it shows how long the daemon was away even if the wall clock is
    /// set meanwhile.
    pub uptime: Option<Seconds>,
    /// Remaining time of each open job's lease (longest silence before a job counts as dead).
    pub leases: BTreeMap<JobId, Seconds>,
}

/// State that the last daemon left.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// Last sign of life of the last daemon; `None` if it left none that is readable.
    pub last_seen: Option<LastSeen>,
    /// Time up to which the energy of a device is known, for each device with an open interval.
    pub known_until: BTreeMap<DeviceId, DateTime<Utc>>,
}

impl Store {
    /// Stores open intervals, the daemon's sign of life, and the progress of jobs that have reported, all in place of
    /// what was stored before.
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

    /// Appends the intervals that the last daemon left open to the ledger, and returns the state that it left.
    /// Unreadable intervals are omitted: the next readings of the energy counters include their energy.
    ///
    /// # Errors
    ///
    /// If the database cannot be read or written; then the open intervals stay for the next start.
    pub async fn recover_open_intervals(&self) -> Result<RecoveredState, StoreError> {
        let mut taken = RecoveredState::default();
        let last_seen = "SELECT line FROM last_seen";
        let last_seen: Option<String> =
            self.short_reads.run(move |db| rows::optional(db, last_seen, [], rows::first)).await?;
        taken.last_seen = last_seen.and_then(|line| readable("last sign of life", &line));
        let found = "SELECT line FROM open_books ORDER BY device";
        let found: Vec<String> = self.short_reads.run(move |db| rows::all(db, found, [], rows::first)).await?;
        let (mut intervals, mut checkpoints) = (Vec::new(), Vec::new());
        for line in &found {
            let Some(interval) = readable::<OpenIntervalRecord>("open interval", line) else { continue };
            // Record the unknown energy before the checkpoint moves: afterwards it cannot be detected again.
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
    read.inspect_err(|error| tracing::error!(what, %error, "ignoring unreadable state that the previous daemon stored"))
        .ok()
}

/// Deletes the stored open interval of each device whose intervals or checkpoint (counter reading up to which energy is
/// recorded) are in the ledger now.
pub(super) fn drop_open(tx: &Connection, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
    let devices = intervals.iter().map(|row| &row.device).chain(checkpoints.iter().map(|point| &point.device));
    for device in devices.collect::<BTreeSet<_>>() {
        rows::execute(tx, "DELETE FROM open_books WHERE device = ?1", [device.as_str()])?;
    }
    Ok(())
}
