//! The files of the directory: noticing that one changed, rewriting one whole, locking, and the write log.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::{
    board::Board,
    state::{State, machine_ns, unix_ns},
};

/// File times move in kernel ticks of up to 10 ms, so a file read this soon after a write may have been written
/// again without its stamp telling.
const TICK_NS: i128 = 20_000_000;

/// What tells one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    mtime_ns: i128,
    inode: u64,
    size: u64,
}

impl Stamp {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(Self {
            mtime_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
            inode: meta.ino(),
            size: meta.len(),
        })
    }

    /// Whether the stamp alone will tell the next change from what is read now.
    pub(crate) fn tells(&self) -> bool {
        (i128::from(machine_ns()) - self.mtime_ns).abs() > TICK_NS
    }
}

/// One board's state file and what was last read from it.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// The stamp and whether it told at the time of reading.
    seen: Option<(Stamp, bool, State)>,
}

impl StateFile {
    pub(crate) fn new(dir: &Path, uuid: &str) -> Self {
        Self { path: dir.join("state").join(format!("{uuid}.txt")), seen: None }
    }

    /// The state on file, read again only if the file changed; `None` while there is no file.
    pub(crate) fn load(&mut self, board: &Board) -> Option<State> {
        let stamp = Stamp::of(&self.path).ok()?;
        if let Some((seen, told, state)) = self.seen
            && seen == stamp
            && told
        {
            return Some(state);
        }
        let told = stamp.tells();
        let text = fs::read_to_string(&self.path).ok()?;
        let state = State::parse(&text, State::fresh(board, unix_ns()));
        self.seen = Some((stamp, told, state));
        Some(state)
    }

    /// Replaces the file in one step, so that a reader or a kill never meets half of it.
    pub(crate) fn save(&mut self, state: State) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, state.text())?;
        fs::rename(&new, &self.path)?;
        self.seen = Some((Stamp::of(&self.path)?, false, state));
        Ok(())
    }
}

/// The lock over the state files. The kernel frees it when its holder dies.
#[derive(Debug, Clone)]
pub(crate) struct StateLock(Arc<File>);

impl StateLock {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        open_lock(&dir.join("lock")).map(|file| Self(Arc::new(file)))
    }

    /// For a reader that needs a moment at which nobody is writing.
    pub(crate) fn shared(&self) -> io::Result<Held> {
        uninterrupted(|| self.0.lock_shared())?;
        Ok(Held(Arc::clone(&self.0)))
    }

    /// For a writer. Not to be taken while already held: the inner release would end the outer hold.
    pub(crate) fn exclusive(&self) -> io::Result<Held> {
        uninterrupted(|| self.0.lock())?;
        Ok(Held(Arc::clone(&self.0)))
    }
}

/// A hold of the lock, given back on drop.
#[derive(Debug)]
pub(crate) struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        // The kernel gives it back with the process in any case.
        let _ = self.0.unlock();
    }
}

/// A file that every process with the library open holds shared: whoever gets it alone is the only one.
#[derive(Debug)]
pub(crate) struct Clients(File);

impl Clients {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        open_lock(&dir.join("clients")).map(Self)
    }

    /// Whether no other process is in. Call it under the exclusive state lock, and only while not in.
    pub(crate) fn none_in(&self) -> bool {
        let alone = self.0.try_lock().is_ok();
        if alone {
            let _ = self.0.unlock();
        }
        alone
    }

    pub(crate) fn enter(&self) -> io::Result<()> {
        uninterrupted(|| self.0.lock_shared())
    }

    pub(crate) fn leave(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

/// Waits on through signals, which the process under test is free to catch.
fn uninterrupted(wait: impl Fn() -> io::Result<()>) -> io::Result<()> {
    loop {
        match wait() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path)
}

/// Adds a line to `writes.log` with a single write(), so that lines of several processes do not mix.
pub(crate) fn log_write(dir: &Path, uuid: &str, call: &str, args: &str, code: nvmlReturn_t) {
    let ms = unix_ns() / 1_000_000;
    let line = format!("{}.{:03} pid={} {uuid} {call} {args} -> {code}\n", ms / 1000, ms % 1000, process::id());
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("writes.log"))
        .and_then(|mut log| log.write_all(line.as_bytes()));
    if let Err(e) = written {
        complain(&format!("writes.log: {e}"));
    }
}

/// Says on stderr, in one line, what the library has no return code for.
pub(crate) fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "fake NVML: {what}");
}
