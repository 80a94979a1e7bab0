//! Connection for recurring jobs, and a second one that copies the write-ahead log into the database (SQLite's
//! checkpoint).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Mutex;

use super::outlines::Outlines;
use crate::blocking;
use crate::store::StoreError;

/// Number of changes, of about three pages each, after which the connection [`RecurringConnection::log`] copies
/// SQLite's write-ahead log into the database. The log then seldom reaches the thousand pages at which SQLite makes a
/// commit of the control loop copy it.
const CHANGES: u32 = 256;
/// Size of SQLite's write-ahead log, in pages (64 MiB), at which a commit on [`RecurringConnection::db`] copies the log
/// into the database. Usually [`RecurringConnection::log`] does that, but while changes follow one another without a
/// pause, it never empties the log, and the log would grow without end.
const LONGEST_LOG: u32 = 16_384;

/// Connection for requests about recurring jobs, which queue for it and never wait behind requests of the control loop.
/// `db` runs the requests, with the outlines of recurring jobs that it has read; `log` only copies the write-ahead log
/// into the database. Both are `None` once the store is closed.
#[derive(Clone, Debug)]
pub(in crate::store) struct RecurringConnection {
    db: Arc<Mutex<Option<(Connection, Outlines)>>>,
    log: Arc<Mutex<Option<Connection>>>,
    changes: Arc<AtomicU32>,
}

impl RecurringConnection {
    /// Connects to a database that exists and is migrated.
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

    /// Returns a closed connection, for read-only stores, which have no recurring jobs.
    pub(in crate::store) fn absent() -> Self {
        Self::of(None, None)
    }

    fn of(db: Option<Connection>, log: Option<Connection>) -> Self {
        let db = db.map(|db| (db, Outlines::default()));
        Self { db: Arc::new(Mutex::new(db)), log: Arc::new(Mutex::new(log)), changes: Arc::default() }
    }

    pub(in crate::store) async fn close(&self) {
        drop(self.db.lock().await.take());
        drop(self.log.lock().await.take());
    }

    /// Runs `work`, which only reads.
    pub(super) async fn read<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.run(|db, _| work(db)).await
    }

    /// Runs `work`, which only reads, and may use and keep outlines.
    pub(super) async fn read_outline<T>(
        &self,
        work: impl FnOnce(&mut Connection, &mut Outlines) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.run(work).await
    }

    /// Runs `work`, which writes, and removes all outlines from memory.
    pub(super) async fn write<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let done = self.run(|db, outlines| {
            outlines.clear();
            work(db)
        });
        self.count_change(done.await)
    }

    /// Runs `work`, which takes an outline, writes its changes, and puts it back.
    pub(super) async fn write_outline<T>(
        &self,
        work: impl FnOnce(&mut Connection, &mut Outlines) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.count_change(self.run(work).await)
    }

    /// Runs `work` on the calling thread. Sending `work` to another thread would add a wait for a processor: on a busy
    /// machine, in the slowest requests, that wait took ten times as long as the work itself. If the calling thread
    /// blocks on the disk or on another writer, a further thread takes over the runtime's other tasks. Once begun,
    /// `work` completes even if the caller no longer waits.
    async fn run<T>(
        &self,
        work: impl FnOnce(&mut Connection, &mut Outlines) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let mut db = self.db.lock().await;
        let (db, outlines) = db.as_mut().ok_or(StoreError::Closed)?;
        blocking::in_place(|| work(db, outlines))
    }

    /// Starts to empty the log after every [`CHANGES`] calls.
    fn count_change<T>(&self, done: T) -> T {
        if self.changes.fetch_add(1, Ordering::Relaxed) + 1 >= CHANGES {
            self.empty_log();
        }
        done
    }

    /// Starts to copy the write-ahead log into the database, unless a copy is in progress. The copy takes tens of
    /// milliseconds, for its writes and two syncs, while other connections can read and write.
    fn empty_log(&self) {
        let Ok(log) = Arc::clone(&self.log).try_lock_owned() else { return };
        self.changes.store(0, Ordering::Relaxed);
        tokio::task::spawn_blocking(move || {
            let Some(log) = log.as_ref() else { return };
            if let Err(error) = log.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
                tracing::warn!(%error, "cannot copy SQLite's write-ahead log into the database");
            }
        });
    }
}
