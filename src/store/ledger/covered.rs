//! What figures depend on beside the tables that follow from the ledger: the schema itself, where the books of each device
//! stand against its counter, and the jobs.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row, params};

use super::follows::Failed;
use super::jobs::{of_end, of_registration};
use super::{counter, digest, open_block};
use crate::store::{StoreError, migrate, rows};
use wattune_core::domain::{EnergySource, JobId};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::verify::Broken;

/// Kind, name and table of a part of the schema, and the statement that makes it.
type Schema = BTreeMap<(String, String, String), String>;

fn broken(table: &str, key: &str, why: impl Into<String>) -> Failed {
    Failed::Broken(Broken { place: format!("table {table}, row of {key}"), why: why.into() })
}

/// Whether the database is sound by its own rules: an index that lacks rows hides them from whoever reads by it.
pub(super) fn check_pages(tx: &Connection) -> Result<(), Failed> {
    let found: String = rows::one(tx, "PRAGMA integrity_check(1)", [], rows::first)?;
    match found.as_str() {
        "ok" => Ok(()),
        why => Err(Failed::Broken(Broken { place: "the database file".into(), why: why.to_owned() })),
    }
}

/// Whether tables, indexes, triggers and views are those that this program makes, and no others.
pub(super) fn compare_schema(tx: &Connection) -> Result<(), Failed> {
    let mut fresh = Connection::open_in_memory()?;
    migrate::migrate(&mut fresh)?;
    let mut expected = schema(&fresh)?;
    for ((kind, name, table), sql) in schema(tx)? {
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

fn schema(db: &Connection) -> Result<Schema, StoreError> {
    // Statistics may be gathered by anybody and change no answer. Nor does the table in which versions were before, which
    // the next start drops.
    let sql = format!(
        "SELECT type, name, tbl_name, COALESCE(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' \
         AND NOT (tbl_name = '{}' AND type IN ('table', 'index'))",
        migrate::FORMER_TABLE
    );
    let part = |row: &Row<'_>| {
        let words: Vec<&str> = rows::text(row, 3)?.split_whitespace().collect();
        Ok::<_, StoreError>(((row.get(0)?, row.get(1)?, row.get(2)?), words.join(" ")))
    };
    Ok(rows::all(db, &sql, [], part)?.into_iter().collect())
}

/// What the digest of a checkpoint is of: device, counter, time, holders, what resets moved it by, which counter it is, and
/// what is booked already of what it gains from there on.
pub(super) type Columns<'a> = (&'a str, i64, i64, &'a str, i64, Option<&'a str>, i64);

/// The digest of a checkpoint's row.
pub(super) fn checkpoint_digest(columns: &Columns<'_>) -> Result<Digest, StoreError> {
    Ok(Digest::of(rows::json(columns)?))
}

fn of_row(row: &Row<'_>) -> Result<Digest, StoreError> {
    let read_from: Option<String> = row.get("read_from")?;
    checkpoint_digest(&(
        rows::text(row, "device")?,
        row.get("counter_mj")?,
        row.get("at_us")?,
        rows::text(row, "holders")?,
        row.get("rebased_mj")?,
        read_from.as_deref(),
        row.get("estimated_mj")?,
    ))
}

/// Gives their digests to checkpoints of an earlier version.
pub(super) fn digest_old_checkpoints(db: &Connection) -> Result<(), StoreError> {
    let of_device = |row: &Row<'_>| Ok::<(String, Digest), StoreError>((row.get("device")?, of_row(row)?));
    for (device, hash) in rows::all(db, "SELECT * FROM checkpoints WHERE hash IS NULL", [], of_device)? {
        let sql = "UPDATE checkpoints SET hash = ?1 WHERE device = ?2 AND hash IS NULL";
        rows::execute(db, sql, params![hash.as_bytes(), device])?;
    }
    Ok(())
}

/// Whether each device's checkpoint is as it was written, and its counter gained since the last close what is booked since.
pub(super) fn compare_checkpoints(tx: &Connection) -> Result<(), Failed> {
    let (open, _) = open_block(tx)?;
    let sql = "SELECT device, source, SUM(energy_mj) FROM intervals WHERE block = ?1 GROUP BY device, source";
    let of_source = |row: &Row<'_>| Ok::<_, StoreError>((row.get(0)?, rows::source(row)?, row.get(2)?));
    let mut booked: BTreeMap<String, i64> = BTreeMap::new();
    for (device, source, energy) in rows::all::<(String, EnergySource, i64)>(tx, sql, [open], of_source)? {
        *booked.entry(device).or_default() += if source.is_of_counter() { energy } else { 0 };
    }
    let sql = "SELECT DISTINCT device FROM balances WHERE counter_mj IS NOT NULL";
    let mut counted: BTreeSet<String> = rows::all(tx, sql, [], rows::first)?.into_iter().collect();
    let mut statement = tx.prepare_cached("SELECT * FROM checkpoints ORDER BY device")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let device: String = row.get("device")?;
        let broken = |why: String| broken("checkpoints", &format!("device {device}"), why);
        if row.get::<_, Option<Vec<u8>>>("hash")?.is_none() {
            return Err(broken("has no digest".into()));
        }
        if digest(row)? != of_row(row)? {
            return Err(broken("its hash does not fit: it was changed".into()));
        }
        let (gained, booked) = (counter(row)?.gained(), booked.get(&device).copied().unwrap_or_default());
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

/// Whether each job that was registered is there, as it was registered and as it ended, and no other one is.
pub(super) fn compare_jobs(
    tx: &Connection,
    mut registered: BTreeMap<JobId, Digest>,
    mut ended: BTreeMap<JobId, Digest>,
) -> Result<(), Failed> {
    let mut statement = tx.prepare_cached("SELECT * FROM jobs ORDER BY id")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let text: String = row.get("id")?;
        let broken = |why: &str| Err(broken("jobs", &format!("id {text}"), why));
        // A text that is no id was never registered.
        let id = JobId::new(text.as_str()).ok();
        let of = |digests: &mut BTreeMap<JobId, Digest>| id.as_ref().and_then(|id| digests.remove(id));
        let (registered, ended) = (of(&mut registered), of(&mut ended));
        let why = match registered {
            None => "stands there, and was never registered by the ledger",
            Some(facts) if facts != of_registration(row)? => {
                "its name, GPUs, labels, time or something else is not as it was registered"
            }
            Some(_) => match (ended, of_end(row)?) {
                (None, None) => continue,
                (Some(facts), Some((_, found))) if facts == found => continue,
                (None, Some(_)) => "has ended, and by the ledger it has not",
                (Some(_), None) => "has not ended, and by the ledger it has",
                (Some(_), Some(_)) => "its progress, the time or the reason of its end is not as it was when it ended",
            },
        };
        return broken(why);
    }
    match registered.first_key_value() {
        None => Ok(()),
        Some((id, _)) => Err(broken("jobs", &format!("id {id}"), "is missing; by the ledger it was registered")),
    }
}
