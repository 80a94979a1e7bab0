//! Database connections, each on its own thread, because SQLite blocks and the runtime's threads must not.
//!
//! A caller sends a closure and waits for its result. Rows are read and converted to domain types on the connection's
//! thread, so that one message is sent each way, regardless of the number of rows.

use std::any::Any;
use std::cell::Cell;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::StoreError;

/// Number of prepared statements that each connection caches, which is more than the store uses.
const STATEMENTS: usize = 128;

type Open = dyn Fn() -> Result<Connection, StoreError> + Send + Sync;

/// Time that a write waits for a lock that another process holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// Waits a quarter of a second at the first locked write; later writes do not wait until one of them has succeeded.
    /// For callers that retry by themselves and must not block others.
    Once,
    /// Waits at most this duration for the write lock, at each write.
    UpTo(Duration),
}

const WAIT_STEP: Duration = Duration::from_millis(5);
/// Number of attempts to get the lock with [`Wait::Once`].
const WAIT_STEPS: i32 = 50;

thread_local! {
    /// True if this thread's connection has waited for a lock in vain and has not written anything since.
    static GAVE_UP: Cell<bool> = const { Cell::new(false) };
}

/// Decides, as SQLite's busy handler for [`Wait::Once`], whether to try again to get a lock after `attempt` failed
/// attempts. Before it returns true, it sleeps for one step.
fn wait_once(attempt: i32) -> bool {
    let waits = !GAVE_UP.get() && attempt < WAIT_STEPS;
    match waits {
        true => std::thread::sleep(WAIT_STEP),
        false => GAVE_UP.set(true),
    }
    waits
}

enum Request {
    /// Work for the connection's thread; it sends its result to the caller itself.
    Work(Box<dyn FnOnce(&mut LazyConnection) + Send>),
    /// Close the connection, send a message, and end the thread.
    Close(oneshot::Sender<()>),
}

/// A connection that is opened when work first needs it. If opening fails, the next work tries again.
struct LazyConnection {
    open: Arc<Open>,
    connection: Option<(Connection, Option<OpenedFile>)>,
}

impl LazyConnection {
    fn get(&mut self) -> Result<&mut Connection, StoreError> {
        if self.connection.is_none() {
            let connection = (self.open)()?;
            let file = OpenedFile::of(&connection);
            self.connection = Some((connection, file));
        }
        match &mut self.connection {
            Some((_, Some(file))) if !file.is_in_place() => {
                Err(StoreError::Removed { path: file.path.display().to_string() })
            }
            Some((connection, _)) => Ok(connection),
            None => Err(StoreError::Closed),
        }
    }

    fn changes(&self) -> u64 {
        self.connection.as_ref().map_or(0, |(connection, _)| connection.total_changes())
    }
}

/// Identity of the file that a connection has open. SQLite continues to write to a file that was removed or replaced,
/// and those writes are lost.
struct OpenedFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl OpenedFile {
    /// Returns the connection's file; `None` for a database in memory, or if the file's metadata cannot be read.
    fn of(connection: &Connection) -> Option<Self> {
        let path = PathBuf::from(connection.path().filter(|path| !path.is_empty())?);
        let metadata = std::fs::metadata(&path).ok()?;
        Some(Self { path, device: metadata.dev(), inode: metadata.ino() })
    }

    /// Returns whether the path still leads to the file that was opened.
    fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
    }
}

/// A pool of threads with one connection each, which process work from a common queue in order.
#[derive(Clone)]
pub(super) struct ConnectionPool {
    requests: mpsc::Sender<Request>,
    threads: usize,
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl ConnectionPool {
    /// Starts `threads` threads with this name (at most 15 bytes), whose connections `open` opens. The threads end when
    /// the last clone of the pool is dropped.
    pub(super) fn start(
        name: &str,
        threads: usize,
        open: impl Fn() -> Result<Connection, StoreError> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::channel();
        let (queue, open): (_, Arc<Open>) = (Arc::new(Mutex::new(queue)), Arc::new(open));
        for _ in 0..threads {
            let (queue, open) = (Arc::clone(&queue), Arc::clone(&open));
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                serve(&queue, LazyConnection { open, connection: None });
            })?;
        }
        Ok(Self { requests, threads })
    }

    /// Runs `work` on one of the connections. If the caller is dropped, pending work is discarded, but work in progress
    /// completes. A panic in `work` propagates to the caller.
    ///
    /// # Errors
    ///
    /// The errors of `work`; [`StoreError::Closed`] after [`Self::close`]; [`StoreError::Open`] if no connection can be
    /// opened.
    pub(super) async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        type Outcome<T> = Result<T, Box<dyn Any + Send>>;
        let (sender, result) = oneshot::channel::<Outcome<Result<T, E>>>();
        let request = move |connection: &mut LazyConnection| {
            if sender.is_closed() {
                return;
            }
            // A transaction that a panic leaves open is rolled back as the stack unwinds.
            let outcome = catch_unwind(AssertUnwindSafe(|| work(connection.get()?)));
            // Fails if the caller no longer waits.
            let _ = sender.send(outcome);
        };
        self.requests.send(Request::Work(Box::new(request))).map_err(|_| StoreError::Closed)?;
        match result.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(StoreError::Closed.into()),
        }
    }

    /// Queues `work` and does not wait for it; it gets a connection, or the reason why there is none. After
    /// [`Self::close`] the work is dropped.
    pub(super) fn submit(&self, work: impl FnOnce(Result<&mut Connection, StoreError>) + Send + 'static) {
        // A panic must not end the connection's thread.
        let request = move |connection: &mut LazyConnection| {
            drop(catch_unwind(AssertUnwindSafe(|| work(connection.get()))));
        };
        drop(self.requests.send(Request::Work(Box::new(request))));
    }

    /// Waits for all pending work, and closes the connections.
    pub(super) async fn close(&self) {
        let closing: Vec<_> = (0..self.threads)
            .filter_map(|_| {
                let (sender, closed) = oneshot::channel();
                self.requests.send(Request::Close(sender)).ok().map(|()| closed)
            })
            .collect();
        for closed in closing {
            // Fails if the thread has ended, and with it its connection.
            let _ = closed.await;
        }
    }
}

fn serve(queue: &Mutex<mpsc::Receiver<Request>>, mut connection: LazyConnection) {
    loop {
        // The queue stays locked while this thread waits for a request, but not while it works.
        let request = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match request {
            Ok(Request::Work(work)) => {
                let before = connection.changes();
                work(&mut connection);
                if connection.changes() != before {
                    GAVE_UP.set(false);
                }
            }
            Ok(Request::Close(sender)) => {
                drop(connection);
                let _ = sender.send(());
                return;
            }
            Err(mpsc::RecvError) => return,
        }
    }
}

/// Opens the database for reading and writing, in WAL mode.
pub(super) fn open_to_write(path: &Path, wait: Wait) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let busy = match wait {
        Wait::Once => WAIT_STEP * WAIT_STEPS.unsigned_abs(),
        Wait::UpTo(busy) => busy,
    };
    let connection = open(path, flags, busy)?;
    if let Wait::Once = wait {
        connection.busy_handler(Some(wait_once))?;
    }
    // With NORMAL, commits survive the death of the process, but a power failure may lose the last ones.
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
    Ok(connection)
}

/// Opens an existing database read-only; waits up to `busy` for other processes' locks.
pub(super) fn open_to_read(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    open(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX, busy)
}

/// Opens a database read-only, without locks and without creating `-wal` and `-shm` files beside it. No process may
/// have the database open for writing.
pub(super) fn open_immutable(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    open(Path::new(&immutable_uri(path)), flags, busy)
}

fn open(path: &Path, flags: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Returns the SQLite URI that opens a file as immutable, with the reserved characters `?`, `#` and `%` escaped.
fn immutable_uri(path: &Path) -> OsString {
    let mut uri = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'?' | b'#' | b'%' => uri.extend(format!("%{byte:02x}").bytes()),
            other => uri.push(*other),
        }
    }
    uri.extend(b"?immutable=1");
    OsString::from_vec(uri)
}

/// Begins a transaction that takes the write lock at once, so that a second writer waits before it reads anything.
pub(super) fn writing(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> ConnectionPool {
        ConnectionPool::start("test", threads, || Ok(Connection::open_in_memory()?)).expect("starts")
    }

    async fn one(pool: &ConnectionPool) -> Result<i64, StoreError> {
        pool.run(|db| Ok(db.query_row("SELECT 1", [], |row| row.get(0))?)).await
    }

    #[tokio::test]
    async fn pending_work_completes_before_the_connections_close() {
        let pool = pool(2);
        let (sender, done) = mpsc::channel();
        let slow: Vec<_> = (0..4)
            .map(|i| {
                let (pool, sender) = (pool.clone(), sender.clone());
                tokio::spawn(async move {
                    let work = move |_: &mut Connection| {
                        std::thread::sleep(Duration::from_millis(20));
                        sender.send(i).expect("a receiver");
                        Ok::<_, StoreError>(())
                    };
                    pool.run(work).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        pool.close().await;
        assert_eq!(done.try_iter().count(), 4);
        for slow in slow {
            slow.await.expect("no panic").expect("done");
        }
        assert!(matches!(one(&pool).await, Err(StoreError::Closed)));
        pool.close().await;
    }

    #[tokio::test]
    async fn a_panic_propagates_to_the_caller_only() {
        let pool = pool(1);
        let panicking = tokio::spawn({
            let pool = pool.clone();
            async move {
                let work = |db: &mut Connection| -> Result<(), StoreError> {
                    let tx = writing(db)?;
                    tx.execute_batch("CREATE TABLE t (a)")?;
                    panic!("as tested");
                };
                pool.run(work).await
            }
        });
        assert!(panicking.await.expect_err("panics").is_panic());
        let tables = pool.run(|db| Ok::<_, StoreError>(db.table_exists(None, "t")?)).await;
        assert!(!tables.expect("read"), "it was rolled back");
    }

    #[tokio::test]
    async fn the_connection_waits_for_a_lock_once_and_again_after_a_write() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.db");
        let file = path.clone();
        let pool = ConnectionPool::start("test", 1, move || Ok(open_to_write(&file, Wait::Once)?)).expect("starts");
        let write = async |sql: &'static str| pool.run(move |db| Ok::<_, StoreError>(db.execute(sql, [])?)).await;
        // The flag shows whether the connection would wait at the first attempt.
        let waits = async || pool.run(|_| Ok::<_, StoreError>(!GAVE_UP.get())).await.expect("asked");
        write("CREATE TABLE t (a)").await.expect("made");
        let mut other = open_to_write(&path, Wait::UpTo(Duration::from_secs(5))).expect("opens");
        let lock = writing(&mut other).expect("locked");
        assert!(waits().await);
        for _ in 0..3 {
            assert!(matches!(write("INSERT INTO t VALUES (1)").await, Err(StoreError::Busy)));
            assert!(!waits().await);
        }
        lock.commit().expect("committed");
        write("INSERT INTO t VALUES (1)").await.expect("written");
        assert!(waits().await);
    }

    #[tokio::test]
    async fn abandoned_work_is_dropped_unless_it_has_begun() {
        let pool = pool(1);
        let (begun, has_begun) = oneshot::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let (sender, done) = mpsc::channel();
        let first = sender.clone();
        let running = tokio::spawn({
            let pool = pool.clone();
            async move {
                let work = move |_: &mut Connection| {
                    begun.send(()).expect("a receiver");
                    may_end.recv().expect("a message");
                    first.send("running").expect("a receiver");
                    Ok::<_, StoreError>(())
                };
                pool.run(work).await
            }
        });
        has_begun.await.expect("begun");
        let waiting = pool.run(move |_| {
            sender.send("waiting").expect("a receiver");
            Ok::<_, StoreError>(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(5), waiting).await.is_err());
        running.abort();
        end.send(()).expect("it waits");
        pool.close().await;
        assert_eq!(done.iter().collect::<Vec<_>>(), ["running"]);
    }

    #[tokio::test]
    async fn a_failed_connection_is_opened_again() {
        let failures = std::sync::atomic::AtomicU32::new(1);
        let pool = ConnectionPool::start("test", 1, move || {
            if failures.swap(0, std::sync::atomic::Ordering::Relaxed) > 0 {
                return Err(StoreError::Busy);
            }
            Ok(Connection::open_in_memory()?)
        });
        let pool = pool.expect("starts");
        assert!(matches!(one(&pool).await, Err(StoreError::Busy)));
        assert_eq!(one(&pool).await.expect("opened"), 1);
    }

    #[test]
    fn special_characters_of_a_path_are_escaped() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a?b#c%20d e.db");
        Connection::open_with_flags(&path, OpenFlags::default())
            .expect("made")
            .execute_batch("CREATE TABLE t (a)")
            .expect("made");
        let read = open_immutable(&path, Duration::ZERO).expect("opens");
        assert!(read.table_exists(None, "t").expect("read"));
        assert!(read.execute_batch("CREATE TABLE u (a)").is_err());
    }
}
