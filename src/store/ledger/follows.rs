//! Whether what reports are made of follows from the ledger. They read tables that hold sums and states, and no digest
//! covers those: all of them are made again from the chain here, and compared row by row.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row};

use super::covered::{check_pages, compare_checkpoints, compare_jobs, compare_schema};
use super::export::all_lines;
use super::settle::settlement;
use super::share_key;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::DeviceId;
use wattune_core::ledger::Share;
use wattune_core::ledger::apportion::day_of;
use wattune_core::ledger::block::DeviceBalance;
use wattune_core::ledger::derived::{CellKey, Derived, Held, LaterVersion};
use wattune_core::ledger::due::Why;
use wattune_core::ledger::entry::Balance;
use wattune_core::ledger::hour::{Restated, day_changes};
use wattune_core::ledger::verify::{Broken, Verified, Verifier};

/// A table's columns, or those of some of its rows.
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
    // What was given to somebody else leaves zeros.
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

/// Rows whose share is not the one that their digest covers.
const CORRECTED: Table = Table {
    name: "intervals",
    key: &["id"],
    values: &["share", "job_id"],
    only: "booked_share IS NOT NULL OR booked_job IS NOT NULL",
};

/// Rows as texts: the key's columns, and the others'.
type Rows = BTreeMap<Vec<String>, Vec<String>>;

pub(super) enum Failed {
    Broken(Broken),
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

impl Store {
    /// Has a fresh verifier go through the ledger, and compares what reports read with what follows from it; all of one
    /// moment.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn verify(&self, verifier: Verifier) -> Result<Result<Verified, Broken>, StoreError> {
        match self.reports.run(move |db| go_through(&*db.transaction()?, verifier)).await {
            Ok(verified) => Ok(Ok(verified)),
            Err(Failed::Broken(broken)) => Ok(Err(broken)),
            // A digest that is none, or an interval without an end, is as broken as a wrong one.
            Err(Failed::Store(StoreError::Damaged { what, why })) => Ok(Err(Broken { place: what.to_owned(), why })),
            Err(Failed::Store(error)) => Err(error),
        }
    }
}

fn go_through(tx: &Connection, mut verifier: Verifier) -> Result<Verified, Failed> {
    compare_schema(tx)?;
    check_pages(tx)?;
    let (mut derived, mut entries) = (Derived::default(), Rows::new());
    all_lines::<Failed>(tx, |line| {
        if let Some(entry) = verifier.take_line(line.as_bytes()).map_err(Failed::Broken)? {
            let seq = derived.take(&entry);
            entries.insert(vec![seq.to_string()], vec![entry.kind().into(), micros(entry.about())]);
        }
        Ok(())
    })?;
    let verified = verifier.finish().map_err(Failed::Broken)?;
    compare(tx, &ENTRIES, entries)?;
    compare_derived(tx, derived)?;
    compare_checkpoints(tx)?;
    compare(tx, &DAY_TOTALS, day_totals(tx)?)?;
    let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
    let of_row = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, row.get(1)?));
    let due = rows::all(tx, sql, [], of_row)?;
    if let Some((hour, why)) = due.iter().find(|(_, why)| Why::named(why).is_none()) {
        let place = format!("table due, row of {}", shown(&["hour_us"], &[hour.to_string()]));
        let why = format!("has why {why:?}, which is no reason to settle an hour");
        return Err(Failed::Broken(Broken { place, why }));
    }
    let is_due =
        |hour: i64| due.iter().any(|(due, why)| *due == hour && Why::named(why).is_some_and(Why::is_of_energy));
    match verified.unsettled.iter().find(|hour| !is_due(hour.timestamp_micros())) {
        None => Ok(verified),
        Some(hour) => Err(Failed::Broken(Broken {
            place: format!("table due, row of hour_us {} ({})", hour.timestamp_micros(), hour.format("%FT%RZ")),
            why: "is missing, and its energy is not settled as it is booked".into(),
        })),
    }
}

fn compare_derived(tx: &Connection, derived: Derived) -> Result<(), Failed> {
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
    let of_hour = |((hour, book), held): ((DateTime<Utc>, &str), Held)| {
        let numbers = [u64::from(held.version), held.entry, held.through_block, u64::from(held.is_final)];
        let values = numbers.map(|number| number.to_string()).into_iter().chain([held.sources]);
        (vec![micros(hour), book.to_owned()], values.collect())
    };
    let of_version = |((hour, book, version), later): ((DateTime<Utc>, &str, u32), LaterVersion)| {
        let Restated { energy_before, energy, carbon_before, carbon } = later.change;
        let figures = [energy_before.get(), energy.get(), carbon_before.get(), carbon.get()];
        let values = [micros(later.at), later.reason].into_iter().chain(figures.map(|figure| figure.to_string()));
        (vec![micros(hour), book.to_owned(), version.to_string()], values.collect())
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

/// The days' sums over the settlements that hold, once it is known which those are.
fn day_totals(tx: &Connection) -> Result<Rows, StoreError> {
    let mut sums: BTreeMap<Vec<String>, [i128; 7]> = BTreeMap::new();
    let mut statement = tx.prepare_cached("SELECT seq, line FROM settled JOIN ledger USING (seq)")?;
    for settled in statement.query_and_then([], settlement)? {
        let settled = settled?;
        let day = micros(day_of(settled.hour));
        for ((device, share), figures) in day_changes(None, &settled) {
            let (share, job) = share_key(share);
            let key = [&day, settled.book.as_str(), device.as_str(), share, job].map(str::to_owned).to_vec();
            let sum = sums.entry(key).or_default();
            sum.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
        }
    }
    Ok(sums.into_iter().map(|(key, sum)| (key, sum.map(|figure| figure.to_string()).to_vec())).collect())
}

/// Names the first row that differs.
fn compare(tx: &Connection, table: &Table, mut expected: Rows) -> Result<(), Failed> {
    let columns: Vec<&str> = table.key.iter().chain(table.values).copied().collect();
    let texts: Vec<String> = columns.iter().map(|name| format!("COALESCE(CAST({name} AS TEXT), '')")).collect();
    let Table { name, only, .. } = table;
    let sql = format!("SELECT {} FROM {name} WHERE {only} ORDER BY {}", texts.join(", "), table.key.join(", "));
    let mut statement = tx.prepare_cached(&sql)?;
    let mut found = statement.query([])?;
    let broken = |key: &[String], why| {
        Err(Failed::Broken(Broken { place: format!("table {name}, row of {}", shown(table.key, key)), why }))
    };
    while let Some(row) = found.next()? {
        let texts: Vec<String> = (0..columns.len()).map(|place| row.get(place)).collect::<Result<_, _>>()?;
        let (key, values) = texts.split_at(table.key.len());
        let Some(right) = expected.remove(key) else {
            let why = format!("stands there with {}, and does not follow from the ledger", shown(table.values, values));
            return broken(key, why);
        };
        if let Some(place) = (0..values.len()).find(|place| values[*place] != right[*place]) {
            let [there, right] = [values, &right].map(|of| shown(&table.values[place..=place], &of[place..=place]));
            return broken(key, format!("has {there}; from the ledger follows {right}"));
        }
    }
    match expected.first_key_value() {
        None => Ok(()),
        Some((key, right)) => {
            broken(key, format!("is missing; from the ledger follows {}", shown(table.values, right)))
        }
    }
}

/// Columns with their values; times also as such.
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

/// An absent number is an empty text.
fn text_of(number: Option<i64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
