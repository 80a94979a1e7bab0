//! What figures depend on beside the tables that follow from the ledger: the schema itself, where the books of each device
//! stand against its counter, and the jobs.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqlitePoolOptions, SqliteRow};

use super::follows::Failed;
use super::jobs::{of_end, of_registration};
use super::{digest, open_block};
use crate::ledger::chain::Digest;
use crate::ledger::verify::Broken;
use crate::store::{Store, StoreError, rows};

/// Kind, name and table of a part of the schema, and the statement that makes it.
type Schema = BTreeMap<(String, String, String), String>;

fn broken(table: &str, key: &str, why: impl Into<String>) -> Failed {
    Failed::Broken(Broken { place: format!("table {table}, row of {key}"), why: why.into() })
}

/// Whether the database is sound by its own rules: an index that lacks rows hides them from whoever reads by it.
pub(super) async fn check_pages(tx: &mut SqliteConnection) -> Result<(), Failed> {
    let found: String = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(tx).await?;
    match found.as_str() {
        "ok" => Ok(()),
        why => Err(Failed::Broken(Broken { place: "the database file".into(), why: why.to_owned() })),
    }
}

/// Whether tables, indexes, triggers and views are those that this program makes, and no others.
pub(super) async fn compare_schema(tx: &mut SqliteConnection) -> Result<(), Failed> {
    let fresh = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::migrate!("src/store/migrations").run(&fresh).await.map_err(StoreError::from)?;
    let mut expected = schema(&mut *fresh.acquire().await?).await?;
    for ((kind, name, table), sql) in schema(tx).await? {
        match expected.remove(&(kind.clone(), name.clone(), table)) {
            None => {
                return Err(broken(
                    "sqlite_schema",
                    &format!("name {name}"),
                    format!("is a {kind} that wattune does not make"),
                ));
            }
            Some(right) if right != sql => {
                let why = format!("is a {kind} made by {sql:?}; wattune makes it by {right:?}");
                return Err(broken("sqlite_schema", &format!("name {name}"), why));
            }
            Some(_) => {}
        }
    }
    match expected.first_key_value() {
        None => Ok(()),
        Some(((kind, name, table), _)) => {
            let why = format!("is missing; wattune makes this {kind} of table {table}");
            Err(broken("sqlite_schema", &format!("name {name}"), why))
        }
    }
}

async fn schema(connection: &mut SqliteConnection) -> Result<Schema, StoreError> {
    // Statistics may be gathered by anybody and change no answer.
    let sql =
        "SELECT type, name, tbl_name, COALESCE(sql, '') AS sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%'";
    let part = |row: &SqliteRow| {
        let statement: &str = row.try_get("sql")?;
        let words: Vec<&str> = statement.split_whitespace().collect();
        Ok(((row.try_get("type")?, row.try_get("name")?, row.try_get("tbl_name")?), words.join(" ")))
    };
    sqlx::query(sql).fetch_all(connection).await?.iter().map(part).collect()
}

/// What the digest of a checkpoint is of: device, counter, time, holders, what resets moved it by, which counter it is, and
/// what is booked already of what it gains from there on.
pub(super) type Columns<'a> = (&'a str, i64, i64, &'a str, i64, Option<&'a str>, i64);

/// The digest of a checkpoint's row.
pub(super) fn checkpoint_digest(columns: &Columns<'_>) -> Result<Digest, StoreError> {
    Ok(Digest::of(rows::json(columns)?))
}

fn of_row(row: &SqliteRow) -> Result<Digest, StoreError> {
    checkpoint_digest(&(
        row.try_get("device")?,
        row.try_get("counter_mj")?,
        row.try_get("at_us")?,
        row.try_get("holders")?,
        row.try_get("rebased_mj")?,
        row.try_get("read_from")?,
        row.try_get("estimated_mj")?,
    ))
}

/// Gives their digests to checkpoints of an earlier version.
pub(in crate::store) async fn digest_old_checkpoints(store: &Store) -> Result<(), StoreError> {
    let old = sqlx::query("SELECT * FROM checkpoints WHERE hash IS NULL").fetch_all(&store.pool).await?;
    for row in &old {
        sqlx::query("UPDATE checkpoints SET hash = $1 WHERE device = $2 AND hash IS NULL")
            .bind(of_row(row)?.as_bytes())
            .bind(row.try_get::<&str, _>("device")?)
            .execute(&store.pool)
            .await?;
    }
    Ok(())
}

/// Whether each device's checkpoint is as it was written, and its counter gained since the last close what is booked since.
pub(super) async fn compare_checkpoints(tx: &mut SqliteConnection) -> Result<(), Failed> {
    let (open, _) = open_block(tx).await?;
    let sql = "SELECT device, SUM(energy_mj) FROM intervals WHERE block = $1 AND source <> 'integrated_power' GROUP BY device";
    let booked: BTreeMap<String, i64> = sqlx::query_as(sql).bind(open).fetch_all(&mut *tx).await?.into_iter().collect();
    let sql = "SELECT DISTINCT device FROM balances WHERE counter_mj IS NOT NULL";
    let mut counted: BTreeSet<String> = sqlx::query_scalar(sql).fetch_all(&mut *tx).await?.into_iter().collect();
    for row in sqlx::query("SELECT * FROM checkpoints ORDER BY device").fetch_all(&mut *tx).await? {
        let device: String = row.try_get("device")?;
        let broken = |why: String| broken("checkpoints", &format!("device {device}"), why);
        if row.try_get::<Option<&[u8]>, _>("hash")?.is_none() {
            return Err(broken("has no digest".into()));
        }
        if digest(&row)? != of_row(&row)? {
            return Err(broken("its hash does not fit: it was changed".into()));
        }
        let (counter, rebased, base): (i64, i64, i64) =
            (row.try_get("counter_mj")?, row.try_get("rebased_mj")?, row.try_get("base_mj")?);
        let (gained, booked) = (counter - rebased - base, booked.get(&device).copied().unwrap_or_default());
        if gained != booked {
            let why =
                format!("its counter gained {gained} mJ since the last close; from the open block follow {booked} mJ");
            return Err(broken(why));
        }
        counted.remove(&device);
    }
    match counted.first() {
        None => Ok(()),
        Some(device) => {
            let why = "is missing; blocks were closed with what its counter had gained";
            Err(broken("checkpoints", &format!("device {device}"), why))
        }
    }
}

/// What the ledger says of jobs.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) registered: BTreeMap<String, Digest>,
    pub(super) ended: BTreeMap<String, Digest>,
}

impl Jobs {
    /// Whether each job that was registered is there, as it was registered and as it ended, and no other one is.
    pub(super) async fn compare(mut self, tx: &mut SqliteConnection) -> Result<(), Failed> {
        let mut found = sqlx::query("SELECT * FROM jobs ORDER BY id").fetch(&mut *tx);
        while let Some(row) = found.try_next().await? {
            let id: String = row.try_get("id")?;
            let broken = |why: &str| Err(broken("jobs", &format!("id {id}"), why));
            let ended = self.ended.remove(&id);
            let why = match self.registered.remove(&id) {
                None => "stands there, and was never registered by the ledger",
                Some(facts) if facts != of_registration(&row)? => {
                    "its name, GPUs, labels, time or something else is not as it was registered"
                }
                Some(_) => match (ended, of_end(&row)?) {
                    (None, None) => continue,
                    (Some(facts), Some((_, found))) if facts == found => continue,
                    (None, Some(_)) => "has ended, and by the ledger it has not",
                    (Some(_), None) => "has not ended, and by the ledger it has",
                    (Some(_), Some(_)) => {
                        "its progress, the time or the reason of its end is not as it was when it ended"
                    }
                },
            };
            return broken(why);
        }
        match self.registered.first_key_value() {
            None => Ok(()),
            Some((id, _)) => Err(broken("jobs", &format!("id {id}"), "is missing; by the ledger it was registered")),
        }
    }
}
