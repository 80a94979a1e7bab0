//! The files of the directory: change detection, atomic rewrites, locks, and the write log.

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
    gpu::FakeGpu,
    state::{State, machine_ns, unix_ns},
};

/// The granularity of file times, up to 10 ms: a file read this soon after a write may have been written again with the
/// same stamp.
const TICK_NS: i128 = 20_000_000;

/// Distinguishes versions of a file.
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

    /// Returns true if the next change will certainly have another stamp.
    pub(crate) fn tells(&self) -> bool {
        (i128::from(machine_ns()) - self.mtime_ns).abs() > TICK_NS
    }
}

/// One GPU's state file and its last read content.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// The stamp, its reliability at the time of reading, and the state.
    seen: Option<(Stamp, bool, State)>,
}

impl StateFile {
    pub(crate) fn new(dir: &Path, uuid: &str) -> Self {
        Self { path: dir.join("state").join(format!("{uuid}.txt")), seen: None }
    }

    /// Returns the state on file, read again only if the file changed; `None` without a file.
    pub(crate) fn load(&mut self, gpu: &FakeGpu) -> Option<State> {
        let stamp = Stamp::of(&self.path).ok()?;
        if let Some((seen, reported, state)) = self.seen
            && seen == stamp
            && reported
        {
            return Some(state);
        }
        let reported = stamp.tells();
        let text = fs::read_to_string(&self.path).ok()?;
        let state = State::parse(&text, State::fresh(gpu, unix_ns()));
        self.seen = Some((stamp, reported, state));
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

/// The lock over the state files. The kernel releases it when its holder dies.
#[derive(Debug, Clone)]
pub(crate) struct StateLock(Arc<File>);

impl StateLock {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        open_lock(&dir.join("lock")).map(|file| Self(Arc::new(file)))
    }

    /// Takes the lock for a reader that requires a time without writers.
    pub(crate) fn shared(&self) -> io::Result<Held> {
        uninterrupted(|| self.0.lock_shared())?;
        Ok(Held(Arc::clone(&self.0)))
    }

    /// Takes the lock for a writer. It must not be held already: the inner release would end the outer hold.
    pub(crate) fn exclusive(&self) -> io::Result<Held> {
        uninterrupted(|| self.0.lock())?;
        Ok(Held(Arc::clone(&self.0)))
    }
}

/// A hold of the lock, released on drop.
#[derive(Debug)]
pub(crate) struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        // The kernel releases it with the process in any case.
        let _ = self.0.unlock();
    }
}

/// A file that every process with the library open locks shared: a process that gets it exclusively is the only one.
#[derive(Debug)]
pub(crate) struct Clients(File);

impl Clients {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        open_lock(&dir.join("clients")).map(Self)
    }

    /// Returns true if no other process has the library open. Call it under the exclusive state lock, and only while
    /// this process has not.
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

/// Repeats a wait that a signal interrupted, which the tested process may catch.
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

/// Appends a line to `writes.log` with a single write(), so that lines of several processes do not mix.
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

/// Prints to stderr, in one line, an error that has no return code.
pub(crate) fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "fake NVML: {what}");
}
