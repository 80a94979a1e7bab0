//! Tests of migration: databases of all versions are migrated, and those of other programs are rejected.

use std::path::Path;

use rusqlite::params;

use super::*;
use crate::store::{FILE_NAME, Store};
use wattune_core::ledger::chain::Digest;

/// Contents of the former table in its last version: version, description and SHA-384 digest of each migration file.
const FORMER: [(i64, &str, &str); 11] = [
    (
        1,
        "foundation",
        "13a306e649c3ff9676901c56adade3a766ea2fa9421563a523bd89fddc379add9a4fc2da2226d13a7b687591391d4607",
    ),
    (2, "signals", "c8a82b9b1d3c9fd91a3e855edda0b12a650687db8a98de0f2c98cb648b237950766065524abfabd801ad1af5873cfca4"),
    (
        3,
        "demand response",
        "ec31a7d980b56acb2a481813e892fdf3bcbb139d18f203be34b5b2fd45d104a6b2a4724e199c74391b86293345e0fbd9",
    ),
    (
        4,
        "recurring",
        "9777457f7ff8f97d8b3ff5b7188ff94c3603361128a850e177ce994217d4fbd3e6688937e8024da8d31a192b4f599ead",
    ),
    (5, "ledger", "f4f5fdbbe6bd288b8ce46b0a83abab5e93170cad0a985000aa9fd9d813b5fcabc4b0a1852cd3c9a491b6c5eedd332bdb"),
    (7, "savings", "f269a247ac045393b6bdb598c8764ff27e17563f5f34a7826556ba1404e6ff857491935f222ff362be649f1fb77f71c8"),
    (8, "size", "1dde9f76816b19fb670a0553f3790b23fcb18e13ad3697ecbc06d41b524f0ccdb83bea2de3ff288d00ca343a1001d3b5"),
    (
        9,
        "recurring",
        "9d381b19d0672e180cdc1db2a419272f4bbf51d6e2e1c13c0f5fc9facfafe40bbadb1d13789ce02e752c6aec99228ea2",
    ),
    (
        10,
        "counters",
        "418de465fd4b07b939bae68bffdb8444e3e959e694adcc383b0f3723d032eb813d84db50f115c3a5458278683be9b30a",
    ),
    (12, "open", "dc065666309598c69ad9640822cee70019076fce9f9ed60a10a9fcd54540e9b0ab4efaaf6c240ca26886ce4c6d89ecda"),
    (
        13,
        "estimated",
        "6ea49e9661c5830e7c49d3a6b98624f04a2f3d799e8609b8d8fca0cc2311e7a1a767e48b2aa196e37ee102b62bbc95ae",
    ),
];

const FORMER_SQL: &str = "CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
)";

/// Creates a database as a version of wattune with the former table left it, with the migrations up to `last`.
fn former(state_dir: &Path, last: i64) -> Connection {
    let db = Connection::open(state_dir.join(FILE_NAME)).expect("made");
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON").expect("set");
    db.execute_batch(FORMER_SQL).expect("made");
    for (migration, (version, description, checksum)) in MIGRATIONS.iter().zip(FORMER) {
        assert_eq!(migration.version, version);
        if version <= last {
            db.execute_batch(migration.sql).expect("migrated");
            db.execute(
                "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (?1, ?2, TRUE, unhex(?3), 1000)",
                params![version, description, checksum],
            )
            .expect("noted");
        }
    }
    db
}

const JOB: &str = "INSERT INTO jobs VALUES ('a', '{}', '{}', 1, 2, 'told')";

fn count(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get(0)).expect("counted")
}

async fn refused(state_dir: &Path) -> String {
    Store::open(state_dir).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn a_database_with_the_former_table_is_converted_on_open() {
    let dir = tempfile::tempdir().expect("a directory");
    former(dir.path(), latest()).execute_batch(JOB).expect("written");
    for _ in 0..2 {
        Store::open(dir.path()).await.expect("opens").close().await;
        let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
        assert_eq!(own_version(&db).expect("read"), Some(latest()));
        assert!(!has_former_table(&db).expect("read"));
        assert_eq!(count(&db, "SELECT COUNT(*) FROM jobs"), 1);
        assert_eq!(count(&db, "SELECT COUNT(*) FROM ledger WHERE kind = 'registered'"), 1);
    }
    Store::open_read_only(dir.path()).await.expect("of this version").close().await;
}

#[tokio::test]
async fn a_database_of_any_version_before_is_migrated_and_keeps_its_rows() {
    for (version, ..) in FORMER {
        let dir = tempfile::tempdir().expect("a directory");
        former(dir.path(), version).execute_batch(JOB).expect("written");
        if version < latest() {
            let old = Store::open_read_only(dir.path()).await.expect_err("refused").to_string();
            assert!(
                old.contains(&format!("an older wattune (tables of version {version}, not {})", latest())),
                "{old}"
            );
        }
        Store::open(dir.path()).await.expect("opens").close().await;
        let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
        assert_eq!((own_version(&db).expect("read"), count(&db, "SELECT COUNT(*) FROM jobs")), (Some(latest()), 1));
    }
}

#[tokio::test]
async fn checkpoints_of_version_12_do_not_count_as_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    // The digest of that version covers one column less.
    let columns = serde_json::to_string(&("GPU-0", 5000, 1_000_000, "[]", 0, None::<&str>)).expect("plain data");
    let sql =
        "INSERT INTO checkpoints (device, counter_mj, at_us, holders, hash) VALUES ('GPU-0', 5000, 1000000, '[]', ?1)";
    former(dir.path(), 12).execute(sql, params![Digest::of(columns).as_bytes()]).expect("written");
    let store = Store::open(dir.path()).await.expect("opens");
    store.set_changes_aside(chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(1)).await.expect("compared");
    assert!(store.newest_entry("lost").await.expect("read").is_none());
    assert_eq!(store.checkpoints().await.expect("read").len(), 1);
    store.close().await;
}

#[tokio::test]
async fn a_database_of_another_version_is_rejected() {
    for (statement, message) in [
        (
            "UPDATE _sqlx_migrations SET version = 9999 WHERE version = 13",
            "the database has migration 9999, which this version of wattune does not have",
        ),
        ("DELETE FROM _sqlx_migrations WHERE version = 5", "the database has migration 7, which this version"),
        (
            "UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 5",
            "migration 5 in the database differs from this version's",
        ),
        (
            "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 13",
            "migration 13 was interrupted before it was complete",
        ),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        former(dir.path(), latest()).execute_batch(statement).expect("written");
        let text = refused(dir.path()).await;
        assert!(text.contains(message) && text.contains("was it written by a newer wattune?"), "{text}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    Store::open(dir.path()).await.expect("opens").close().await;
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    db.pragma_update(None, "user_version", 9999).expect("changed");
    assert!(
        refused(dir.path())
            .await
            .contains("the database has migration 9999, which this version of wattune does not have")
    );
    let newer = Store::open_read_only(dir.path()).await.expect_err("refused").to_string();
    assert!(newer.contains(&format!("a newer wattune (tables of version 9999, not {})", latest())), "{newer}");
    // Without wattune's application id, the version in the header does not count.
    db.pragma_update(None, "application_id", 0).expect("changed");
    drop(db);
    let other_program = Store::open_read_only(dir.path()).await.expect_err("refused").to_string();
    assert!(other_program.contains("it is not a wattune database: (code: 1) no such table"), "{other_program}");
}

#[tokio::test]
async fn the_former_table_left_by_a_rejected_version_is_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    Store::open(dir.path()).await.expect("opens").close().await;
    Connection::open(dir.path().join(FILE_NAME)).expect("opens").execute_batch(FORMER_SQL).expect("made");
    Store::open_read_only(dir.path()).await.expect("of this version").close().await;
    Store::open(dir.path()).await.expect("opens").close().await;
    let db = Connection::open(dir.path().join(FILE_NAME)).expect("opens");
    assert!(!has_former_table(&db).expect("read"));
    assert_eq!(own_version(&db).expect("read"), Some(latest()));
}

#[tokio::test]
async fn a_failed_migration_keeps_the_previous_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = former(dir.path(), 1);
    // The next migration creates another table and then one of this name, so that it fails halfway.
    db.execute_batch("CREATE TABLE settlements (a)").expect("made");
    let text = refused(dir.path()).await;
    assert!(text.contains("while executing migration 2: (code: 1) table settlements already exists"), "{text}");
    assert_eq!(own_version(&db).expect("read"), Some(1));
    assert!(!db.table_exists(None, "issued_forecasts").expect("read"));
    db.execute_batch("DROP TABLE settlements").expect("dropped");
    Store::open(dir.path()).await.expect("opens").close().await;
}
