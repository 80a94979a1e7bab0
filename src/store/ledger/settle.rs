//! Settling hours: their energy with the intensities known now, as a new version where that says something new.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use rusqlite::{Connection, Row, params};

use super::{INTERVAL, append_entry, closed_blocks, lines, share_key};
use crate::store::connection::writing;
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, rows};
use wattune_core::domain::{Origin, SignalKind, Slot};
use wattune_core::ledger::Interval;
use wattune_core::ledger::Total;
use wattune_core::ledger::entry::{Entry, Factor, Settlement};
use wattune_core::ledger::report::SYNTHETIC;
use wattune_core::ledger::settlement::{parts, spread};

/// Why hours are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// They got energy.
    Energy,
    /// Something was told about the grid in them.
    Intensity,
    /// Somebody corrected their books.
    Correction,
}

impl Why {
    const fn text(self, first: bool) -> &'static str {
        match self {
            _ if first => "first",
            Self::Energy => "more energy was booked",
            Self::Intensity => "intensities were told or revised",
            Self::Correction => "corrected",
        }
    }

    /// Its name in the table of hours that are due.
    const fn name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Intensity => "intensity",
            Self::Correction => "correction",
        }
    }

    /// A reason that nobody writes is as good as energy: the hour is settled, and the others after it.
    fn named(name: &str) -> Self {
        Self::known(name).unwrap_or(Self::Energy)
    }

    /// The reason of this name, if there is one.
    pub(super) fn known(name: &str) -> Option<Self> {
        [Self::Energy, Self::Intensity, Self::Correction].into_iter().find(|why| why.name() == name)
    }
}

/// What hours are settled with.
#[derive(Clone, Debug)]
pub struct Settling<'a> {
    /// Which book.
    pub book: SignalKind,
    /// Who is believed about the grid, the preferred source first; all of one kind and scope.
    pub sources: &'a [SourceKey],
    /// Sources of the settings that stand before these and have said nothing since the start: what they said stands.
    pub silent: &'a [String],
    /// When.
    pub at: DateTime<Utc>,
    /// Why.
    pub why: Why,
}

impl Store {
    /// Settles an hour's booked energy anew. Says whether that made a new version: it does unless the one that holds says
    /// the same.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn settle_hour(&self, hour: DateTime<Utc>, with: &Settling<'_>) -> Result<bool, StoreError> {
        let (sources, silent) = (with.sources.to_vec(), with.silent.to_vec());
        let Settling { book, at, why, .. } = *with;
        let settle = move |db: &mut Connection| {
            settle_hour(db, hour, &Settling { book, sources: &sources, silent: &silent, at, why })
        };
        self.write.run(settle).await
    }

    /// These sources, and those whose intensities the settlements of a span have that hold, as [`Settling`] joins them.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn believed(
        &self,
        book: SignalKind,
        sources: &[SourceKey],
        silent: &[String],
        span: &Slot,
    ) -> Result<Vec<SourceKey>, StoreError> {
        let (sources, silent, span) = (sources.to_vec(), silent.to_vec(), *span);
        self.read.run(move |db| believed(db, book, &sources, &silent, &span)).await
    }

    /// The hours since `from` whose settlement may still change, in any book.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn unsettled_hours(&self, from: DateTime<Utc>) -> Result<BTreeSet<DateTime<Utc>>, StoreError> {
        let sql = "SELECT DISTINCT hour_us FROM settled WHERE NOT final AND hour_us >= ?1";
        let hour = |row: &Row<'_>| rows::moment(row.get(0)?);
        let found = self.read.run(move |db| rows::all(db, sql, [from.timestamp_micros()], hour)).await?;
        Ok(found.into_iter().collect())
    }

    /// The hours that are to be settled because of what was booked or corrected, or that were put off, and why.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn due_hours(&self) -> Result<Vec<(DateTime<Utc>, Why)>, StoreError> {
        let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
        let hour = |row: &Row<'_>| Ok((rows::moment(row.get(0)?)?, Why::named(rows::text(row, 1)?)));
        self.read.run(move |db| rows::all(db, sql, [], hour)).await
    }

    /// Keeps for later which hours are to be settled, and why.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn put_off(&self, hours: &BTreeSet<(DateTime<Utc>, Why)>) -> Result<(), StoreError> {
        let hours = hours.clone();
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            for (hour, why) in &hours {
                // Both at once is what energy has looked up.
                let also_news = *why == Why::Correction && hours.contains(&(*hour, Why::Intensity));
                make_due(&tx, *hour, if also_news { Why::Energy } else { *why })?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// All versions of an hour's settlements in all books, oldest first.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settlements_of(&self, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
        self.read.run(move |db| versions_of(db, hour)).await
    }
}

fn settle_hour(db: &mut Connection, hour: DateTime<Utc>, with: &Settling<'_>) -> Result<bool, StoreError> {
    let Some(span) = Slot::new(hour, hour + TimeDelta::hours(1)) else { return Ok(false) };
    // What takes long is read before others that write have to wait.
    let factors = {
        let before = holding(db, hour, with.book)?;
        // The book of marginal intensities begins when a source gives them.
        if with.book == SignalKind::Marginal && with.sources.is_empty() && before.is_none() {
            return Ok(false);
        }
        known_of(db, &span, before.as_ref(), with)?
    };
    let tx = writing(db)?;
    let closed = closed_blocks(&tx)?;
    let before = holding(&tx, hour, with.book)?;
    if with.book == SignalKind::Average {
        rows::execute(&tx, "DELETE FROM due WHERE hour_us = ?1", [hour.timestamp_micros()])?;
    }
    let energy = booked(&tx, hour, closed, before.as_ref())?;
    if energy.is_empty() && before.is_none() {
        tx.commit()?;
        return Ok(false);
    }
    let settlement = Settlement {
        hour,
        book: with.book,
        version: before.as_ref().map_or(0, |b| b.version) + 1,
        at: with.at,
        reason: with.why.text(before.is_none()).into(),
        through_block: u64::try_from(closed).map_err(|e| rows::damaged("ledger", e))?,
        parts: parts(&energy, &factors),
        factors,
    };
    if before.as_ref().is_some_and(|before| settlement.says_the_same_as(before)) {
        tx.commit()?;
        return Ok(false);
    }
    let entry = Entry::Settlement(settlement);
    let seq = append_entry(&tx, &entry)?;
    let Entry::Settlement(settlement) = entry else { return Ok(false) };
    let sql = "INSERT INTO settled (hour_us, book, version, seq, final, through_block, sources) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (hour_us, book) DO UPDATE SET version = ?3, \
               seq = ?4, final = ?5, through_block = ?6, sources = ?7";
    let (book, sources) = (rows::name(&with.book)?, sources_of(&settlement)?);
    let (version, is_final) = (settlement.version, settlement.is_final());
    rows::execute(&tx, sql, params![hour.timestamp_micros(), book, version, seq, is_final, closed, sources])?;
    if let Some(before) = &before {
        note_restated(&tx, before, &settlement)?;
    }
    add_to_day(&tx, before.as_ref(), &settlement)?;
    tx.commit()?;
    Ok(true)
}

/// What is known of an hour: what the sources say, and where they say nothing, what those said whose intensities the
/// version that holds has: other settings, or a source that is down, take nothing back.
fn known_of(
    db: &Connection,
    hour: &Slot,
    before: Option<&Settlement>,
    with: &Settling<'_>,
) -> Result<Vec<Factor>, StoreError> {
    let Some(before) = before else {
        // A source that spoke until lately stands for its time, as in the hours before.
        let day = Slot::new(hour.start() - TimeDelta::days(1), hour.end()).unwrap_or(*hour);
        return factors_within(db, &believed(db, with.book, with.sources, with.silent, &day)?, hour);
    };
    // Energy that changes hands changes nothing that is known of the grid. Nor does a start before a source spoke.
    if with.why == Why::Correction || with.sources.is_empty() {
        return Ok(before.factors.clone());
    }
    let told = factors_within(db, with.sources, hour)?;
    let is_said = |factor: &Factor| with.sources.iter().any(|key| key.is_of(factor)) && is_covered(factor, &told);
    if before.factors.iter().all(is_said) {
        return Ok(told);
    }
    factors_within(db, &joined(with.sources, with.silent, keys_of(with.book, &before.factors)), hour)
}

/// Intensities with their provenance, cut at the ends of a span.
fn factors_within(db: &Connection, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
    let mut factors = signals::factors(db, sources, span)?;
    for factor in &mut factors {
        factor.start = factor.start.max(span.start());
        factor.end = factor.end.min(span.end());
    }
    Ok(factors)
}

/// As [`Store::believed`].
pub(super) fn believed(
    db: &Connection,
    book: SignalKind,
    sources: &[SourceKey],
    silent: &[String],
    span: &Slot,
) -> Result<Vec<SourceKey>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE seq IN (SELECT MAX(seq) FROM settled WHERE book = ?1 \
               AND hour_us > ?2 - 3600000000 AND hour_us < ?3 AND sources <> 'none' GROUP BY sources) \
               ORDER BY seq DESC";
    let (start, end) = (span.start().timestamp_micros(), span.end().timestamp_micros());
    let found = rows::all(db, sql, params![rows::name(&book)?, start, end], settlement)?;
    let mut held: Vec<Factor> = found.into_iter().flat_map(|settled| settled.factors).collect();
    held.retain(|factor| !sources.iter().any(|key| key.is_of(factor)));
    Ok(joined(sources, silent, keys_of(book, &held)))
}

/// As [`Store::settlements_of`].
pub(super) fn versions_of(db: &Connection, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'settlement' AND about_us = ?1 ORDER BY seq";
    rows::all(db, sql, [hour.timestamp_micros()], settlement)
}

/// Whose a book's intensities are. They do not say of which kind those were that told none.
pub(super) fn keys_of(book: SignalKind, factors: &[Factor]) -> Vec<SourceKey> {
    let kinds: &[SignalKind] = match book {
        SignalKind::Marginal => &[SignalKind::Marginal],
        _ => &[SignalKind::Average, SignalKind::Unspecified],
    };
    let mut keys: Vec<SourceKey> = Vec::new();
    for factor in factors {
        for kind in kinds {
            let (source, zone) = (factor.source.clone(), factor.zone.clone());
            let key = SourceKey { source, zone, kind: *kind, scope: factor.scope };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

/// Sources and those that were believed before: these stand behind, but for those that would stand before if they spoke.
fn joined(sources: &[SourceKey], silent: &[String], held: Vec<SourceKey>) -> Vec<SourceKey> {
    let held = held.into_iter().filter(|key| !sources.contains(key));
    let (mut all, behind): (Vec<_>, Vec<_>) = held.partition(|key| silent.contains(&key.source));
    all.extend_from_slice(sources);
    all.extend(behind);
    all
}

/// Whether these say something of all of a factor's time.
fn is_covered(factor: &Factor, told: &[Factor]) -> bool {
    let shared = |other: &Factor| (factor.end.min(other.end) - factor.start.max(other.start)).max(TimeDelta::zero());
    told.iter().map(shared).sum::<TimeDelta>() == factor.end - factor.start
}

/// An hour's energy in closed blocks: its rows, and what was rolled up of it, spread as it was when it was settled
/// `before` with its rows.
fn booked(
    tx: &Connection,
    hour: DateTime<Utc>,
    through_block: i64,
    before: Option<&Settlement>,
) -> Result<Vec<Interval>, StoreError> {
    let (start, end) = (hour.timestamp_micros(), (hour + TimeDelta::hours(1)).timestamp_micros());
    let mut sums = rows::all(tx, "SELECT * FROM rolled_up WHERE hour_us = ?1", [start], rows::rolled_up)?;
    let sql = format!(
        "SELECT {INTERVAL}, block FROM intervals WHERE start_us >= ?1 AND start_us < ?2 AND block <= ?3 ORDER BY block, id"
    );
    let of_row = |row: &Row<'_>| Ok::<(Interval, i64), StoreError>((rows::interval(row)?, row.get("block")?));
    let found = rows::all(tx, &sql, [start, end, through_block], of_row)?;
    let (minutes, blocks): (Vec<Interval>, Vec<i64>) = found.into_iter().unzip();
    if let Some(before) = before.filter(|_| !sums.is_empty()) {
        let known = blocks.partition_point(|block| u64::try_from(*block).is_ok_and(|b| b <= before.through_block));
        sums = spread(sums, &minutes[..known], before);
    }
    sums.extend(minutes);
    Ok(sums)
}

fn holding(tx: &Connection, hour: DateTime<Utc>, book: SignalKind) -> Result<Option<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us = ?1 AND book = ?2";
    rows::optional(tx, sql, params![hour.timestamp_micros(), rows::name(&book)?], settlement)
}

/// The settlement in a row's column `line`.
pub(super) fn settlement(row: &Row<'_>) -> Result<Settlement, StoreError> {
    match lines::entry(row)? {
        Entry::Settlement(settlement) => Ok(settlement),
        other => Err(rows::damaged("settlement", other.kind())),
    }
}

/// Has an hour settled. That it got energy says most, as all is looked up then; that it was corrected says more than that
/// its intensities changed.
pub(super) fn make_due(tx: &Connection, hour: DateTime<Utc>, why: Why) -> Result<(), StoreError> {
    let sql = "INSERT INTO due (hour_us, why) VALUES (?1, ?2) \
               ON CONFLICT (hour_us) DO UPDATE SET why = ?2 WHERE why = 'intensity' OR ?2 = 'energy'";
    rows::execute(tx, sql, params![hour.timestamp_micros(), why.name()])?;
    Ok(())
}

/// Whose intensities a settlement uses, of which zone and scope.
pub(super) fn sources_of(settlement: &Settlement) -> Result<String, StoreError> {
    let mut all = BTreeSet::new();
    for factor in &settlement.factors {
        let made_up = if factor.origin == Origin::Synthetic { SYNTHETIC } else { "" };
        all.insert(format!("{} {} ({}{made_up})", factor.source, factor.zone, rows::name(&factor.scope)?));
    }
    Ok(if all.is_empty() { "none".into() } else { all.into_iter().collect::<Vec<_>>().join(", ") })
}

/// Keeps what a version changed where reports find it.
fn note_restated(tx: &Connection, before: &Settlement, after: &Settlement) -> Result<(), StoreError> {
    let (old, new) = (before.total(), after.total());
    let grams = |total: &Total| i64::try_from(total.carbon.get()).map_err(|e| rows::damaged("emissions", e));
    let columns = params![
        after.hour.timestamp_micros(),
        rows::name(&after.book)?,
        after.version,
        after.at.timestamp_micros(),
        after.reason,
        rows::to_i64(old.energy)?,
        rows::to_i64(new.energy)?,
        grams(&old)?,
        grams(&new)?,
    ];
    rows::execute(tx, "INSERT INTO restated VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)", columns)?;
    Ok(())
}

/// Adds a settlement to its day's totals, in place of the one that held before.
fn add_to_day(tx: &Connection, before: Option<&Settlement>, after: &Settlement) -> Result<(), StoreError> {
    let day = after.hour.duration_trunc(TimeDelta::days(1)).unwrap_or(after.hour).timestamp_micros();
    let book = rows::name(&after.book)?;
    let mut sums: BTreeMap<(&str, (&str, &str)), [i64; 7]> = BTreeMap::new();
    for (settlement, sign) in before.map(|before| (before, -1)).into_iter().chain([(after, 1)]) {
        for (part, total) in settlement.totals() {
            let sum = sums.entry((part.device.as_str(), share_key(&part.share))).or_default();
            let (energy, known) = ([total.energy, total.estimated], [total.forecast, total.provisional, total.final_]);
            let energy = energy.into_iter().chain(known).chain([total.unknown]).map(rows::to_i64);
            let carbon = i64::try_from(total.carbon.get()).map_err(|e| rows::damaged("emissions", e));
            for (sum, more) in sum.iter_mut().zip(energy.chain([carbon])) {
                *sum += sign * more?;
            }
        }
    }
    let sql = "INSERT INTO day_totals VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
               ON CONFLICT (day_us, book, device, share, job_id) DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj, \
               estimated_mj = estimated_mj + excluded.estimated_mj, forecast_mj = forecast_mj + excluded.forecast_mj, \
               provisional_mj = provisional_mj + excluded.provisional_mj, final_mj = final_mj + excluded.final_mj, \
               unknown_mj = unknown_mj + excluded.unknown_mj, carbon_ug = carbon_ug + excluded.carbon_ug";
    for ((device, (share, job)), sum) in sums.into_iter().filter(|(_, sum)| *sum != [0; 7]) {
        let [energy, estimated, forecast, provisional, final_, unknown, carbon] = sum;
        let columns =
            params![day, book, device, share, job, energy, estimated, forecast, provisional, final_, unknown, carbon];
        rows::execute(tx, sql, columns)?;
    }
    Ok(())
}
