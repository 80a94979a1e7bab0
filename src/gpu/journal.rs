//! The write-ahead journal of found settings: what a board had before wattune touched it, and the way back.
//!
//! One small JSON file, replaced atomically and synced to disk before the first write to a board and before each
//! later one. Whatever ends the daemon, the next reader of this file knows which limit was found, which ones wattune
//! wrote, and whether the machine or its driver was restarted since. An entry goes when its board has its settings
//! back, or when somebody else has set it: then the board is theirs. While a job goes on there that is noted too, so that
//! the next daemon leaves the board alone like this one.
//!
//! No driver tells what a board's clocks are locked to. So clocks are locked only where they were seen free before, the
//! journal notes that and to what, and the way back is to unlock them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::{ClockLimit, GpuId, PowerLimit};
use crate::units::Millijoules;

/// The journal's file in the state directory.
pub const FILE_NAME: &str = "found-limits.json";

/// The format this program writes: that of versions which knew no clocks, unless there is a lock that they would
/// forget.
const VERSION: u32 = 1;
const WITH_CLOCKS: u32 = 2;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("cannot {what} the restore journal {}", path.display())]
    Io {
        /// "read" or "write".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It is not what this program wrote.
    #[error(
        "the restore journal {} is damaged; look at the limits it names, set them by hand (nvidia-smi -pl), unlock clocks \
         (nvidia-smi -rgc), and move the file away",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// A newer wattune wrote it.
    #[error(
        "the restore journal {} is of format {version}, which this wattune does not know: give the GPUs back with the \
         newer one (`wattune restore`)",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
}

/// What was found on one board, and what wattune did to it since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The limit found.
    #[serde(rename = "found_mw")]
    pub found: PowerLimit,
    /// Persistence mode as found, if wattune changed it.
    pub found_persistence: Option<bool>,
    /// The limits wattune may have left the board at: the one it wrote last, and the one before, in case the process
    /// died between noting a write and doing it.
    #[serde(rename = "written_mw")]
    pub written: Vec<PowerLimit>,
    /// What wattune has locked the clocks to, or was about to; they were free before.
    #[serde(rename = "locked_mhz", default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<ClockLimit>,
    /// When it was found.
    pub found_at: DateTime<Utc>,
    /// The boot it was written in.
    pub boot_id: String,
    /// The energy counter at the last write: a smaller one later means that the driver was reloaded.
    #[serde(rename = "counter_mj")]
    pub counter: Option<Millijoules>,
}

impl Entry {
    /// Whether the clocks are to be unlocked. A reboot has done that already: a lock after it is somebody else's.
    pub fn holds_lock(&self, boot_id: &str) -> bool {
        self.locked.is_some() && self.boot_id == boot_id
    }

    /// Something is written in this boot.
    fn date(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.locked = None;
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// A limit that somebody else set on a job's board, which is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// What it was set to.
    #[serde(rename = "limit_mw")]
    pub limit: PowerLimit,
    /// When that was noticed.
    pub since: DateTime<Utc>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    boards: BTreeMap<GpuId, Entry>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    left_to_others: BTreeMap<GpuId, Foreign>,
}

/// The journal of one state directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot_id: String,
    boards: BTreeMap<GpuId, Entry>,
    left_to_others: BTreeMap<GpuId, Foreign>,
}

impl Journal {
    /// Reads what an earlier process left behind; a file that is not there is an empty journal.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged: then nothing must be written over it.
    pub fn open(state_dir: &Path, boot_id: String) -> Result<Self, JournalError> {
        let path = state_dir.join(FILE_NAME);
        let (boards, left_to_others) = match fs::read(&path) {
            Ok(bytes) => {
                let document: Document = serde_json::from_slice(&bytes)
                    .map_err(|source| JournalError::Damaged { path: path.clone(), source })?;
                if ![VERSION, WITH_CLOCKS].contains(&document.version) {
                    return Err(JournalError::Newer { path, version: document.version });
                }
                (document.boards, document.left_to_others)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(source) => return Err(JournalError::Io { what: "read", path, source }),
        };
        Ok(Self { path, boot_id, boards, left_to_others })
    }

    /// What stands in it, board by board.
    pub fn entries(&self) -> impl Iterator<Item = (&GpuId, &Entry)> {
        self.boards.iter()
    }

    /// What stands in it for one board.
    pub fn entry(&self, gpu: &GpuId) -> Option<&Entry> {
        self.boards.get(gpu)
    }

    /// Notes that `limit` is about to be written to a board that has `current`, and syncs that to disk. At the first
    /// call `current` is what was found; later it is wattune's own, whatever came of the writes noted before.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_write(
        &mut self,
        gpu: &GpuId,
        current: PowerLimit,
        limit: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(current, now));
        // What the board has now and what it may have next; writes that failed in between never were.
        let ours = (!current.same_as(entry.found)).then_some(current);
        entry.written = ours.into_iter().chain([limit]).collect();
        entry.date(&self.boot_id);
        entry.counter = counter;
        self.replace(boards)
    }

    /// Notes that the clocks of a board whose limit is `limit` are about to be locked, and syncs that to disk. They must
    /// have been free before, or locked by wattune.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_lock(
        &mut self,
        gpu: &GpuId,
        clock: ClockLimit,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(limit, now));
        entry.date(&self.boot_id);
        entry.locked = Some(clock);
        self.replace(boards)
    }

    /// Notes that persistence mode is about to be changed from `found` on a board whose limit is `limit`.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_persistence(
        &mut self,
        gpu: &GpuId,
        found: bool,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(limit, now));
        entry.found_persistence.get_or_insert(found);
        self.replace(boards)
    }

    fn new_entry(&self, found: PowerLimit, now: DateTime<Utc>) -> Entry {
        Entry {
            found,
            found_persistence: None,
            written: Vec::new(),
            locked: None,
            found_at: now,
            boot_id: self.boot_id.clone(),
            counter: None,
        }
    }

    /// Forgets that a board's clocks are locked: they are free again, or somebody else's.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_lock(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let Some(entry) = boards.get_mut(gpu).filter(|e| e.locked.is_some()) else { return Ok(()) };
        entry.locked = None;
        if entry.written.is_empty() && entry.found_persistence.is_none() {
            boards.remove(gpu);
        }
        self.replace(boards)
    }

    /// Forgets the limit of a board that somebody else has set to `theirs`. What is left to give back is a lock of the
    /// clocks, if there is one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let Some(entry) = boards.get_mut(gpu).filter(|e| e.locked.is_some()) else { return self.forget(gpu) };
        entry.found = theirs;
        entry.written.clear();
        entry.found_persistence = None;
        self.replace(boards)
    }

    /// Forgets a board: it has its settings back, or belongs to somebody else now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        match boards.remove(gpu) {
            Some(_) => self.replace(boards),
            None => Ok(()),
        }
    }

    /// The limit of somebody else to which a board is left.
    pub fn left_to_others(&self, gpu: &GpuId) -> Option<Foreign> {
        self.left_to_others.get(gpu).copied()
    }

    /// Notes to whose limit a board is left, or that it is left to nobody.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn leave_to_others(&mut self, gpu: &GpuId, foreign: Option<Foreign>) -> Result<(), JournalError> {
        if self.left_to_others(gpu) == foreign {
            return Ok(());
        }
        let before = self.left_to_others.clone();
        match foreign {
            Some(foreign) => self.left_to_others.insert(gpu.clone(), foreign),
            None => self.left_to_others.remove(gpu),
        };
        let written = self.replace(self.boards.clone());
        if written.is_err() {
            self.left_to_others = before;
        }
        written
    }

    /// Whether wattune wrote the limit that the board has, so that it is wattune's to take back.
    pub fn is_ours(&self, gpu: &GpuId, limit: PowerLimit) -> bool {
        self.entry(gpu).is_some_and(|e| e.written.iter().any(|w| w.same_as(limit)))
    }

    /// The boot that entries are written in now.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `boards` on disk, and only then in memory: what could not be written down does not count.
    fn replace(&mut self, boards: BTreeMap<GpuId, Entry>) -> Result<(), JournalError> {
        let version = if boards.values().any(|e| e.locked.is_some()) { WITH_CLOCKS } else { VERSION };
        let document = Document { version, boards, left_to_others: self.left_to_others.clone() };
        let write = || -> io::Result<()> {
            let next = self.path.with_extension("json.new");
            let mut file = File::create(&next)?;
            serde_json::to_writer_pretty(&mut file, &document)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            // The rename itself must survive a power cut too.
            self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        write().map_err(|source| JournalError::Io { what: "write", path: self.path.clone(), source })?;
        self.boards = document.boards;
        Ok(())
    }
}

/// What has to be done to give a board its found limit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayBack {
    /// It has it already.
    AlreadyThere,
    /// Write it.
    Write(PowerLimit),
    /// Somebody else has set the board since: it is theirs.
    Theirs(PowerLimit),
}

/// What a board says that decides whose its limit is.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The limit it has.
    pub current: PowerLimit,
    /// The driver's default.
    pub default: Option<PowerLimit>,
    /// Its energy counter.
    pub counter: Option<Millijoules>,
    /// Whether this process saw the board or its driver start anew since wattune's last write.
    pub restarted: bool,
}

/// Decides from the journal's entry and what the board says now.
///
/// A limit that wattune wrote is taken back. So is the driver's default after a reboot or a driver reload: that is
/// nobody's wish. Any other limit was set by somebody else.
pub fn way_back(entry: &Entry, boot_id: &str, board: &Standing) -> WayBack {
    let current = board.current;
    if current.same_as(entry.found) {
        return WayBack::AlreadyThere;
    }
    if entry.written.iter().any(|w| w.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    let counted_anew = matches!((entry.counter, board.counter), (Some(then), Some(now)) if now < then);
    let restarted = board.restarted || entry.boot_id != boot_id || counted_anew;
    if restarted && board.default.is_some_and(|d| d.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    WayBack::Theirs(current)
}

/// The kernel's id of this boot; "unknown" where it does not say, which reads as the same boot.
pub fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    fn entry() -> Entry {
        Entry {
            found: w(250),
            found_persistence: None,
            written: vec![w(225), w(200)],
            locked: None,
            found_at: DateTime::UNIX_EPOCH,
            boot_id: "boot-1".into(),
            counter: Some(Millijoules::new(1_000)),
        }
    }

    fn standing(current: PowerLimit, counter: u64) -> Standing {
        Standing { current, default: Some(w(300)), counter: Some(Millijoules::new(counter)), restarted: false }
    }

    #[test]
    fn what_wattune_wrote_goes_back_and_what_others_set_stays() {
        let decide = |current| way_back(&entry(), "boot-1", &standing(current, 2_000));
        assert_eq!(decide(w(250)), WayBack::AlreadyThere);
        assert_eq!(decide(w(200)), WayBack::Write(w(250)));
        assert_eq!(decide(w(225)), WayBack::Write(w(250)));
        assert_eq!(decide(w(180)), WayBack::Theirs(w(180)));
        assert_eq!(decide(w(300)), WayBack::Theirs(w(300)), "the default, but nothing was restarted: a wish");
    }

    #[test]
    fn a_default_after_a_restart_is_nobodys_wish() {
        assert_eq!(way_back(&entry(), "boot-2", &standing(w(300), 2_000)), WayBack::Write(w(250)));
        assert_eq!(way_back(&entry(), "boot-1", &standing(w(300), 10)), WayBack::Write(w(250)));
        let seen = Standing { restarted: true, ..standing(w(300), 2_000) };
        assert_eq!(way_back(&entry(), "boot-1", &seen), WayBack::Write(w(250)));
        let set_after_reboot = way_back(&entry(), "boot-2", &standing(w(280), 2_000));
        assert_eq!(set_after_reboot, WayBack::Theirs(w(280)));
    }

    #[test]
    fn it_survives_its_process_and_keeps_what_was_found_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let now = DateTime::UNIX_EPOCH;
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        journal.note_write(&gpu, w(250), w(300), None, now).expect("written");
        journal.note_write(&gpu, w(300), w(275), None, now).expect("written");
        journal.note_write(&gpu, w(275), w(200), None, now).expect("written");
        let mut reread = Journal::open(dir.path(), "boot-1".into()).expect("readable");
        let entry = reread.entry(&gpu).expect("noted").clone();
        assert_eq!((entry.found, entry.written), (w(250), vec![w(275), w(200)]));
        assert!(reread.is_ours(&gpu, w(200)) && !reread.is_ours(&gpu, w(300)));
        reread.forget(&gpu).expect("written");
        assert_eq!(Journal::open(dir.path(), "boot-1".into()).expect("readable").entries().count(), 0);
    }

    #[test]
    fn it_keeps_to_whom_a_board_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let foreign = Foreign { limit: w(260), since: DateTime::UNIX_EPOCH };
        let open = || Journal::open(dir.path(), "boot-1".into()).expect("readable");
        open().leave_to_others(&gpu, Some(foreign)).expect("written");
        let mut journal = open();
        assert_eq!((journal.left_to_others(&gpu), journal.entries().count()), (Some(foreign), 0));
        journal.note_write(&gpu, w(250), w(300), None, DateTime::UNIX_EPOCH).expect("written");
        assert_eq!(open().left_to_others(&gpu), Some(foreign), "other writes keep it");
        journal.leave_to_others(&gpu, None).expect("written");
        assert_eq!((open().left_to_others(&gpu), open().entries().count()), (None, 1));
    }

    #[test]
    fn what_could_not_be_written_down_does_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let note = |journal: &mut Journal, limit| journal.note_write(&gpu, w(250), limit, None, DateTime::UNIX_EPOCH);
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        note(&mut journal, w(225)).expect("written");
        let in_the_way = dir.path().join("found-limits.json.new");
        fs::create_dir(&in_the_way).expect("made");
        note(&mut journal, w(200)).expect_err("in the way");
        journal.forget(&gpu).expect_err("in the way");
        assert_eq!(journal.entry(&gpu).expect("still noted").written, [w(225)]);
        fs::remove_dir(&in_the_way).expect("removed");
        journal.forget(&gpu).expect("written");
    }

    #[test]
    fn a_newer_journal_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE_NAME), r#"{"version":3,"boards":{}}"#).expect("written");
        let error = Journal::open(dir.path(), "b".into()).expect_err("newer").to_string();
        assert!(error.contains("format 3"), "{error}");
    }

    #[test]
    fn a_lock_is_noted_with_a_format_of_its_own_and_outlives_the_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let (now, mhz) = (DateTime::UNIX_EPOCH, ClockLimit::from_megahertz);
        let open = |boot: &str| Journal::open(dir.path(), boot.into()).expect("readable");
        let text = || fs::read_to_string(dir.path().join(FILE_NAME)).expect("readable");
        let mut journal = open("boot-1");
        journal.note_lock(&gpu, mhz(1_200), w(300), now).expect("written");
        journal.note_lock(&gpu, mhz(1_110), w(300), now).expect("written");
        assert!(text().contains("\"version\": 2") && text().contains("\"locked_mhz\": 1110"), "{}", text());
        let entry = open("boot-1").entry(&gpu).expect("noted").clone();
        assert_eq!((entry.found, entry.locked, entry.written.len()), (w(300), Some(mhz(1_110)), 0));
        assert!(entry.holds_lock("boot-1") && !entry.holds_lock("boot-2"));

        journal.note_write(&gpu, w(300), w(250), None, now).expect("written");
        journal.yield_limit(&gpu, w(280)).expect("written");
        let entry = open("boot-1").entry(&gpu).expect("its clocks are still locked").clone();
        assert!(
            entry.holds_lock("boot-1") && way_back(&entry, "boot-1", &standing(w(280), 0)) == WayBack::AlreadyThere
        );
        journal.forget_lock(&gpu).expect("written");
        assert_eq!(journal.entries().count(), 0, "nothing is left to give back");

        journal.note_write(&gpu, w(300), w(250), None, now).expect("written");
        journal.note_lock(&gpu, mhz(1_200), w(250), now).expect("written");
        journal.forget_lock(&gpu).expect("written");
        assert!(text().contains("\"version\": 1") && !text().contains("locked"), "{}", text());
        assert_eq!(journal.entry(&gpu).expect("its limit is still to be given back").found, w(300));

        journal.note_lock(&gpu, mhz(1_200), w(250), now).expect("written");
        let mut later = open("boot-2");
        later.note_write(&gpu, w(300), w(200), None, now).expect("written");
        assert_eq!(later.entry(&gpu).expect("noted").locked, None, "the reboot unlocked them");
    }

    #[test]
    fn a_journal_of_a_version_that_knew_no_clocks_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = r#"{"version":1,"boards":{"GPU-1":{"found_mw":250000,"found_persistence":false,"written_mw":[225000],
            "found_at":"2026-01-01T00:00:00Z","boot_id":"boot-1","counter_mj":1000}}}"#;
        fs::write(dir.path().join(FILE_NAME), old).expect("written");
        let journal = Journal::open(dir.path(), "boot-1".into()).expect("an older version wrote it");
        let entry = journal.entry(&GpuId::new("GPU-1").expect("an id")).expect("noted");
        assert_eq!((entry.found, entry.written.as_slice(), entry.locked), (w(250), [w(225)].as_slice(), None));
    }

    #[test]
    fn writes_that_fail_never_make_the_boards_own_limit_look_foreign() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let now = DateTime::UNIX_EPOCH;
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        let mut current = w(300);
        for (limit, succeeds) in [(200, true), (180, false), (160, false), (170, false), (150, true), (140, false)] {
            journal.note_write(&gpu, current, w(limit), None, now).expect("written");
            current = if succeeds { w(limit) } else { current };
            let entry = journal.entry(&gpu).expect("noted");
            assert!(entry.found == w(300) && entry.written.contains(&current), "{entry:?} {current}");
        }
    }

    #[test]
    fn a_damaged_journal_is_never_written_over() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE_NAME), "{\"version\":1,\"boa").expect("written");
        let error = Journal::open(dir.path(), "b".into()).expect_err("damaged").to_string();
        assert!(error.contains("found-limits.json") && error.contains("by hand"), "{error}");
    }
}
