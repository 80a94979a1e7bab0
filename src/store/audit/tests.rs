//! Tests of the audit log: records are stored in order, never changed, and counted when they are lost.

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::Connection;

use super::*;
use crate::store::tests::store;
use crate::store::{FILE_NAME, Store};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::seconds(seconds)
}

fn set(seconds: i64, gpu: &str, watts: f64) -> AuditRecord {
    let after = AuditState { power_limit_w: Some(watts), ..AuditState::default() };
    let record = AuditRecord::new(at(seconds), "user 1000", AuditAction::SetPowerLimit);
    AuditRecord { gpu: Some(gpu.into()), job_id: Some(format!("job-{gpu}")), after: Some(after), ..record }
}

const ALL: AuditQuery = AuditQuery { after: None, limit: 100, gpu: None, job: None, since: None };

#[tokio::test]
async fn records_are_read_as_they_were_written_in_pages_and_by_gpu_job_and_time() {
    let (_dir, store) = store().await;
    let refused = set(2, "b", 90.0).with_outcome(AuditOutcome::Refused, "the limit is outside the GPU's range");
    let written = [set(0, "a", 200.0), set(1, "a", 250.0), refused, set(3, "b", 300.0)];
    written.iter().for_each(|record| store.audit().record(record.clone()));
    let numbered = |of: &[usize]| of.iter().map(|i| (*i as u64 + 1, written[*i].clone())).collect::<Vec<_>>();
    let table = [
        (ALL, vec![0, 1, 2, 3], None),
        (AuditQuery { limit: 2, ..ALL }, vec![0, 1], Some(2)),
        (AuditQuery { after: Some(2), limit: 2, ..ALL }, vec![2, 3], None),
        (AuditQuery { after: Some(u64::MAX), ..ALL }, vec![], None),
        (AuditQuery { gpu: Some("b".into()), ..ALL }, vec![2, 3], None),
        (AuditQuery { job: Some("job-a".into()), limit: 1, ..ALL }, vec![0], Some(1)),
        (AuditQuery { since: Some(at(2)), ..ALL }, vec![2, 3], None),
        (AuditQuery { since: Some(at(9)), ..ALL }, vec![], None),
        (AuditQuery { gpu: Some("a".into()), since: Some(at(1)), ..ALL }, vec![1], None),
    ];
    for (query, expected, next_after) in table {
        let page = store.audit().page(query.clone()).await.expect("read");
        assert_eq!(page, AuditPage { records: numbered(&expected), next_after }, "{query:?}");
    }
}

#[tokio::test]
async fn records_are_stored_when_the_store_is_closed_and_then_neither_changed_nor_deleted() {
    let (dir, store) = store().await;
    store.audit().record(set(0, "a", 200.0));
    store.close().await;
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    let count = || db.query_row("SELECT COUNT(*) FROM audit", [], |row| row.get::<_, i64>(0)).expect("counted");
    assert_eq!(count(), 1);
    let refused = db.execute("UPDATE audit SET line = '{}'", []).expect_err("refused").to_string();
    assert!(refused.contains("written once"), "{refused}");
    db.execute("INSERT INTO audit (at_us, line) VALUES (?, '{}')", [at(1).timestamp_micros()]).expect("appended");
    let refused = db.execute("DELETE FROM audit WHERE id = 2", []).expect_err("refused").to_string();
    assert!(refused.contains("kept for 400 days"), "{refused}");
    // Neither a record with an old date nor a start with a wrong clock makes records old.
    db.execute("INSERT INTO audit (at_us, line) VALUES (0, '{}')", []).expect("appended");
    let store = Store::open(dir.path()).await.expect("opens");
    store.audit().record(set(401 * 86_400, "a", 300.0));
    store.audit().flush().await.expect("stored");
    store.begin_day(at(401 * 86_400)).await.expect("noted");
    assert_eq!(count(), 4);
}

#[tokio::test]
async fn repeated_actions_are_counted_in_one_record() {
    let (_dir, store) = store().await;
    for seconds in 0..5 {
        store.audit().record(set(seconds, "a", 200.0));
    }
    store.audit().record(set(5, "a", 250.0));
    store.audit().record(set(6, "a", 200.0));
    let page = store.audit().page(ALL).await.expect("read");
    let counted: Vec<u32> = page.records.iter().map(|(_, record)| record.repeats).collect();
    assert_eq!(counted, [4, 0, 0]);
}

#[tokio::test]
async fn records_beyond_one_transaction_are_stored_without_another_request() {
    let (dir, store) = store().await;
    for seconds in 0..1000 {
        store.audit().record(set(seconds, "a", seconds as f64));
    }
    store.audit().begin_write();
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    let count = || db.query_row("SELECT COUNT(*) FROM audit", [], |row| row.get::<_, i64>(0)).expect("counted");
    let stored = async {
        while count() < 1000 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), stored).await.expect("all are stored");
}

#[tokio::test]
async fn a_locked_database_loses_no_record_and_a_full_queue_says_how_many_it_lost() {
    let (dir, store) = store().await;
    let other = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    for seconds in 0..8200 {
        store.audit().record(set(seconds, "a", seconds as f64));
    }
    assert_eq!(store.audit().lost(), 8);
    store.audit().flush().await.expect_err("locked");
    assert!(store.audit().fault().is_some_and(|why| why.contains("locked")));
    other.execute_batch("ROLLBACK").expect("unlocked");
    let query = AuditQuery { after: Some(8000), limit: 1000, ..ALL };
    let page = store.audit().page(query).await.expect("read");
    assert_eq!(page.records.len(), 193);
    let (number, last) = page.records.last().expect("a record");
    assert_eq!((*number, last.action), (8193, AuditAction::LoseRecords));
    let why = last.reason.as_deref().unwrap_or_default();
    assert_eq!(why, "8 records were lost: they come faster than they can be stored");
    assert_eq!(store.audit().fault(), None);

    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    store.audit().record(set(0, "a", 1.0));
    store.audit().flush().await.expect_err("locked");
    for seconds in 0..8192 {
        store.audit().record(set(seconds, "a", seconds as f64));
    }
    other.execute_batch("ROLLBACK").expect("unlocked");
    let page = store.audit().page(AuditQuery { after: Some(16_380), limit: 1000, ..ALL }).await.expect("read");
    let why = page.records.last().and_then(|(_, last)| last.reason.clone()).unwrap_or_default();
    assert!(why.starts_with("1 record was lost: ") && why.contains("locked"), "{why}");
}
