//! The connection that all about recurring jobs goes through, and one beside it that empties the log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Mutex;

use crate::store::StoreError;

/// After so many changes what they wrote, some three pages each, is brought from the log into the database. SQLite's own
/// thousand pages, at which the control loop's commits would do it, are then seldom reached.
const CHANGES: u32 = 256;
/// At so many pages, 64 MiB, whoever commits does it: where changes come without a gap the log is never empty, and grows.
const LONGEST_LOG: u32 = 16_384;

/// One connection: requests about recurring jobs queue up for it, and never for those of the control loop. `None` once
/// the store is closed.
#[derive(Clone, Debug)]
pub(in crate::store) struct Desk {
    db: Arc<Mutex<Option<Connection>>>,
    log: Arc<Mutex<Option<Connection>>>,
    changes: Arc<AtomicU32>,
}

impl Desk {
    /// To a database that is there and migrated.
    pub(in crate::store) fn open(path: &Path) -> rusqlite::Result<Self> {
        let connect = || {
            let db = Connection::open(path)?;
            db.busy_timeout(Duration::from_secs(2))?;
            db.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
            Ok::<_, rusqlite::Error>(db)
        };
        let (db, log) = (connect()?, connect()?);
        db.pragma_update(None, "wal_autocheckpoint", LONGEST_LOG)?;
        Ok(Self::of(Some(db), Some(log)))
    }

    /// Without a connection: for whoever only reads, and nothing of recurring jobs.
    pub(in crate::store) fn absent() -> Self {
        Self::of(None, None)
    }

    fn of(db: Option<Connection>, log: Option<Connection>) -> Self {
        Self { db: Arc::new(Mutex::new(db)), log: Arc::new(Mutex::new(log)), changes: Arc::default() }
    }

    pub(in crate::store) async fn close(&self) {
        drop(self.db.lock().await.take());
        drop(self.log.lock().await.take());
    }

    /// Does this on the thread that asks. To hand it to another one means to wait until that one is given a processor: on
    /// a busy machine that was nearly all of what the slowest requests took, ten times the work itself. Another thread
    /// takes the runtime's other tasks over, should this one wait for the disk or for another writer. Once begun, the work
    /// comes to its end, whether or not anybody still waits for the answer.
    pub(super) async fn read<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let mut db = self.db.lock().await;
        let db = db.as_mut().ok_or(StoreError::Closed)?;
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(|| work(db)),
            // There is nobody to take over.
            _ => work(db),
        }
    }

    /// The same for what writes.
    pub(super) async fn write<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let done = self.read(work).await;
        if self.changes.fetch_add(1, Ordering::Relaxed) + 1 >= CHANGES {
            self.empty_log();
        }
        done
    }

    /// Begins to bring what was written from the log into the database, unless that is under way. That takes two syncs and
    /// all their writes: tens of milliseconds, in which others read and write as ever.
    fn empty_log(&self) {
        let Ok(log) = Arc::clone(&self.log).try_lock_owned() else { return };
        self.changes.store(0, Ordering::Relaxed);
        tokio::task::spawn_blocking(move || {
            let Some(log) = log.as_ref() else { return };
            if let Err(error) = log.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
                tracing::warn!("the database's log could not be emptied: {error}");
            }
        });
    }
}
