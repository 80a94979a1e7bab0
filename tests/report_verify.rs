//! `wattune report verify` of a state directory: not only the ledger, but all that reports read must be as it was written.

use std::path::Path;

use rusqlite::Connection;
use serde_json::json;
use wattune::store::{FILE_NAME, Store};
use wattune_core::ledger::verify::Verifier;

use crate::report::{ledger, outcome, report};
use crate::support::{Ended, wattune};

/// A copy of a ledger with something changed by hand.
fn doctored(ledger: &Path, statements: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(ledger.join(FILE_NAME), dir.path().join(FILE_NAME)).expect("copied");
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    for statement in statements {
        let changed = db.execute(statement, []).expect("done");
        let is_of_rows = ["UPDATE", "DELETE", "INSERT"].iter().any(|verb| statement.starts_with(verb));
        assert!(!is_of_rows || changed > 0, "{statement} changes nothing");
    }
    dir
}

/// What a check of a state directory says is wrong.
async fn wrong(dir: &Path) -> Option<String> {
    let store = Store::open_read_only(dir).await.expect("opens");
    let found = store.verify(Verifier::default()).await.expect("read");
    store.close().await;
    found.err().map(|broken| broken.to_string())
}

const SHORTENED: &str = "CREATE TRIGGER ledger_is_not_shortened BEFORE DELETE ON ledger \
     BEGIN SELECT RAISE(ABORT, 'entries of the ledger are written once'); END";
const CHANGED: &str = "CREATE TRIGGER ledger_is_not_changed BEFORE UPDATE ON ledger \
     BEGIN SELECT RAISE(ABORT, 'entries of the ledger are written once'); END";

#[tokio::test]
async fn what_reports_read_and_no_digest_covers_is_made_again_and_compared() {
    let plain = ledger().await;
    assert_eq!(wrong(plain.path()).await, None);
    // With a block that is closed and not settled, corrections of which some are rolled up, and a roll-up.
    let full = ledger().await;
    let span = ["--from", "2026-03-01T00:00:00Z", "--to", "2026-03-01T04:00:00Z"];
    for (of, to) in [("unattributed", "job:b"), ("job:a", "job:b"), ("idle", "unattributed")] {
        let said = ["--of", of, "--give-to", to, "--who", "ada", "--why", "known since"];
        report(full.path(), &[&["correct"], &span[..], &said].concat()).done();
    }
    let store = Store::open(full.path()).await.expect("opens");
    let now = "2026-03-01T01:30:00Z".parse().expect("a time");
    assert!(store.roll_up(2, 10, now).await.expect("rolled up") > 0);
    store.close().await;
    assert_eq!(wrong(full.path()).await, None);
    let closed = ledger().await;
    let store = Store::open(closed.path()).await.expect("opens");
    store.close_block("2026-03-01T04:00:00Z".parse().expect("a time")).await.expect("closed");
    store.close().await;
    assert_eq!(wrong(closed.path()).await, None);

    for (ledger, statements, named) in [
        (&plain, &["UPDATE day_totals SET energy_mj = energy_mj / 2, carbon_ug = carbon_ug / 2"][..], "day_totals"),
        (&full, &["UPDATE day_totals SET provisional_mj = 0, final_mj = energy_mj"], "day_totals"),
        (&plain, &["DELETE FROM day_totals"], "day_totals"),
        (&closed, &["DELETE FROM due"], "due"),
        (&closed, &["UPDATE due SET why = 'whim'"], "due"),
        (
            &plain,
            &["UPDATE intervals SET booked_share = share, booked_job = job_id, share = 'idle', job_id = NULL \
               WHERE share = 'job'"],
            "intervals",
        ),
        (&full, &["UPDATE intervals SET share = 'idle', job_id = NULL WHERE booked_share IS NOT NULL"], "intervals"),
        (
            &full,
            &[
                "UPDATE intervals SET share = booked_share, job_id = booked_job, booked_share = NULL, booked_job = NULL \
               WHERE booked_share IS NOT NULL",
            ],
            "intervals",
        ),
        (&plain, &["UPDATE settled SET final = 1"], "settled"),
        (&plain, &["UPDATE settled SET version = 1"], "settled"),
        (&plain, &["UPDATE settled SET sources = 'a better one'"], "settled"),
        (&plain, &["DELETE FROM settled"], "settled"),
        (&plain, &["UPDATE balances SET idle_mj = idle_mj + 1"], "balances"),
        (&plain, &["DELETE FROM restated"], "restated"),
        (&plain, &["UPDATE restated SET carbon_before_ug = carbon_ug"], "restated"),
        (&plain, &["INSERT INTO rolled_up VALUES (1772323200000000, 'GPU-9', 'idle', '', 'counter', 5)"], "rolled_up"),
        (&full, &["UPDATE rolled_up SET energy_mj = energy_mj + 1"], "rolled_up"),
        (&full, &["UPDATE rolled_up SET job_id = 'a' WHERE job_id = 'b'"], "rolled_up"),
        (&plain, &["DROP TRIGGER ledger_is_not_shortened"], "sqlite_schema"),
        (
            &plain,
            &["DROP TRIGGER ledger_is_not_changed", "UPDATE ledger SET kind = 'control' WHERE kind = 'terms'", CHANGED],
            "ledger",
        ),
    ] {
        let dir = doctored(ledger.path(), statements);
        let reported = wrong(dir.path()).await.unwrap_or_else(|| panic!("{statements:?} goes unseen"));
        assert!(reported.starts_with(&format!("table {named}, row of ")), "{statements:?}: {reported}");
    }
    let dir = doctored(plain.path(), &["UPDATE day_totals SET energy_mj = energy_mj / 2 WHERE device = 'GPU-0'"]);
    let reported = report(dir.path(), &["verify"]);
    assert_eq!(reported.code, Some(1));
    for part in [
        "INVALID: the database, table day_totals, row of day_us 1772323200000000 (2026-03-01T00:00:00Z)",
        "device GPU-0",
        "energy_mj",
        "the ledger gives",
    ] {
        assert!(reported.out.contains(part), "{part}: {}", reported.out);
    }
}

#[tokio::test]
async fn who_kept_a_head_can_tell_that_it_was_cut_off_since() {
    let dir = ledger().await;
    let head = |dir: &Path| {
        let reported = report(dir, &["verify"]);
        reported.done().lines().find_map(|l| l.strip_prefix("head ")).expect("a digest").to_owned()
    };
    let first = head(dir.path());
    let store = Store::open(dir.path()).await.expect("opens");
    let seq = store.append_entry(&outcome("a", 1, json!(120.5))).await.expect("noted");
    store.close().await;
    let last = head(dir.path());
    let both = report(dir.path(), &["verify", "--head", &first]);
    assert!(both.done().contains(&format!("is the digest of entry {}:", seq - 1)), "{}", both.done());
    assert!(
        both.done()
            .contains("covers the intervals of all blocks closed until 2026-03-01 03:36:00Z; 1 in the open block")
    );
    assert!(both.done().contains("The digests do not cover the progress of running"), "{}", both.done());

    let tail = "DELETE FROM ledger WHERE seq = (SELECT MAX(seq) FROM ledger)";
    let cut = doctored(dir.path(), &["DROP TRIGGER ledger_is_not_shortened", tail, SHORTENED]);
    assert_eq!(head(cut.path()), first, "nothing else follows from the last entry");
    let reported = report(cut.path(), &["verify", "--head", &last]);
    assert_eq!(reported.code, Some(1));
    assert!(reported.out.contains(&format!("the digest {last}: is not the digest of any entry")), "{}", reported.out);
    let file = dir.path().join("ledger.jsonl");
    let path = file.to_str().expect("UTF-8");
    report(dir.path(), &["export", "--output", path]).done();
    let of_file = Ended::of(&mut wattune(&["report", "verify", path, "--head", &last, "--format", "json"]));
    assert_eq!(of_file.json()["kept_head_entry"], seq);
    assert!(report(dir.path(), &["verify", "--head", "abc"]).failed(2).contains("64 lower-case hexadecimal digits"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_held_or_none_is_reported_once() {
    let dir = ledger().await;
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    db.execute_batch("BEGIN IMMEDIATE").expect("begun");
    let correct = || {
        let span = ["--from", "2026-03-01T02:00:00Z", "--to", "2026-03-01T04:00:00Z"];
        let said = ["--of", "unattributed", "--give-to", "job:b", "--who", "ada", "--why", "known since"];
        report(dir.path(), &[&["correct"], &span[..], &said].concat())
    };
    let held = tokio::task::block_in_place(correct);
    assert!(held.failed(1).contains("another process has locked the database for writing; try again"), "{held:?}");
    assert!(!held.err.contains("code"), "{held:?}");
    drop(db);
    tokio::task::block_in_place(correct).done();

    let none = tempfile::tempdir().expect("a directory");
    let path = none.path().join(FILE_NAME);
    for (statement, reported) in
        [(None, "file is not a database"), (Some("CREATE TABLE t (a)"), "it is not a wattune database")]
    {
        let _ = std::fs::remove_file(&path);
        match statement {
            None => std::fs::write(&path, vec![b'x'; 5000]).expect("written"),
            Some(statement) => {
                Connection::open(&path).expect("opens").execute_batch(statement).expect("done");
            }
        }
        let refused = report(none.path(), &[]);
        let text = refused.failed(1);
        assert_eq!((text.matches(reported).count(), text.matches("code").count()), (1, 1), "{text}");
    }
}

#[tokio::test]
async fn nothing_of_the_state_directory_is_written_over() {
    let dir = ledger().await;
    let database = dir.path().join(FILE_NAME);
    let before = std::fs::read(&database).expect("readable");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let link = elsewhere.path().join("report.html");
    std::os::unix::fs::symlink(&database, &link).expect("linked");
    let hard = elsewhere.path().join("badge.svg");
    std::fs::hard_link(&database, &hard).expect("linked");
    let log = dir.path().join("wattune.db-wal");
    for (flag, path, command) in [
        ("--output", &database, &[][..]),
        ("--output", &database, &["export"]),
        ("--output", &link, &["--format", "html"]),
        ("--output", &log, &["--format", "html"]),
        ("--svg", &hard, &["badge", "--name", "resnet50"]),
        ("--markdown", &database, &["badge", "--name", "resnet50"]),
    ] {
        let refused = report(dir.path(), &[command, &[flag, path.to_str().expect("UTF-8")]].concat());
        assert!(refused.failed(1).contains("is a file of the state directory"), "{refused:?}");
        assert!(refused.err.contains(flag), "{refused:?}");
    }
    assert!(std::fs::read(&database).expect("readable") == before, "nothing was changed");
    let output = elsewhere.path().join("other.html");
    report(dir.path(), &["--output", output.to_str().expect("UTF-8")]).done();
    let svg = elsewhere.path().join("b (1).svg");
    let badge = report(dir.path(), &["badge", "--name", "resnet50", "--svg", svg.to_str().expect("UTF-8")]);
    assert!(badge.done().contains("/b%20%281%29.svg)"), "{}", badge.done());
}

#[tokio::test]
async fn what_figures_depend_on_beside_the_ledger_is_as_it_was_written() {
    let ledger = ledger().await;
    let untouched = doctored(ledger.path(), &["ANALYZE"]);
    assert_eq!(wrong(untouched.path()).await, None, "statistics change no figure");
    for (statements, named) in [
        (&["UPDATE checkpoints SET counter_mj = counter_mj + 1"][..], "checkpoints, row of device GPU-"),
        (&["UPDATE checkpoints SET counter_mj = counter_mj + 7, base_mj = base_mj + 7"], "checkpoints"),
        (&["UPDATE checkpoints SET counter_mj = counter_mj + 7, rebased_mj = rebased_mj + 7"], "checkpoints"),
        (&["UPDATE checkpoints SET base_mj = base_mj - 3600"], "checkpoints"),
        (&["UPDATE checkpoints SET at_us = at_us - 60000000"], "checkpoints"),
        (&["UPDATE checkpoints SET holders = '[\"a\"]'"], "checkpoints"),
        (&["UPDATE checkpoints SET read_from = 'elsewhere'"], "checkpoints"),
        (&["DELETE FROM checkpoints WHERE device = 'GPU-0'"], "checkpoints, row of device GPU-0"),
        (&["DELETE FROM intervals WHERE id = (SELECT MAX(id) FROM intervals)"], "open_block"),
        (&["DELETE FROM open_block"], "open_block"),
        (&["DELETE FROM jobs WHERE id = 'a'"], "jobs, row of id a"),
        (&["UPDATE jobs SET spec = replace(spec, 'GPU-0', 'GPU-7') WHERE id = 'a'"], "jobs, row of id a"),
        (&["UPDATE jobs SET spec = replace(spec, 'resnet50', 'other')"], "jobs"),
        (&["UPDATE jobs SET spec = replace(spec, 'vision', 'speech')"], "jobs"),
        (&["UPDATE jobs SET registered_us = registered_us - 1"], "jobs"),
        (&["UPDATE jobs SET ended_us = ended_us + 1 WHERE id = 'a'"], "jobs"),
        (&["UPDATE jobs SET ended_us = NULL, end_reason = NULL WHERE id = 'a'"], "jobs"),
        (&["UPDATE jobs SET ended_us = registered_us + 5, end_reason = 'told' WHERE id = 'b'"], "jobs"),
        (&["UPDATE jobs SET end_reason = 'lease expired' WHERE id = 'a'"], "jobs"),
        (&["UPDATE jobs SET progress = replace(progress, '2000000.0', '9000000.0') WHERE id = 'a'"], "jobs"),
        (
            &[
                "INSERT INTO jobs SELECT 'z', spec, progress, registered_us, ended_us, end_reason, owners FROM jobs LIMIT 1",
            ],
            "jobs",
        ),
        (&["DROP INDEX intervals_by_job"], "sqlite_schema, row of name intervals_by_job"),
        (&["CREATE VIEW looks_harmless AS SELECT * FROM intervals"], "sqlite_schema, row of name looks_harmless"),
        (&["CREATE TABLE more (a)"], "sqlite_schema"),
        (&["ALTER TABLE jobs ADD COLUMN more"], "sqlite_schema, row of name jobs"),
        (
            &["DROP TABLE restated", "CREATE VIEW restated AS SELECT 1 AS hour_us WHERE FALSE"],
            "sqlite_schema, row of name restated",
        ),
        (&["CREATE TRIGGER adds AFTER INSERT ON intervals BEGIN DELETE FROM due; END"], "sqlite_schema"),
        (
            &[
                "DROP TRIGGER ledger_is_not_changed",
                "CREATE TRIGGER ledger_is_not_changed BEFORE UPDATE ON ledger BEGIN SELECT 1; END",
            ],
            "sqlite_schema, row of name ledger_is_not_changed",
        ),
    ] {
        let dir = doctored(ledger.path(), statements);
        let reported = wrong(dir.path()).await.unwrap_or_else(|| panic!("{statements:?} goes unseen"));
        assert!(reported.starts_with(&format!("table {named}")), "{statements:?}: {reported}");
    }
}

#[tokio::test]
async fn what_no_digest_covers_is_said_with_the_result() {
    let ledger = ledger().await;
    // A running job's progress, what sources said of hours to come, and what is open.
    let changes = [
        "UPDATE jobs SET progress = replace(progress, '2000000.0', '9000000.0') WHERE id = 'b'",
        "UPDATE intensities SET g_per_kwh = g_per_kwh + 1",
        "INSERT INTO settlements VALUES ('DE', 'nobody', 'average', 'lifecycle', 5)",
    ];
    let dir = doctored(ledger.path(), &changes);
    let reported = report(dir.path(), &["verify"]);
    for part in [
        "of running jobs",
        "profiles",
        "intensities before they are settled with",
        "recurring jobs",
        "since the last checkpoint",
    ] {
        assert!(reported.done().contains(part), "{part}: {}", reported.done());
    }
}

#[tokio::test]
async fn ledger_of_an_earlier_version_are_covered_from_their_next_start_on() {
    let ledger = ledger().await;
    let earlier = [
        "DROP TRIGGER ledger_is_not_shortened",
        "DROP TRIGGER ledger_is_not_changed",
        "DELETE FROM ledger WHERE kind IN ('registered', 'ended')",
        CHANGED,
        SHORTENED,
        "UPDATE checkpoints SET hash = NULL",
        "DROP TABLE open_block",
        "DROP TABLE audit",
        "ALTER TABLE jobs DROP COLUMN owners",
        "ALTER TABLE recurring_jobs DROP COLUMN owners",
        "ALTER TABLE recurring_jobs DROP COLUMN members",
        "ALTER TABLE recurring_trials DROP COLUMN owners",
        "DROP INDEX recurring_trials_with_earlier_jobs",
        "ALTER TABLE recurring_trials DROP COLUMN earlier_jobs",
        "DROP TABLE days_run",
        "PRAGMA user_version = 13",
    ];
    let dir = doctored(ledger.path(), &earlier);
    for _ in 0..2 {
        Store::open(dir.path()).await.expect("opens").close().await;
    }
    // The chain has a hole where the entries were; jobs and checkpoints are noted once.
    let store = Store::open_read_only(dir.path()).await.expect("opens");
    assert_eq!(store.newest_entry("ended").await.expect("read").map(|e| e.kind()), Some("ended"));
    store.close().await;
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    let count = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted");
    let jobs = count("SELECT COUNT(*) FROM jobs");
    assert_eq!(count("SELECT COUNT(*) FROM ledger WHERE kind = 'registered'"), jobs);
    assert_eq!(count("SELECT COUNT(*) FROM checkpoints WHERE hash IS NULL"), 0);
}
