//! Verification of what the figures in reports depend on besides the derived tables: the schema, each device's
//! checkpoint (counter reading up to which energy is recorded) and the jobs.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};

use super::changes::{changed_checkpoints, changed_rows};
use super::checkpoints::counter;
use super::open_block::OpenBlock;
use crate::store::jobs::{of_end, of_registration};
use crate::store::{StoreError, migrate, rows};
use wattune_core::domain::{EnergySource, JobId};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::verify::Inconsistency;

/// SQL statements that create the tables, indexes, triggers and views, by kind, name and table.
type Schema = BTreeMap<(String, String, String), String>;

/// Reason why a verification stopped: an inconsistency, or a failure of the database.
pub(super) enum VerifyError {
    Inconsistency(Inconsistency),
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for VerifyError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

pub(super) fn inconsistency(table: &str, key: &str, why: impl Into<String>) -> VerifyError {
    VerifyError::Inconsistency(Inconsistency { place: format!("table {table}, row of {key}"), why: why.into() })
}

/// Checks the integrity of the database file, because rows that are missing from an index would be hidden from queries.
pub(super) fn check_pages(tx: &Connection) -> Result<(), VerifyError> {
    let found: String = rows::one(tx, "PRAGMA integrity_check(1)", [], rows::first)?;
    match found.as_str() {
        "ok" => Ok(()),
        why => {
            Err(VerifyError::Inconsistency(Inconsistency { place: "the database file".into(), why: why.to_owned() }))
        }
    }
}

/// Checks that tables, indexes, triggers and views are exactly those that this program creates.
pub(super) fn compare_schema(tx: &Connection) -> Result<(), VerifyError> {
    let mut fresh = Connection::open_in_memory()?;
    migrate::migrate(&mut fresh)?;
    let mut expected = schema(&fresh)?;
    for ((kind, name, table), sql) in schema(tx)? {
        match expected.remove(&(kind.clone(), name.clone(), table)) {
            None => {
                return Err(inconsistency(
                    "sqlite_schema",
                    &format!("name {name}"),
                    format!("is a {kind} that wattune does not create"),
                ));
            }
            Some(right) if right != sql => {
                let why = format!("is a {kind} created by {sql:?}; wattune creates it by {right:?}");
                return Err(inconsistency("sqlite_schema", &format!("name {name}"), why));
            }
            Some(_) => {}
        }
    }
    match expected.first_key_value() {
        None => Ok(()),
        Some(((kind, name, table), _)) => {
            let why = format!("is missing; wattune creates this {kind} of table {table}");
            Err(inconsistency("sqlite_schema", &format!("name {name}"), why))
        }
    }
}

fn schema(db: &Connection) -> Result<Schema, StoreError> {
    // Leaves out SQLite's statistics, which any tool may gather, and the former table of versions, which the next start
    // drops: neither changes the result of a query.
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

/// Checks that no row since the last close is missing, that each device's checkpoint (counter reading up to which
/// energy is recorded) is unchanged, and that the increase of each device's energy counter since the last close equals
/// the energy recorded from it.
pub(super) fn compare_checkpoints(tx: &Connection) -> Result<(), VerifyError> {
    let of_record = |why: String| inconsistency("open_block", "the open block", why);
    let open = OpenBlock::stored(tx)?.map_err(|why| of_record(why.to_owned()))?;
    if let Some((device, why)) = changed_checkpoints(&open, tx)?.first_key_value() {
        return Err(inconsistency("checkpoints", &format!("device {device}"), *why));
    }
    if let Some(why) = changed_rows(&open, tx)? {
        return Err(of_record(why));
    }
    let sql = "SELECT device, source, SUM(energy_mj) FROM intervals WHERE block = ?1 GROUP BY device, source";
    let of_source = |row: &Row<'_>| Ok::<_, StoreError>((row.get(0)?, rows::source(row)?, row.get(2)?));
    let mut recorded: BTreeMap<String, i64> = BTreeMap::new();
    for (device, source, energy) in rows::all::<(String, EnergySource, i64)>(tx, sql, [open.block], of_source)? {
        *recorded.entry(device).or_default() += if source.is_of_counter() { energy } else { 0 };
    }
    let mut statement = tx.prepare_cached("SELECT * FROM checkpoints ORDER BY device")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let device: String = row.get("device")?;
        let (gained, recorded) = (counter(row)?.gained(), recorded.get(&device).copied().unwrap_or_default());
        if gained != recorded {
            let why =
                format!("its counter gained {gained} mJ since the last close, but the open block has {recorded} mJ");
            return Err(inconsistency("checkpoints", &format!("device {device}"), why));
        }
    }
    Ok(())
}

/// Checks that the jobs in the database are those that the ledger has, unchanged since their registration and end.
/// `registered` and `ended` hold the digests that the ledger has of each job's registration and end.
pub(super) fn compare_jobs(
    tx: &Connection,
    mut registered: BTreeMap<JobId, Digest>,
    mut ended: BTreeMap<JobId, Digest>,
) -> Result<(), VerifyError> {
    let mut statement = tx.prepare_cached("SELECT * FROM jobs ORDER BY id")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let text: String = row.get("id")?;
        let inconsistency = |why: &str| Err(inconsistency("jobs", &format!("id {text}"), why));
        // An invalid id was never registered.
        let id = JobId::new(text.as_str()).ok();
        let of = |digests: &mut BTreeMap<JobId, Digest>| id.as_ref().and_then(|id| digests.remove(id));
        let (registered, ended) = (of(&mut registered), of(&mut ended));
        let why = match registered {
            None => "exists, but the ledger has no registration of it",
            Some(facts) if facts != of_registration(row)? => {
                "differs from its registration in the ledger (name, GPUs, tags, time or other data)"
            }
            Some(_) => match (ended, of_end(row)?) {
                (None, None) => continue,
                (Some(facts), Some((_, found))) if facts == found => continue,
                (None, Some(_)) => "has ended, but the ledger has no end of it",
                (Some(_), None) => "has not ended, but the ledger has an end of it",
                (Some(_), Some(_)) => "differs from its end in the ledger (progress, time or reason)",
            },
        };
        return inconsistency(why);
    }
    match registered.first_key_value() {
        None => Ok(()),
        Some((id, _)) => {
            Err(inconsistency("jobs", &format!("id {id}"), "is missing, but the ledger has a registration of it"))
        }
    }
}
