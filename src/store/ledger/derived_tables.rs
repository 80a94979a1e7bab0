//! Verification of derived tables: the sums and states that reports read and that no digest covers. This module
//! computes these tables again from the chain of the ledger, and compares them row by row.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row};

use super::base_tables::{VerifyError, check_pages, compare_checkpoints, compare_jobs, compare_schema, inconsistency};
use super::chain::share_key;
use super::export::all_lines;
use super::settlements::settlement;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::DeviceId;
use wattune_core::ledger::Share;
use wattune_core::ledger::apportion::day_of;
use wattune_core::ledger::block::DeviceBalance;
use wattune_core::ledger::derived::{CellKey, Derived, LaterVersion, NewestSettlement};
use wattune_core::ledger::due::DueReason;
use wattune_core::ledger::entry::Balance;
use wattune_core::ledger::hour::{TotalsChange, day_changes};
use wattune_core::ledger::verify::{Inconsistency, VerifiedLedger, Verifier};

/// Columns of a table to compare, and the condition for the rows to compare.
struct Table {
    name: &'static str,
    key: &'static [&'static str],
    values: &'static [&'static str],
    only: &'static str,
}

const ENTRIES: Table = Table { name: "ledger", key: &["seq"], values: &["kind", "about_us"], only: "TRUE" };

const SETTLED: Table = Table {
    name: "settled",
    key: &["hour_us", "book"],
    values: &["version", "seq", "through_block", "final", "sources"],
    only: "TRUE",
};

const RESTATED: Table = Table {
    name: "restated",
    key: &["hour_us", "book", "version"],
    values: &["at_us", "reason", "energy_before_mj", "energy_mj", "carbon_before_ug", "carbon_ug"],
    only: "TRUE",
};

const DAY_TOTALS: Table = Table {
    name: "day_totals",
    key: &["day_us", "book", "device", "share", "job_id"],
    values: &["energy_mj", "estimated_mj", "forecast_mj", "provisional_mj", "final_mj", "unknown_mj", "carbon_ug"],
    // Leaves out rows of zeros, which remain after a correction has moved all energy to another share.
    only: "energy_mj <> 0 OR estimated_mj <> 0 OR forecast_mj <> 0 OR provisional_mj <> 0 OR final_mj <> 0 \
           OR unknown_mj <> 0 OR carbon_ug <> 0",
};

const BALANCES: Table = Table {
    name: "balances",
    key: &["block", "device"],
    values: &["at_us", "counter_mj", "jobs_mj", "idle_mj", "unattributed_mj", "integrated_mj", "difference_mj"],
    only: "TRUE",
};

const BALANCE_DAYS: Table = Table {
    name: "balance_days",
    key: &["day_us", "device"],
    values: &["counter_mj", "jobs_mj", "idle_mj", "unattributed_mj", "integrated_mj", "unequal", "difference_mj"],
    only: "TRUE",
};

const ROLLED_UP: Table = Table {
    name: "rolled_up",
    key: &["hour_us", "device", "share", "job_id", "source"],
    values: &["energy_mj"],
    only: "energy_mj <> 0",
};

/// Intervals whose share (who the energy belongs to) a correction changed: it differs from the recorded one, which the
/// digest covers.
const CORRECTED: Table = Table {
    name: "intervals",
    key: &["id"],
    values: &["share", "job_id"],
    only: "booked_share IS NOT NULL OR booked_job IS NOT NULL",
};

/// Rows as texts: the values of the key columns, each with the values of the other columns.
type Rows = BTreeMap<Vec<String>, Vec<String>>;

impl Store {
    /// Verifies the ledger with `verifier`, which must be new, and compares the tables that reports read with the
    /// ledger, all in one read transaction. Returns the verified ledger, or the first inconsistency as the inner error.
    pub async fn verify(&self, verifier: Verifier) -> Result<Result<VerifiedLedger, Inconsistency>, StoreError> {
        match self.reports.run(move |db| verify_all(&*db.transaction()?, verifier)).await {
            Ok(verified) => Ok(Ok(verified)),
            Err(VerifyError::Inconsistency(inconsistency)) => Ok(Err(inconsistency)),
            // An unreadable digest or interval is an inconsistency, just like a wrong one.
            Err(VerifyError::Store(StoreError::Damaged { what, why })) => {
                Ok(Err(Inconsistency { place: what.to_owned(), why }))
            }
            Err(VerifyError::Store(error)) => Err(error),
        }
    }
}

fn verify_all(tx: &Connection, mut verifier: Verifier) -> Result<VerifiedLedger, VerifyError> {
    compare_schema(tx)?;
    check_pages(tx)?;
    let (mut derived, mut entries) = (Derived::default(), Rows::new());
    all_lines::<VerifyError>(tx, |line| {
        if let Some(entry) = verifier.read_line(line.as_bytes()).map_err(VerifyError::Inconsistency)? {
            let seq = derived.apply(&entry);
            entries.insert(vec![seq.to_string()], vec![entry.kind().into(), micros(entry.about())]);
        }
        Ok(())
    })?;
    let verified = verifier.finish().map_err(VerifyError::Inconsistency)?;
    compare(tx, &ENTRIES, entries)?;
    compare_derived(tx, derived)?;
    compare_checkpoints(tx)?;
    compare(tx, &DAY_TOTALS, day_totals(tx)?)?;
    let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
    let of_row = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, row.get(1)?));
    let due = rows::all(tx, sql, [], of_row)?;
    if let Some((hour, why)) = due.iter().find(|(_, why)| DueReason::named(why).is_none()) {
        let why = format!("has why {why:?}, which is not a valid reason");
        return Err(inconsistency("due", &shown(&["hour_us"], &[hour.to_string()]), why));
    }
    let is_due = |hour: i64| {
        due.iter().any(|(due, why)| *due == hour && DueReason::named(why).is_some_and(DueReason::is_of_energy))
    };
    match verified.unsettled.iter().find(|hour| !is_due(hour.timestamp_micros())) {
        None => Ok(verified),
        Some(hour) => {
            let key = format!("hour_us {} ({})", hour.timestamp_micros(), hour.format("%FT%RZ"));
            Err(inconsistency("due", &key, "is missing, but the hour's settlement differs from its recorded energy"))
        }
    }
}

fn compare_derived(tx: &Connection, derived: Derived) -> Result<(), VerifyError> {
    let of_block = |((block, device), (at, b)): ((u64, DeviceId), (DateTime<Utc>, Balance))| {
        let energy = [b.jobs_mj, b.idle_mj, b.unattributed_mj, b.integrated_mj].map(|mj| mj.get().to_string());
        let values = [micros(at), text_of(b.counter_mj)].into_iter().chain(energy).chain([b.difference_mj.to_string()]);
        (vec![block.to_string(), device.to_string()], values.collect())
    };
    let of_day = |((day, device), b): ((DateTime<Utc>, DeviceId), DeviceBalance)| {
        let energy = [b.jobs, b.idle, b.unattributed, b.integrated].map(|mj| mj.get().to_string());
        let off = [b.unequal_blocks.to_string(), b.difference_mj.to_string()];
        let values = [text_of(b.counter_mj)].into_iter().chain(energy).chain(off);
        (vec![micros(day), device.to_string()], values.collect())
    };
    let of_row = |(row, share): (u64, Share)| {
        let (share, job) = share_key(&share);
        (vec![row.to_string()], vec![share.to_owned(), job.to_owned()])
    };
    let of_cell = |((hour, device, share, source), energy): (CellKey, i64)| {
        let (share, job) = share_key(&share);
        let key = [&micros(hour), device.as_str(), share, job, source.as_str()].map(str::to_owned);
        (key.to_vec(), vec![energy.to_string()])
    };
    let of_hour = |((hour, kind), held): ((DateTime<Utc>, &str), NewestSettlement)| {
        let numbers = [u64::from(held.version), held.entry, held.through_block, u64::from(held.is_final)];
        let values = numbers.map(|number| number.to_string()).into_iter().chain([held.sources]);
        (vec![micros(hour), kind.to_owned()], values.collect())
    };
    let of_version = |((hour, kind, version), later): ((DateTime<Utc>, &str, u32), LaterVersion)| {
        let TotalsChange { energy_before, energy, carbon_before, carbon } = later.change;
        let figures = [energy_before.get(), energy.get(), carbon_before.get(), carbon.get()];
        let values = [micros(later.at), later.reason].into_iter().chain(figures.map(|figure| figure.to_string()));
        (vec![micros(hour), kind.to_owned(), version.to_string()], values.collect())
    };
    compare(tx, &BALANCES, derived.balances.into_iter().map(of_block).collect())?;
    compare(tx, &BALANCE_DAYS, derived.balance_days.into_iter().map(of_day).collect())?;
    compare(tx, &CORRECTED, derived.corrected.into_iter().map(of_row).collect())?;
    let rolled_up = derived.rolled_up.into_iter().filter(|(_, energy)| *energy != 0);
    compare(tx, &ROLLED_UP, rolled_up.map(of_cell).collect())?;
    compare(tx, &SETTLED, derived.settled.into_iter().map(of_hour).collect())?;
    compare(tx, &RESTATED, derived.restated.into_iter().map(of_version).collect())?;
    compare_jobs(tx, derived.registered, derived.ended)
}

/// Returns the daily sums over the settlements (stored emissions of hours) that the table `settled` names; that table
/// must have been verified before.
fn day_totals(tx: &Connection) -> Result<Rows, StoreError> {
    let mut sums: BTreeMap<Vec<String>, [i128; 7]> = BTreeMap::new();
    let mut statement = tx.prepare_cached("SELECT seq, line FROM settled JOIN ledger USING (seq)")?;
    for settled in statement.query_and_then([], settlement)? {
        let settled = settled?;
        let day = micros(day_of(settled.hour));
        for ((device, share), figures) in day_changes(None, &settled) {
            let (share, job) = share_key(share);
            let key = [&day, settled.kind.as_str(), device.as_str(), share, job].map(str::to_owned).to_vec();
            let sum = sums.entry(key).or_default();
            sum.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
        }
    }
    Ok(sums.into_iter().map(|(key, sum)| (key, sum.map(|figure| figure.to_string()).to_vec())).collect())
}

/// Compares the rows of a table with the expected ones. Fails with the first row that differs, is missing or is not
/// expected.
fn compare(tx: &Connection, table: &Table, mut expected: Rows) -> Result<(), VerifyError> {
    let columns: Vec<&str> = table.key.iter().chain(table.values).copied().collect();
    let texts: Vec<String> = columns.iter().map(|name| format!("COALESCE(CAST({name} AS TEXT), '')")).collect();
    let Table { name, only, .. } = table;
    let sql = format!("SELECT {} FROM {name} WHERE {only} ORDER BY {}", texts.join(", "), table.key.join(", "));
    let mut statement = tx.prepare_cached(&sql)?;
    let mut found = statement.query([])?;
    let inconsistency = |key: &[String], why| Err(inconsistency(name, &shown(table.key, key), why));
    while let Some(row) = found.next()? {
        let texts: Vec<String> = (0..columns.len()).map(|place| row.get(place)).collect::<Result<_, _>>()?;
        let (key, values) = texts.split_at(table.key.len());
        let Some(right) = expected.remove(key) else {
            let why = format!("exists with {}, but the ledger has no such row", shown(table.values, values));
            return inconsistency(key, why);
        };
        if let Some(place) = (0..values.len()).find(|place| values[*place] != right[*place]) {
            let [there, right] = [values, &right].map(|of| shown(&table.values[place..=place], &of[place..=place]));
            return inconsistency(key, format!("has {there}; the ledger gives {right}"));
        }
    }
    match expected.first_key_value() {
        None => Ok(()),
        Some((key, right)) => {
            inconsistency(key, format!("is missing; the ledger gives {}", shown(table.values, right)))
        }
    }
}

/// Formats columns with their values; times in microseconds are followed by a readable form.
fn shown(names: &[&str], values: &[String]) -> String {
    let one = |(name, value): (&&str, &String)| {
        let time = value.parse().ok().filter(|_| name.ends_with("_us")).and_then(DateTime::from_timestamp_micros);
        match time {
            Some(time) => format!("{name} {value} ({})", time.format("%FT%TZ")),
            None if value.is_empty() => format!("no {name}"),
            None => format!("{name} {value}"),
        }
    };
    names.iter().zip(values).map(one).collect::<Vec<_>>().join(", ")
}

fn micros(t: DateTime<Utc>) -> String {
    t.timestamp_micros().to_string()
}

/// Returns a number as text; an empty text for `None`.
fn text_of(number: Option<i64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
