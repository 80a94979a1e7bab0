use super::*;

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

fn entry() -> Entry {
    Entry {
        original: w(250),
        original_persistence: None,
        written: vec![w(225), w(200)],
        locked: None,
        memory_locked: None,
        observed_at: DateTime::UNIX_EPOCH,
        boot_id: "boot-1".into(),
        counter: Some(Millijoules::new(1_000)),
    }
}

fn observed(current: PowerLimit, counter: u64) -> ObservedLimit {
    ObservedLimit { current, default: Some(w(300)), counter: Some(Millijoules::new(counter)), restarted: false }
}

#[test]
fn own_limits_are_replaced_and_external_ones_stay() {
    let decide = |current| restore_action(&entry(), "boot-1", &observed(current, 2_000));
    assert_eq!(decide(w(250)), RestoreAction::AlreadyRestored);
    assert_eq!(decide(w(200)), RestoreAction::Write(w(250)));
    assert_eq!(decide(w(225)), RestoreAction::Write(w(250)));
    assert_eq!(decide(w(180)), RestoreAction::LeaveExternal(w(180)));
    assert_eq!(
        decide(w(300)),
        RestoreAction::LeaveExternal(w(300)),
        "the default without a restart was set by someone"
    );
}

#[test]
fn a_default_after_a_restart_is_no_external_limit() {
    assert_eq!(restore_action(&entry(), "boot-2", &observed(w(300), 2_000)), RestoreAction::Write(w(250)));
    assert_eq!(restore_action(&entry(), "boot-1", &observed(w(300), 10)), RestoreAction::Write(w(250)));
    let seen = ObservedLimit { restarted: true, ..observed(w(300), 2_000) };
    assert_eq!(restore_action(&entry(), "boot-1", &seen), RestoreAction::Write(w(250)));
    let set_after_reboot = restore_action(&entry(), "boot-2", &observed(w(280), 2_000));
    assert_eq!(set_after_reboot, RestoreAction::LeaveExternal(w(280)));
}

#[test]
fn after_a_restart_an_unknown_default_limit_leaves_open_who_set_the_limit() {
    let unknown = |current| ObservedLimit { default: None, ..observed(current, 2_000) };
    let undecided = |boot: &str, gpu: ObservedLimit| is_undecided(&entry(), boot, &gpu);
    assert!(undecided("boot-2", unknown(w(300))) && undecided("boot-2", unknown(w(280))));
    assert!(undecided("boot-1", ObservedLimit { restarted: true, ..unknown(w(300)) }));
    assert!(undecided("boot-1", ObservedLimit { counter: Some(Millijoules::new(10)), ..unknown(w(300)) }));
    assert!(!undecided("boot-1", unknown(w(300))), "there was no restart");
    assert!(!undecided("boot-2", unknown(w(250))), "it is the original limit");
    assert!(!undecided("boot-2", unknown(w(200))), "wattune wrote it");
    assert!(!undecided("boot-2", observed(w(280), 2_000)), "the default limit is known");
}

#[test]
fn a_limit_that_the_gpu_has_rounded_is_wattunes_own() {
    // The daemon died before it saw to what the GPU rounded 233 W.
    let entry = Entry { written: vec![w(200), w(233)], ..entry() };
    let decide = |current| restore_action(&entry, "boot-1", &observed(current, 2_000));
    assert_eq!(decide(w(235)), RestoreAction::Write(w(250)));
    assert_eq!(decide(w(240)), RestoreAction::LeaveExternal(w(240)));
    // The GPU has shown the limit before that one, so that it is known exactly.
    assert_eq!(decide(w(203)), RestoreAction::LeaveExternal(w(203)));
    // So is one that the GPU showed as it was written.
    let entry = Entry { written: vec![w(233); 2], ..self::entry() };
    let seen = observed(w(235), 2_000);
    assert_eq!(restore_action(&entry, "boot-1", &seen), RestoreAction::LeaveExternal(w(235)));
}

#[test]
fn the_original_limit_survives_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let now = DateTime::UNIX_EPOCH;
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    journal.record_write(&gpu, w(250), w(300), None, now).expect("written");
    journal.record_write(&gpu, w(300), w(275), None, now).expect("written");
    journal.record_write(&gpu, w(275), w(200), None, now).expect("written");
    let mut reread = Journal::open(dir.path(), "boot-1".into()).expect("readable");
    let entry = reread.entry(&gpu).expect("recorded").clone();
    assert_eq!((entry.original, entry.written), (w(250), vec![w(275), w(200)]));
    assert!(reread.is_ours(&gpu, w(200)) && !reread.is_ours(&gpu, w(300)));
    reread.forget(&gpu).expect("written");
    assert_eq!(Journal::open(dir.path(), "boot-1".into()).expect("readable").entries().count(), 0);
}

#[test]
fn external_limits_survive_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let external = ExternalLimit { limit: w(260), since: DateTime::UNIX_EPOCH };
    let open = || Journal::open(dir.path(), "boot-1".into()).expect("readable");
    let left = |journal: Journal, shown| journal.external_limit(&gpu, shown, Some(w(300)));
    let mut journal = open();
    journal.record_write(&gpu, w(250), w(275), None, DateTime::UNIX_EPOCH).expect("written");
    journal.yield_to_external(&gpu, external).expect("written");
    assert_eq!((left(open(), Some(w(260))), open().entries().count()), (Some(external), 0));
    journal.record_write(&gpu, w(250), w(300), None, DateTime::UNIX_EPOCH).expect("written");
    assert_eq!(left(open(), None), Some(external), "other writes keep it");
    let again = ExternalLimit { limit: w(240), ..external };
    assert_eq!(left(open(), Some(w(240))), Some(again), "changed while the daemon was away");
    let rebooted = || Journal::open(dir.path(), "boot-2".into()).expect("readable");
    assert_eq!(left(rebooted(), Some(w(240))), Some(again), "set again after the reboot");
    assert_eq!((left(rebooted(), Some(w(300))), left(rebooted(), None)), (None, None), "a default after a reboot");
    journal.set_external_limit(&gpu, None).expect("written");
    assert_eq!((left(open(), None), open().entries().count()), (None, 1));
}

#[test]
fn a_gpu_that_is_removed_leaves_nothing_and_the_others_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let [gone, other] = ["GPU-1", "GPU-2"].map(|id| GpuId::new(id).expect("an id"));
    let now = DateTime::UNIX_EPOCH;
    let open = || Journal::open(dir.path(), "boot-1".into()).expect("readable");
    let mut journal = open();
    for gpu in [&gone, &other] {
        journal.record_original(gpu, w(250), None, now).expect("written");
        journal.record_write(gpu, w(250), w(225), None, now).expect("written");
        let external = ExternalLimit { limit: w(260), since: now };
        journal.set_external_limit(gpu, Some(external)).expect("written");
    }
    // It is in the list of written limits alone.
    journal.record_write(&other, w(225), w(200), None, now).expect("written");
    let expected = journal.entry(&other).cloned();
    journal.remove([&gone].into_iter()).expect("written");
    let journal = open();
    assert_eq!((journal.restore_entry(&gone), journal.external_limit(&gone, None, None)), (None, None));
    assert_eq!(journal.gpus().into_iter().collect::<Vec<_>>(), [&other]);
    assert!(expected.is_some() && journal.external_limit(&other, None, None).is_some());
    assert_eq!(journal.entry(&other), expected.as_ref());
}

#[test]
fn a_failed_write_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let note = |journal: &mut Journal, limit| journal.record_write(&gpu, w(250), limit, None, DateTime::UNIX_EPOCH);
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    note(&mut journal, w(225)).expect("written");
    let in_the_way = dir.path().join("found-limits.json.new");
    fs::create_dir(&in_the_way).expect("made");
    let other = GpuId::new("GPU-2").expect("an id");
    journal.record_write(&other, w(250), w(200), None, DateTime::UNIX_EPOCH).expect_err("in the way");
    assert!(journal.entry(&other).is_none());
    journal.forget(&gpu).expect_err("in the way");
    assert_eq!(journal.entry(&gpu).expect("still recorded").written, [w(225)]);
    fs::remove_dir(&in_the_way).expect("removed");
    journal.forget(&gpu).expect("written");
}

#[test]
fn a_state_directory_that_was_replaced_is_not_written_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    fs::create_dir(&state).expect("made");
    // The daemon keeps it open, so that no other file gets its inode.
    let _lock = fs::File::create(state.join(LOCK)).expect("made");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let mut journal = Journal::open(&state, "boot-1".into()).expect("empty");
    let mut note = |limit| journal.record_write(&gpu, w(250), limit, None, DateTime::UNIX_EPOCH);
    note(w(225)).expect("written");
    for has_lock in [false, true] {
        fs::remove_dir_all(&state).expect("removed");
        fs::create_dir(&state).expect("made");
        if has_lock {
            fs::write(state.join(LOCK), "").expect("written");
        }
        // A limit that is recorded already is no exception: this directory does not have it.
        for limit in [w(200), w(225)] {
            let why = note(limit).expect_err("replaced").to_string();
            assert!(
                why.contains("lock file of the state directory") && why.contains("is gone or is another one"),
                "{why}"
            );
        }
        assert_eq!(fs::read_dir(&state).expect("there").count(), usize::from(has_lock));
    }
    assert_eq!(journal.entry(&gpu).expect("recorded").written, [w(225)]);
}

#[test]
fn a_newer_journal_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(FILE_NAME), r#"{"version": 5,"boards":{}}"#).expect("written");
    let error = Journal::open(dir.path(), "b".into()).expect_err("newer").to_string();
    assert!(error.contains("format 5"), "{error}");
}

#[test]
fn a_clock_lock_has_its_own_format_and_outlives_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let (now, mhz) = (DateTime::UNIX_EPOCH, ClockLimit::from_megahertz);
    let open = |boot: &str| Journal::open(dir.path(), boot.into()).expect("readable");
    let text = || fs::read_to_string(dir.path().join(FILE_NAME)).expect("readable");
    let mut journal = open("boot-1");
    journal.record_lock(&gpu, mhz(1_200), w(300), now).expect("written");
    journal.record_lock(&gpu, mhz(1_110), w(300), now).expect("written");
    assert!(text().contains("\"version\": 2") && text().contains("\"locked_mhz\": 1110"), "{}", text());
    let entry = open("boot-1").entry(&gpu).expect("recorded").clone();
    assert_eq!((entry.original, entry.locked, entry.written.len()), (w(300), Some(mhz(1_110)), 0));
    assert!(entry.holds_lock("boot-1") && !entry.holds_lock("boot-2"));

    journal.record_write(&gpu, w(300), w(250), None, now).expect("written");
    journal.yield_limit(&gpu, w(280)).expect("written");
    let entry = open("boot-1").entry(&gpu).expect("its clocks are still locked").clone();
    assert!(
        entry.holds_lock("boot-1")
            && restore_action(&entry, "boot-1", &observed(w(280), 0)) == RestoreAction::AlreadyRestored
    );
    journal.forget_lock(&gpu).expect("written");
    assert_eq!(journal.entries().count(), 0, "nothing is left to restore");

    journal.record_write(&gpu, w(300), w(250), None, now).expect("written");
    journal.record_lock(&gpu, mhz(1_200), w(250), now).expect("written");
    journal.forget_lock(&gpu).expect("written");
    assert!(text().contains("\"version\": 4") && !text().contains("locked"), "{}", text());
    assert_eq!(journal.entry(&gpu).expect("its limit is still to be restored").original, w(300));

    journal.record_lock(&gpu, mhz(1_200), w(250), now).expect("written");
    let mut later = open("boot-2");
    later.record_write(&gpu, w(300), w(200), None, now).expect("written");
    assert_eq!(later.entry(&gpu).expect("recorded").locked, None, "the reboot unlocked them");
}

#[test]
fn a_journal_without_clocks_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let old = r#"{"version":1,"boards":{"GPU-1":{"found_mw":250000,"found_persistence":false,"written_mw":[225000],
        "found_at":"2026-01-01T00:00:00Z","boot_id":"boot-1","counter_mj":1000}}}"#;
    fs::write(dir.path().join(FILE_NAME), old).expect("written");
    let journal = Journal::open(dir.path(), "boot-1".into()).expect("an older version wrote it");
    let entry = journal.entry(&GpuId::new("GPU-1").expect("an id")).expect("recorded");
    assert_eq!((entry.original, entry.written.as_slice(), entry.locked), (w(250), [w(225)].as_slice(), None));
    assert_eq!(entry.original_persistence, Some(false));
}

#[test]
fn writes_that_fail_never_make_the_gpus_own_limit_look_external() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let now = DateTime::UNIX_EPOCH;
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    let mut current = w(300);
    for (limit, succeeds) in [(200, true), (180, false), (160, false), (170, false), (150, true), (140, false)] {
        journal.record_write(&gpu, current, w(limit), None, now).expect("written");
        current = if succeeds { w(limit) } else { current };
        let entry = journal.entry(&gpu).expect("recorded");
        assert!(entry.original == w(300) && entry.written.contains(&current), "{entry:?} {current}");
    }
}

#[test]
fn a_damaged_journal_is_never_overwritten() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(FILE_NAME), "{\"version\":1,\"boa").expect("written");
    let error = Journal::open(dir.path(), "b".into()).expect_err("damaged").to_string();
    assert!(error.contains("found-limits.json") && error.contains("by hand"), "{error}");
}

#[test]
fn the_original_limit_outlives_writes_and_the_boot() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let (now, counter) = (DateTime::UNIX_EPOCH, Some(Millijoules::new(500)));
    let open = |boot: &str| Journal::open(dir.path(), boot.into()).expect("readable");
    let way = |journal: &Journal, current| {
        let entry = journal.restore_entry(&gpu).expect("recorded");
        restore_action(&entry, journal.boot_id(), &observed(current, 1_000))
    };
    open("boot-1").record_original(&gpu, w(250), counter, now).expect("written");
    let mut journal = open("boot-1");
    assert_eq!((journal.entries().count(), journal.original_limit(&gpu), journal.is_empty()), (0, Some(w(250)), false));
    // wattune has written nothing: any limit but the original one is external, even the driver's default, unless the
    // machine or the driver restarted.
    assert_eq!(way(&journal, w(250)), RestoreAction::AlreadyRestored);
    assert_eq!(way(&journal, w(200)), RestoreAction::LeaveExternal(w(200)));
    assert_eq!(way(&journal, w(300)), RestoreAction::LeaveExternal(w(300)));
    assert_eq!(way(&open("boot-2"), w(300)), RestoreAction::Write(w(250)));
    assert_eq!(way(&open("boot-2"), w(200)), RestoreAction::LeaveExternal(w(200)));
    journal.update_counter(&gpu, Millijoules::new(2_000));
    assert_eq!(way(&journal, w(300)), RestoreAction::Write(w(250)), "its counter was reset");
    // A later limit does not become the original one: neither the default after a reboot nor a limit that wattune
    // wrote.
    let mut journal = open("boot-2");
    journal.record_original(&gpu, w(300), counter, now).expect("nothing to write");
    journal.record_write(&gpu, w(300), w(200), None, now).expect("written");
    assert_eq!(journal.entry(&gpu).expect("recorded").original, w(250));
    journal.forget(&gpu).expect("written");
    journal.record_original(&gpu, w(250), counter, now).expect("it is there again");
    assert_eq!(way(&journal, w(300)), RestoreAction::LeaveExternal(w(300)), "the boot is this one now");
    // The recorded original limit is removed when an external writer sets a limit, and when the job ends.
    journal.yield_to_external(&gpu, ExternalLimit { limit: w(200), since: now }).expect("written");
    assert_eq!((journal.restore_entry(&gpu), open("boot-2").is_empty()), (None, true));
    journal.record_original(&gpu, w(200), counter, now).expect("written");
    journal.forget_original(&gpu).expect("written");
    assert!(open("boot-2").is_empty());
}

#[test]
fn an_external_limit_met_by_a_restore_is_known_to_the_next_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let external = ExternalLimit { limit: w(200), since: DateTime::UNIX_EPOCH };
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    journal.record_original(&gpu, w(250), None, DateTime::UNIX_EPOCH).expect("written");
    journal.record_write(&gpu, w(250), w(225), None, DateTime::UNIX_EPOCH).expect("written");
    journal.forget_for_external(&gpu, external).expect("written");
    let next = Journal::open(dir.path(), "boot-1".into()).expect("readable");
    assert_eq!((next.is_empty(), next.external_limit(&gpu, Some(w(200)), None)), (true, Some(external)));
}

proptest::proptest! {
    /// The next daemon recognises the limits that wattune wrote, no matter which writes succeeded, failed or were cut
    /// off by a kill. It replaces these limits and no other one, except the driver's default after a restart.
    #[test]
    fn own_limits_are_distinguished_from_external_ones(
        writes in proptest::collection::vec((100_u32..300, proptest::bool::ANY, proptest::bool::ANY), 1..8),
        was_cut_off in proptest::bool::ANY,
        other in 100_u32..320,
        has_rebooted in proptest::bool::ANY,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let now = DateTime::UNIX_EPOCH;
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        let (original, mut current) = (w(250), w(250));
        journal.record_original(&gpu, original, None, now).expect("written");
        // The limits that a kill may leave on the GPU.
        let mut ours = vec![current];
        for (i, (limit, is_done, rounds)) in writes.iter().enumerate() {
            let asked = w(*limit);
            if asked.same_as(current) {
                continue;
            }
            journal.record_write(&gpu, current, asked, None, now).expect("written");
            let shown = if *rounds { w(limit / 3 * 3) } else { asked };
            ours = vec![current, asked, shown];
            if was_cut_off && i + 1 == writes.len() {
                break;
            }
            if *is_done {
                current = shown;
                journal.record_written(&gpu, current).expect("written");
                ours = vec![current];
            }
        }
        let boot = if has_rebooted { "boot-2" } else { "boot-1" };
        let journal = Journal::open(dir.path(), boot.into()).expect("readable");
        let entry = journal.restore_entry(&gpu).expect("a job's");
        let way = |limit| restore_action(&entry, journal.boot_id(), &observed(limit, 0));
        for limit in &ours {
            let expected = if limit.same_as(original) { RestoreAction::AlreadyRestored } else { RestoreAction::Write(original) };
            proptest::prop_assert_eq!(way(*limit), expected);
        }
        let other = w(other);
        let is_exact = matches!(entry.written.as_slice(), [shown, asked] if shown.same_as(*asked));
        let is_last = !is_exact && entry.written.last().is_some_and(|last| crate::gpu::is_rounded(*last, other));
        let may_be_ours =
            is_last || entry.written.iter().chain(&ours).chain([&original]).any(|own| own.same_as(other));
        if !may_be_ours {
            let is_default = has_rebooted && other.same_as(w(300));
            let expected = if is_default { RestoreAction::Write(original) } else { RestoreAction::LeaveExternal(other) };
            proptest::prop_assert_eq!(way(other), expected);
        }
        proptest::prop_assert!(entry.written.len() <= 2);
    }
}
