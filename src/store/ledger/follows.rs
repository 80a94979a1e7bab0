//! Whether what reports are made of follows from the ledger. They read tables that hold sums and states, and no digest
//! covers those: all of them are made again from the chain here, and compared row by row.

use std::collections::BTreeMap;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use rusqlite::{Connection, Row};

use super::covered::{Jobs, check_pages, compare_checkpoints, compare_schema};
use super::export::all_lines;
use super::settle::{settlement, sources_of};
use super::{Why, day_of_close, share_key};
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, EnergySource};
use wattune_core::ledger::entry::{Close, Correction, Entry, RollUp, Settlement};
use wattune_core::ledger::verify::{Broken, Verified, Verifier};
use wattune_core::ledger::{Share, Total};
use wattune_core::units::Millijoules;

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
    let mut follows = Follows::default();
    all_lines::<Failed>(tx, |line| match verifier.take_line(line.as_bytes()).map_err(Failed::Broken)? {
        Some(entry) => Ok(follows.take(&entry)?),
        None => Ok(()),
    })?;
    let verified = verifier.finish().map_err(Failed::Broken)?;
    follows.compare(tx)?;
    compare_checkpoints(tx)?;
    compare(tx, &DAY_TOTALS, day_totals(tx)?)?;
    let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
    let of_row = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, row.get(1)?));
    let due = rows::all(tx, sql, [], of_row)?;
    if let Some((hour, why)) = due.iter().find(|(_, why)| Why::known(why).is_none()) {
        let place = format!("table due, row of {}", shown(&["hour_us"], &[hour.to_string()]));
        let why = format!("has why {why:?}, which is no reason to settle an hour");
        return Err(Failed::Broken(Broken { place, why }));
    }
    let is_due = |hour: i64| due.iter().any(|(due, why)| *due == hour && Why::known(why) != Some(Why::Intensity));
    match verified.unsettled.iter().find(|hour| !is_due(hour.timestamp_micros())) {
        None => Ok(verified),
        Some(hour) => Err(Failed::Broken(Broken {
            place: format!("table due, row of hour_us {} ({})", hour.timestamp_micros(), hour.format("%FT%RZ")),
            why: "is missing, and its energy is not settled as it is booked".into(),
        })),
    }
}

/// A block whose rows are not rolled up.
struct Block {
    number: u64,
    cells: BTreeMap<(DateTime<Utc>, DeviceId, Share, EnergySource), i64>,
}

/// What follows from the entries taken so far.
#[derive(Default)]
struct Follows {
    entries: Rows,
    settled: Rows,
    restated: Rows,
    balances: Rows,
    /// By day and device: the counter where there is one, and the other columns.
    balance_days: BTreeMap<Vec<String>, (Option<i64>, [i64; 6])>,
    rolled_up: BTreeMap<Vec<String>, i64>,
    /// What corrected rows are now, by number.
    corrected: BTreeMap<u64, Share>,
    /// By the number of their last row.
    blocks: BTreeMap<u64, Block>,
    last_row: u64,
    /// What the settlement that holds comes to, by hour and book.
    totals: BTreeMap<Vec<String>, Total>,
    jobs: Jobs,
}

impl Follows {
    fn take(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let seq = self.entries.len() as u64 + 1;
        self.entries.insert(vec![seq.to_string()], vec![entry.kind().into(), micros(entry.about())]);
        match entry {
            Entry::Close(close) => self.close(close),
            Entry::Settlement(settled) => self.settle(seq, settled)?,
            Entry::Correction(correction) => self.correct(correction),
            Entry::RollUp(rolled) => self.roll_up(rolled),
            Entry::Registered(of) => drop(self.jobs.registered.insert(of.job.to_string(), of.facts)),
            Entry::Ended(of) => drop(self.jobs.ended.insert(of.job.to_string(), of.facts)),
            Entry::Terms(_) | Entry::Control(_) | Entry::Lost(_) | Entry::Counterfactual(_) | Entry::Outcome(_) => {}
        }
        Ok(())
    }

    fn close(&mut self, close: &Close) {
        for b in &close.balances {
            let key = vec![close.block.to_string(), b.device.to_string()];
            let energy = [b.jobs_mj, b.idle_mj, b.unattributed_mj, b.integrated_mj].map(|mj| mj.get().to_string());
            let counter = b.counter_mj.map(|mj| mj.to_string()).unwrap_or_default();
            let values = [micros(close.at), counter].into_iter().chain(energy).chain([b.difference_mj.to_string()]);
            self.balances.insert(key, values.collect());
            let day = vec![micros(day_of_close(close.at)), b.device.to_string()];
            let (counter, sums) = self.balance_days.entry(day).or_default();
            *counter = counter.zip(b.counter_mj).map(|(a, b)| a + b).or(*counter).or(b.counter_mj);
            let energy = [b.jobs_mj, b.idle_mj, b.unattributed_mj, b.integrated_mj].map(signed);
            let more = energy.into_iter().chain([i64::from(b.difference_mj != 0), b.difference_mj]);
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        self.last_row += close.rows;
        let mut block = Block { number: close.block, cells: BTreeMap::new() };
        for c in &close.cells {
            let key = (c.hour, c.device.clone(), c.share.clone(), c.source);
            *block.cells.entry(key).or_default() += signed(c.energy_mj);
        }
        self.blocks.insert(self.last_row, block);
    }

    fn settle(&mut self, seq: u64, settled: &Settlement) -> Result<(), StoreError> {
        let key = vec![micros(settled.hour), rows::name(&settled.book)?];
        let version = settled.version.to_string();
        let total = settled.total();
        if let Some(before) = self.totals.insert(key.clone(), total) {
            let energy = [before.energy, total.energy].map(|mj| mj.get().to_string());
            let carbon = [before.carbon, total.carbon].map(|ug| ug.get().to_string());
            let values = [micros(settled.at), settled.reason.clone()].into_iter().chain(energy).chain(carbon);
            self.restated.insert(key.iter().cloned().chain([version.clone()]).collect(), values.collect());
        }
        let is_final = u8::from(settled.is_final()).to_string();
        let values = vec![version, seq.to_string(), settled.through_block.to_string(), is_final, sources_of(settled)?];
        self.settled.insert(key, values);
        Ok(())
    }

    fn correct(&mut self, correction: &Correction) {
        for row in &correction.rows {
            self.corrected.insert(row.row, correction.to.clone());
            if let Some((_, block)) = self.blocks.range_mut(row.row..).next() {
                for (share, sign) in [(&correction.from, -1), (&correction.to, 1)] {
                    let key = (row.hour, row.device.clone(), share.clone(), row.source);
                    *block.cells.entry(key).or_default() += sign * signed(row.energy_mj);
                }
            }
        }
    }

    fn roll_up(&mut self, rolled: &RollUp) {
        let gone = |block: &Block| (rolled.first_block..=rolled.last_block).contains(&block.number);
        while let Some((last_row, block)) = self.blocks.pop_first() {
            if !gone(&block) {
                self.blocks.insert(last_row, block);
                break;
            }
            self.corrected = self.corrected.split_off(&(last_row + 1));
            for ((hour, device, share, source), energy) in block.cells {
                let (share, job) = share_key(&share);
                let key = [&micros(hour), device.as_str(), share, job, source.as_str()].map(str::to_owned).to_vec();
                *self.rolled_up.entry(key).or_default() += energy;
            }
        }
    }

    fn compare(self, tx: &Connection) -> Result<(), Failed> {
        let of_row = |(row, share): (u64, Share)| {
            let (share, job) = share_key(&share);
            (vec![row.to_string()], vec![share.to_owned(), job.to_owned()])
        };
        let rolled = self.rolled_up.into_iter().filter(|(_, energy)| *energy != 0);
        let of_day = |(key, (counter, sums)): (Vec<String>, (Option<i64>, [i64; 6]))| {
            let counter = counter.map(|mj| mj.to_string()).unwrap_or_default();
            (key, std::iter::once(counter).chain(sums.map(|sum| sum.to_string())).collect())
        };
        for (table, expected) in [
            (&ENTRIES, self.entries),
            (&BALANCES, self.balances),
            (&BALANCE_DAYS, self.balance_days.into_iter().map(of_day).collect()),
            (&CORRECTED, self.corrected.into_iter().map(of_row).collect()),
            (&ROLLED_UP, rolled.map(|(key, energy)| (key, vec![energy.to_string()])).collect()),
            (&SETTLED, self.settled),
            (&RESTATED, self.restated),
        ] {
            compare(tx, table, expected)?;
        }
        self.jobs.compare(tx)
    }
}

/// The days' sums over the settlements that hold, once it is known which those are.
fn day_totals(tx: &Connection) -> Result<Rows, StoreError> {
    let mut sums: BTreeMap<Vec<String>, Total> = BTreeMap::new();
    let mut statement = tx.prepare_cached("SELECT seq, line FROM settled JOIN ledger USING (seq)")?;
    for settled in statement.query_and_then([], settlement)? {
        let settled = settled?;
        let day = micros(settled.hour.duration_trunc(TimeDelta::days(1)).unwrap_or(settled.hour));
        let book = rows::name(&settled.book)?;
        for (part, total) in settled.totals() {
            let (share, job) = share_key(&part.share);
            let key = [&day, &book, part.device.as_str(), share, job].map(str::to_owned).to_vec();
            *sums.entry(key).or_default() += total;
        }
    }
    let numbers = |t: Total| {
        let energy = [t.energy, t.estimated, t.forecast, t.provisional, t.final_, t.unknown].map(Millijoules::get);
        energy.into_iter().chain([t.carbon.get()]).map(|number| number.to_string()).collect()
    };
    Ok(sums.into_iter().filter(|(_, t)| *t != Total::default()).map(|(key, t)| (key, numbers(t))).collect())
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

fn signed(energy: Millijoules) -> i64 {
    i64::try_from(energy.get()).unwrap_or(i64::MAX)
}
