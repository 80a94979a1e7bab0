use std::fs::OpenOptions;

use chrono::{DateTime, Utc};
use proptest::prelude::prop;
use tempfile::TempDir;

use super::*;
use crate::gpu::journal::{FILE_NAME, Journal, JournalError};

const BOOT: &str = "boot-1";
const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

fn gpu() -> GpuId {
    GpuId::new("GPU-1").expect("an id")
}

fn open_in(dir: &TempDir, boot: &str) -> Result<Journal, JournalError> {
    Journal::open(dir.path(), boot.into())
}

fn written(dir: &TempDir) -> Vec<PowerLimit> {
    written_in(dir, BOOT)
}

fn written_in(dir: &TempDir, boot: &str) -> Vec<PowerLimit> {
    open_in(dir, boot).expect("readable").entry(&gpu()).expect("recorded").written.clone()
}

fn journal_path(dir: &TempDir) -> PathBuf {
    dir.path().join(FILE_NAME)
}

fn list_path(dir: &TempDir) -> PathBuf {
    dir.path().join("found-limits.json.writes")
}

fn journal_text(dir: &TempDir) -> String {
    fs::read_to_string(journal_path(dir)).expect("there")
}

/// A journal whose GPU of 300 W was set to 250 W, then to 200 W.
fn begun(dir: &TempDir) -> Journal {
    let mut journal = open_in(dir, BOOT).expect("empty");
    journal.record_write(&gpu(), w(300), w(250), None, NOW).expect("written");
    journal.record_write(&gpu(), w(250), w(200), None, NOW).expect("written");
    journal
}

/// Both files' bytes; `None` for one that is not there.
type Files = [Option<Vec<u8>>; 2];

fn files_of(dir: &TempDir) -> Files {
    [journal_path(dir), list_path(dir)].map(|path| fs::read(path).ok())
}

/// A directory with these files.
fn with(files: &Files) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (path, bytes) in [journal_path(&dir), list_path(&dir)].iter().zip(files) {
        if let Some(bytes) = bytes {
            fs::write(path, bytes).expect("written");
        }
    }
    dir
}

#[test]
fn later_limits_are_in_the_list_and_the_journal_file_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = begun(&dir);
    let before = journal_text(&dir);
    assert!(before.contains("\"version\": 4") && before.contains("\"found_mw\": 300000"), "{before}");
    for limit in [180, 220, 150] {
        journal.record_write(&gpu(), w(200), w(limit), Some(Millijoules::new(7)), NOW).expect("written");
        assert_eq!(written(&dir), [w(200), w(limit)]);
        journal.record_written(&gpu(), w(limit)).expect("written");
        assert_eq!(written(&dir), [w(limit); 2]);
    }
    assert_eq!(journal_text(&dir), before);
    let entry = open_in(&dir, BOOT).expect("readable").entry(&gpu()).expect("recorded").clone();
    assert_eq!((entry.original, entry.counter), (w(300), Some(Millijoules::new(7))));
    // Everything else goes to the journal file.
    journal.record_persistence(&gpu(), false, w(150), NOW).expect("written");
    assert!(journal_text(&dir) != before && written(&dir) == [w(150); 2]);
    journal.forget(&gpu()).expect("written");
    assert!(open_in(&dir, BOOT).expect("readable").is_empty());
    assert!(journal_text(&dir).contains("\"version\": 1") && !journal_text(&dir).contains("written_limits"));
}

#[test]
fn a_daemon_that_goes_on_leaves_the_last_record_until_its_own_journal_is_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(begun(&dir));
    let mut next = open_in(&dir, BOOT).expect("readable");
    // Its first change cannot replace the journal file, but has begun a record.
    let in_the_way = dir.path().join("found-limits.json.new");
    fs::create_dir(&in_the_way).expect("made");
    next.record_write(&gpu(), w(200), w(150), None, NOW).expect_err("in the way");
    assert_eq!(written(&dir), [w(250), w(200)]);
    next.record_write(&gpu(), w(200), w(160), None, NOW).expect_err("in the way");
    assert_eq!(written(&dir), [w(250), w(200)]);
    fs::remove_dir(&in_the_way).expect("removed");
    next.record_write(&gpu(), w(200), w(150), None, NOW).expect("written");
    assert_eq!(written(&dir), [w(200), w(150)]);
}

#[test]
fn a_list_of_another_journal_is_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    drop((begun(&dir), begun(&other)));
    fs::copy(list_path(&other), list_path(&dir)).expect("copied");
    let error = open_in(&dir, BOOT).expect_err("another journal's list").to_string();
    let words = ["found-limits.json.writes", "by hand", "nvidia-smi -pl", "move both files away"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn a_list_without_its_record_is_an_error_in_this_boot_and_none_in_a_later_one() {
    type Damage = fn(&Path);
    let damage: [(&str, Damage); 5] = [
        ("removed", |path| fs::remove_file(path).expect("removed")),
        ("empty", |path| fs::write(path, "").expect("written")),
        ("zeros", |path| fs::write(path, vec![0; 2 * PLACE]).expect("written")),
        ("text", |path| fs::write(path, "nonsense\n").expect("written")),
        ("cut off", |path| {
            let file = OpenOptions::new().write(true).open(path).expect("open");
            file.set_len(70).expect("cut");
        }),
    ];
    for (name, damage) in damage {
        let dir = tempfile::tempdir().expect("a directory");
        drop(begun(&dir));
        damage(&list_path(&dir));
        assert!(matches!(open_in(&dir, BOOT), Err(JournalError::WithoutList { .. })), "{name}");
        // What a power failure leaves: limits are the driver's defaults then, and the original limit is known.
        assert_eq!(written_in(&dir, "boot-2"), [w(250)], "{name}");
        assert_eq!(open_in(&dir, "boot-2").expect("readable").original_limit(&gpu()), Some(w(300)), "{name}");
    }
}

#[test]
fn an_intact_list_counts_after_a_reboot_too() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(begun(&dir));
    assert_eq!(written_in(&dir, "boot-2"), [w(250), w(200)]);
    // The next daemon's first change binds the list to its own boot.
    let mut later = open_in(&dir, "boot-2").expect("readable");
    later.record_write(&gpu(), w(300), w(150), None, NOW).expect("written");
    fs::remove_file(list_path(&dir)).expect("removed");
    assert!(open_in(&dir, "boot-2").is_err());
}

#[test]
fn without_a_boot_id_each_change_is_in_the_journal_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = open_in(&dir, "unknown").expect("empty");
    journal.record_write(&gpu(), w(300), w(250), None, NOW).expect("written");
    journal.record_write(&gpu(), w(250), w(200), None, NOW).expect("written");
    assert!(!list_path(&dir).exists());
    assert_eq!(written_in(&dir, "unknown"), [w(250), w(200)]);
}

#[test]
fn files_that_are_removed_or_replaced_while_the_daemon_runs_are_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = begun(&dir);
    let mut current = w(200);
    let mut disturbed = |what: &str, disturb: &dyn Fn()| {
        disturb();
        let next = PowerLimit::from_milliwatts(current.milliwatts() - 1000);
        journal.record_write(&gpu(), current, next, None, NOW).expect(what);
        assert_eq!(written(&dir), [current, next], "{what}");
        current = next;
    };
    disturbed("list removed", &|| fs::remove_file(list_path(&dir)).expect("removed"));
    disturbed("list replaced", &|| {
        let moved = dir.path().join("moved");
        fs::rename(list_path(&dir), &moved).expect("moved");
        fs::write(list_path(&dir), "other\n").expect("written");
    });
    disturbed("journal removed", &|| fs::remove_file(journal_path(&dir)).expect("removed"));
    disturbed("journal edited", &|| fs::write(journal_path(&dir), "{}").expect("written"));
    disturbed("both removed", &|| {
        fs::remove_file(list_path(&dir)).expect("removed");
        fs::remove_file(journal_path(&dir)).expect("removed");
    });
    // Without a list, the journal file is enough.
    disturbed("a directory in place of the list", &|| {
        fs::remove_file(list_path(&dir)).expect("removed");
        fs::create_dir(list_path(&dir)).expect("made");
    });
    disturbed("still", &|| ());
    assert!(journal_text(&dir).contains("\"version\": 1"), "{}", journal_text(&dir));
    disturbed("a link in place of the list", &|| {
        fs::remove_dir(list_path(&dir)).expect("removed");
        std::os::unix::fs::symlink(dir.path().join("victim"), list_path(&dir)).expect("linked");
    });
    assert!(!dir.path().join("victim").exists());
}

#[test]
fn a_change_that_neither_file_takes_fails_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = begun(&dir);
    let in_the_way = dir.path().join("found-limits.json.new");
    fs::create_dir(&in_the_way).expect("made");
    fs::remove_file(list_path(&dir)).expect("removed");
    fs::create_dir(list_path(&dir)).expect("made");
    journal.record_write(&gpu(), w(200), w(150), None, NOW).expect_err("in the way");
    assert_eq!(journal.entry(&gpu()).expect("recorded").written, [w(250), w(200)]);
    fs::remove_dir(&in_the_way).expect("removed");
    fs::remove_dir(list_path(&dir)).expect("removed");
    journal.record_write(&gpu(), w(200), w(150), None, NOW).expect("written");
    assert_eq!(written(&dir), [w(200), w(150)]);
}

#[test]
fn a_node_with_too_many_gpus_for_the_list_uses_the_journal_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = open_in(&dir, BOOT).expect("empty");
    let gpus: Vec<GpuId> = (0..400).map(|n| GpuId::new(format!("GPU-{n:036}")).expect("an id")).collect();
    for id in &gpus {
        journal.contents.entries.insert(id.clone(), journal.new_entry(w(300), NOW));
    }
    for (id, limit) in [(&gpus[0], 250), (&gpus[399], 200), (&gpus[0], 150)] {
        journal.record_write(id, w(300), w(limit), None, NOW).expect("written");
        let reread = open_in(&dir, BOOT).expect("readable");
        assert!(reread.is_ours(id, w(limit)) && reread.entries().count() == 400);
    }
    assert!(!journal_text(&dir).contains("written_limits"));
}

/// A step that changes the journal.
#[derive(Clone, Debug)]
enum Step {
    Write(u32, bool),
    Persistence,
    Forget,
    NextDaemon,
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::{Just, Strategy as _, any};
    let step = proptest::prop_oneof![
        8 => (100_u32..300, any::<bool>()).prop_map(|(limit, confirmed)| Step::Write(limit, confirmed)),
        1 => Just(Step::Persistence),
        1 => Just(Step::Forget),
        1 => Just(Step::NextDaemon),
    ];
    prop::collection::vec(step, 1..12)
}

/// Returns the states of the files that a kill during a change from `before` to `after` may leave: a write of the list
/// that is cut off, with the journal file from before, and the journal file from after with the whole list.
fn cut_off(before: &Files, after: &Files, cut: usize) -> Vec<Files> {
    let empty = Vec::new();
    let (old, new) = (before[1].as_ref().unwrap_or(&empty), after[1].as_ref().unwrap_or(&empty));
    let first = old.iter().zip(new).position(|(a, b)| a != b).unwrap_or(old.len().min(new.len()));
    let end = (first + cut).min(new.len());
    let mut partial = new[..end].to_vec();
    partial.extend(old.iter().skip(end));
    let list = (before[1].is_some() || end > 0).then_some(partial);
    vec![[before[0].clone(), list], [before[0].clone(), after[1].clone()]]
}

proptest::proptest! {
    /// A kill between any two steps of a change leaves what the journal had before the change, or what it has after.
    #[test]
    fn a_kill_leaves_the_old_or_the_new_state(steps in steps(), cut in 0_usize..600) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = open_in(&dir, BOOT).expect("empty");
        let mut current = w(300);
        let (mut files, mut contents) = (files_of(&dir), journal.contents.clone());
        let mut check = |dir: &TempDir, journal: &Journal| {
            let (files_after, contents_after) = (files_of(dir), journal.contents.clone());
            for left in cut_off(&files, &files_after, cut) {
                let found = open_in(&with(&left), BOOT).map(|journal| journal.contents).map_err(|e| e.to_string());
                let found = found.expect("readable after a kill");
                // The new list with the old journal file is the new state only if the list alone was written.
                assert!(found == contents || found == contents_after, "{found:?}\n{contents:?}\n{contents_after:?}");
            }
            let found = open_in(&with(&files_after), BOOT).expect("readable").contents;
            assert_eq!(found, contents_after);
            (files, contents) = (files_after, contents_after);
        };
        for step in steps {
            match step {
                Step::Write(limit, confirmed) => {
                    journal.record_write(&gpu(), current, w(limit), Some(Millijoules::new(limit.into())), NOW).expect("written");
                    check(&dir, &journal);
                    if confirmed {
                        current = w(limit);
                        journal.record_written(&gpu(), current).expect("written");
                        check(&dir, &journal);
                    }
                }
                Step::Persistence => journal.record_persistence(&gpu(), false, current, NOW).expect("written"),
                Step::Forget => journal.forget(&gpu()).expect("written"),
                Step::NextDaemon => journal = open_in(&dir, BOOT).expect("readable"),
            }
            check(&dir, &journal);
        }
    }
}
