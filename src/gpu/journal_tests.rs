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
    let left = |journal: Journal, shown| journal.left_to_others(&gpu, shown, Some(w(300)));
    let mut journal = open();
    journal.note_write(&gpu, w(250), w(275), None, DateTime::UNIX_EPOCH).expect("written");
    journal.yield_to(&gpu, foreign).expect("written");
    assert_eq!((left(open(), Some(w(260))), open().entries().count()), (Some(foreign), 0));
    journal.note_write(&gpu, w(250), w(300), None, DateTime::UNIX_EPOCH).expect("written");
    assert_eq!(left(open(), None), Some(foreign), "other writes keep it");
    let again = Foreign { limit: w(240), ..foreign };
    assert_eq!(left(open(), Some(w(240))), Some(again), "changed while nobody looked");
    let rebooted = || Journal::open(dir.path(), "boot-2".into()).expect("readable");
    assert_eq!(left(rebooted(), Some(w(240))), Some(again), "set again after the reboot");
    assert_eq!((left(rebooted(), Some(w(300))), left(rebooted(), None)), (None, None), "nobody's");
    journal.leave_to_others(&gpu, None).expect("written");
    assert_eq!((left(open(), None), open().entries().count()), (None, 1));
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
    assert!(entry.holds_lock("boot-1") && way_back(&entry, "boot-1", &standing(w(280), 0)) == WayBack::AlreadyThere);
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

#[test]
fn the_original_limit_of_a_jobs_gpu_outlives_writes_and_the_boot() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let (now, counter) = (DateTime::UNIX_EPOCH, Some(Millijoules::new(500)));
    let open = |boot: &str| Journal::open(dir.path(), boot.into()).expect("readable");
    let way = |journal: &Journal, current| {
        let entry = journal.owed(&gpu).expect("noted");
        way_back(&entry, journal.boot_id(), &standing(current, 1_000))
    };
    open("boot-1").note_original(&gpu, w(250), counter, now).expect("written");
    let mut journal = open("boot-1");
    assert_eq!((journal.entries().count(), journal.found(&gpu), journal.is_empty()), (0, Some(w(250)), false));
    // Nothing was written: another limit is somebody else's, also the default, unless something started anew.
    assert_eq!(way(&journal, w(250)), WayBack::AlreadyThere);
    assert_eq!(way(&journal, w(200)), WayBack::Theirs(w(200)));
    assert_eq!(way(&journal, w(300)), WayBack::Theirs(w(300)));
    assert_eq!(way(&open("boot-2"), w(300)), WayBack::Write(w(250)));
    assert_eq!(way(&open("boot-2"), w(200)), WayBack::Theirs(w(200)));
    journal.learn_counter(&gpu, Millijoules::new(2_000));
    assert_eq!(way(&journal, w(300)), WayBack::Write(w(250)), "its counter started anew");
    // What is met later is not the original one: neither a default after a reboot nor wattune's own.
    let mut journal = open("boot-2");
    journal.note_original(&gpu, w(300), counter, now).expect("nothing to write");
    journal.note_write(&gpu, w(300), w(200), None, now).expect("written");
    assert_eq!(journal.entry(&gpu).expect("noted").found, w(250));
    journal.forget(&gpu).expect("written");
    journal.note_original(&gpu, w(250), counter, now).expect("it is there again");
    assert_eq!(way(&journal, w(300)), WayBack::Theirs(w(300)), "the boot is this one now");
    // An external limit ends it, and so does the job's end.
    journal.yield_to(&gpu, Foreign { limit: w(200), since: now }).expect("written");
    assert_eq!((journal.owed(&gpu), open("boot-2").is_empty()), (None, true));
    journal.note_original(&gpu, w(200), counter, now).expect("written");
    journal.forget_original(&gpu).expect("written");
    assert!(open("boot-2").is_empty());
}

#[test]
fn what_was_left_to_others_while_giving_back_is_known_to_the_next_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = GpuId::new("GPU-1").expect("an id");
    let foreign = Foreign { limit: w(200), since: DateTime::UNIX_EPOCH };
    let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
    journal.note_original(&gpu, w(250), None, DateTime::UNIX_EPOCH).expect("written");
    journal.note_write(&gpu, w(250), w(225), None, DateTime::UNIX_EPOCH).expect("written");
    journal.forget_to(&gpu, foreign).expect("written");
    let next = Journal::open(dir.path(), "boot-1".into()).expect("readable");
    assert_eq!((next.is_empty(), next.left_to_others(&gpu, Some(w(200)), None)), (true, Some(foreign)));
}

proptest::proptest! {
    /// Whatever writes were done, refused or cut off by a kill: the next reader takes back what the GPU has from wattune,
    /// and nothing else but a default after a restart.
    #[test]
    fn own_limits_are_told_from_others(
        writes in proptest::collection::vec((100_u32..300, proptest::bool::ANY, proptest::bool::ANY), 1..8),
        was_cut_off in proptest::bool::ANY,
        other in 100_u32..320,
        has_rebooted in proptest::bool::ANY,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let now = DateTime::UNIX_EPOCH;
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        let (found, mut current) = (w(250), w(250));
        journal.note_original(&gpu, found, None, now).expect("written");
        // What a kill may have left on the GPU.
        let mut ours = vec![current];
        for (i, (limit, is_done, rounds)) in writes.iter().enumerate() {
            let asked = w(*limit);
            if asked.same_as(current) {
                continue;
            }
            journal.note_write(&gpu, current, asked, None, now).expect("written");
            ours = vec![current, asked];
            if was_cut_off && i + 1 == writes.len() {
                break;
            }
            if *is_done {
                current = if *rounds { w(limit / 5 * 5) } else { asked };
                journal.note_done(&gpu, current).expect("written");
                ours = vec![current];
            }
        }
        let boot = if has_rebooted { "boot-2" } else { "boot-1" };
        let journal = Journal::open(dir.path(), boot.into()).expect("readable");
        let entry = journal.owed(&gpu).expect("a job's");
        let way = |limit| way_back(&entry, journal.boot_id(), &standing(limit, 0));
        for limit in &ours {
            let expected = if limit.same_as(found) { WayBack::AlreadyThere } else { WayBack::Write(found) };
            proptest::prop_assert_eq!(way(*limit), expected);
        }
        let other = w(other);
        let may_be_ours = entry.written.iter().chain(&ours).chain([&found]).any(|own| own.same_as(other));
        if !may_be_ours {
            let is_nobodys = has_rebooted && other.same_as(w(300));
            let expected = if is_nobodys { WayBack::Write(found) } else { WayBack::Theirs(other) };
            proptest::prop_assert_eq!(way(other), expected);
        }
        proptest::prop_assert!(entry.written.len() <= 2);
    }
}
