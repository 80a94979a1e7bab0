//! Versions of the schema. Each migration is a file of SQL that converts the tables from one version to the next.
//!
//! The version is stored in the database header, and changes in the migration's own transaction. Until November 2026
//! the migration library then in use (sqlx) stored it in a table, with a digest of each migration file. Opening such a
//! database moves the version to the header.

use rusqlite::{Connection, OptionalExtension as _};
use sha2::{Digest as _, Sha384};

use super::StoreError;
use super::connection::writing;
use super::ledger;

/// Application id in the database header ("watt" in ASCII), so that the version in another application's database is
/// not mistaken for one of wattune.
const APPLICATION_ID: i64 = 0x7761_7474;

/// First version of the tables in which the digest of a checkpoint (counter reading up to which energy is recorded)
/// covers all columns.
const ALL_COLUMNS: i64 = 13;

/// First version of the tables in which digests cover all rows: from then on, a missing digest means that its row was
/// changed.
const COVERED: i64 = 14;

/// Table in which the former migration library stored the versions.
pub(super) const FORMER_TABLE: &str = "_sqlx_migrations";

struct Migration {
    version: i64,
    sql: &'static str,
}

/// Lists the migration files, oldest first; a file name begins with its version.
macro_rules! migrations {
    ($($version:literal $file:literal),* $(,)?) => {
        &[$(Migration { version: $version, sql: include_str!(concat!("migrations/", $file)) }),*]
    };
}

const MIGRATIONS: &[Migration] = migrations![
    1 "0001_foundation.sql",
    2 "0002_signals.sql",
    3 "0003_demand_response.sql",
    4 "0004_recurring.sql",
    5 "0005_ledger.sql",
    7 "0007_savings.sql",
    8 "0008_size.sql",
    9 "0009_recurring.sql",
    10 "0010_counters.sql",
    12 "0012_open.sql",
    13 "0013_estimated.sql",
    14 "0014_open_block.sql",
    15 "0015_presence.sql",
    16 "0016_audit.sql",
    17 "0017_owners.sql",
    18 "0018_trial_owners.sql",
    19 "0019_earlier_jobs.sql",
    20 "0020_days.sql",
];

pub(super) const fn latest() -> i64 {
    MIGRATIONS[MIGRATIONS.len() - 1].version
}

/// Returns the version of a database's tables from the header or the former table; 0 before the first migration.
///
/// # Errors
///
/// If the version cannot be read, as in another application's database, which has neither wattune's header nor the
/// former table.
pub(super) fn version(db: &Connection) -> rusqlite::Result<i64> {
    match own_version(db)? {
        Some(version) => Ok(version),
        None => {
            let sql = format!("SELECT MAX(version) FROM {FORMER_TABLE} WHERE success");
            Ok(db.query_row(&sql, [], |row| row.get::<_, Option<i64>>(0))?.unwrap_or_default())
        }
    }
}

/// Migrates a database to this program's version.
///
/// # Errors
///
/// If the tables belong to a newer version of wattune, their earlier migrations were not this program's, or a statement
/// fails. Completed steps remain, and the next start continues from there.
pub(super) fn migrate(db: &mut Connection) -> Result<(), StoreError> {
    // If there is nothing to migrate, no lock is taken, because another process may be writing.
    while own_version(db)? != Some(latest()) || has_former_table(db)? {
        step(db)?;
    }
    Ok(())
}

/// Checks, without a change, that [`migrate`] knows the version of a database's tables.
///
/// # Errors
///
/// If the tables belong to a newer version of wattune, or their earlier migrations were not this program's.
pub(super) fn check(db: &Connection) -> Result<(), StoreError> {
    let version = match own_version(db)? {
        Some(version) => version,
        None if has_former_table(db)? => former_version(db)?,
        None => 0,
    };
    check_known(version)
}

/// Checks that a version is one of this program's; 0 or less is that of a database without tables.
fn check_known(version: i64) -> Result<(), StoreError> {
    match version <= 0 || MIGRATIONS.iter().any(|m| m.version == version) {
        true => Ok(()),
        false => Err(missing(version)),
    }
}

/// Moves the version from the former table to the header, or runs one migration.
fn step(db: &mut Connection) -> Result<(), StoreError> {
    let tx = writing(db)?;
    let own = own_version(&tx)?;
    if has_former_table(&tx)? {
        let version = match own {
            // An older program that rejected this database has created the former table again, empty: the header's
            // version counts.
            Some(version) => version,
            None => former_version(&tx)?,
        };
        tx.execute_batch(&format!("DROP TABLE {FORMER_TABLE}"))?;
        set_version(&tx, version)?;
    } else {
        let present = own.unwrap_or_default();
        check_known(present)?;
        let Some(next) = MIGRATIONS.iter().find(|m| m.version > present) else { return Ok(()) };
        tx.execute_batch(next.sql).map_err(|error| match StoreError::from(error) {
            StoreError::Statement(why) => {
                StoreError::Migrate(format!("while executing migration {}: {why}", next.version))
            }
            other => other,
        })?;
        match next.version {
            ALL_COLUMNS => ledger::reset_checkpoint_digests(&tx)?,
            COVERED => ledger::cover_old_rows(&tx)?,
            _ => {}
        }
        set_version(&tx, next.version)?;
    }
    Ok(tx.commit()?)
}

/// Returns the version in the header of a database that is marked as wattune's; `None` without that mark.
fn own_version(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let pragma = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    if pragma("application_id")? == APPLICATION_ID { pragma("user_version").map(Some) } else { Ok(None) }
}

fn set_version(db: &Connection, version: i64) -> rusqlite::Result<()> {
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", version)
}

fn has_former_table(db: &Connection) -> rusqlite::Result<bool> {
    db.table_exists(None, FORMER_TABLE)
}

/// Returns the version in the former table, after checking that each migration listed there is one of this program's
/// and is complete.
fn former_version(db: &Connection) -> Result<i64, StoreError> {
    let sql = format!("SELECT version FROM {FORMER_TABLE} WHERE NOT success ORDER BY version LIMIT 1");
    if let Some(version) = db.query_row(&sql, [], |row| row.get::<_, i64>(0)).optional()? {
        return Err(StoreError::Migrate(format!("migration {version} was interrupted before it was complete")));
    }
    let mut applied = db.prepare(&format!("SELECT version, checksum FROM {FORMER_TABLE} ORDER BY version"))?;
    let mut applied = applied.query([])?;
    let (mut last, mut expected) = (0, MIGRATIONS.iter());
    while let Some(row) = applied.next()? {
        last = row.get(0)?;
        let Some(known) = expected.next().filter(|m| m.version == last) else { return Err(missing(last)) };
        if row.get::<_, Vec<u8>>(1)? != Sha384::digest(known.sql)[..] {
            return Err(StoreError::Migrate(format!("migration {last} in the database differs from this version's")));
        }
    }
    Ok(last)
}

fn missing(version: i64) -> StoreError {
    StoreError::Migrate(format!("the database has migration {version}, which this version of wattune does not have"))
}

#[cfg(test)]
mod tests;
