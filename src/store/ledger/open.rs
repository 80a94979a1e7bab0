//! What is open: intervals as they would be closed now, kept for the next start in case that this daemon is killed.
//!
//! Rows of the books are written once, so that an interval that is still open cannot be among them. It is kept beside
//! them, and goes in the transaction that books the interval: after a kill either of the two is there, never both.

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

/// An open interval as it would be closed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenBooks {
    /// Of which device.
    pub device: DeviceId,
    /// Up to when its energy is known.
    pub until: DateTime<Utc>,
    /// Its rows.
    pub intervals: Vec<Interval>,
    /// The counter that they reach up to, of a device that has one.
    pub checkpoint: Option<Checkpoint>,
    /// The time in it of which nothing tells how much was used, if there is one.
    pub lost: Option<Lost>,
}

/// When a daemon was seen last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastSeen {
    /// When that was.
    pub at: DateTime<Utc>,
    /// The start of the machine in which that was.
    pub boot_id: String,
    /// How long the machine had run by then, where that can be told: the wall clock may be set before the next daemon.
    pub uptime: Option<Seconds>,
    /// How long each open job's lease lasted without a further word.
    pub leases: BTreeMap<JobId, Seconds>,
}

/// What was left open, and until when each device's energy was known.
#[derive(Debug, Default)]
pub struct TakenUp {
    /// When the last daemon was seen last.
    pub last_seen: Option<LastSeen>,
    /// Up to when each device's energy is known that had an open interval.
    pub known_until: BTreeMap<DeviceId, DateTime<Utc>>,
}

impl Store {
    /// Keeps what is open, with the progress of jobs that have reported, in place of what was kept before.
    ///
    /// # Errors
    /// If the transaction fails; then what was kept before stays.
    pub async fn keep_open(
        &self,
        open: &[OpenBooks],
        last_seen: &LastSeen,
        progress: &[(JobId, StoredProgress)],
    ) -> Result<(), StoreError> {
        let lines = open.iter().map(|books| Ok((books.device.clone(), rows::json(books)?)));
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

    /// Books what the last daemon left open, and tells when it was seen last. What cannot be read is left out: counters
    /// still know it.
    ///
    /// # Errors
    /// If it cannot be read or written; then it stays for the next start.
    pub async fn take_up_open(&self) -> Result<TakenUp, StoreError> {
        let mut taken = TakenUp::default();
        let last_seen = "SELECT line FROM last_seen";
        let last_seen: Option<String> = self.read.run(move |db| rows::optional(db, last_seen, [], rows::first)).await?;
        taken.last_seen = last_seen.and_then(|line| readable("the time of the last daemon", &line));
        let found = "SELECT line FROM open_books ORDER BY device";
        let found: Vec<String> = self.read.run(move |db| rows::all(db, found, [], rows::first)).await?;
        let (mut intervals, mut checkpoints) = (Vec::new(), Vec::new());
        for line in &found {
            let Some(books) = readable::<OpenBooks>("an open interval", line) else { continue };
            // Before the checkpoint moves: what it hides is found only once.
            if let Some(lost) = books.lost {
                self.note(&Entry::Lost(lost)).await?;
            }
            taken.known_until.insert(books.device, books.until);
            intervals.extend(books.intervals);
            checkpoints.extend(books.checkpoint);
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
    read.inspect_err(|error| {
        tracing::error!("{what} that the last daemon left cannot be read and is left out: {error}")
    })
    .ok()
}

/// Drops what was kept of intervals that are booked now.
pub(super) fn drop_open(tx: &Connection, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
    let devices = intervals.iter().map(|row| &row.device).chain(checkpoints.iter().map(|point| &point.device));
    for device in devices.collect::<BTreeSet<_>>() {
        rows::execute(tx, "DELETE FROM open_books WHERE device = ?1", [device.as_str()])?;
    }
    Ok(())
}
