//! Settling hours: their energy with the intensities known now, as a new version where that says something new.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::{INTERVAL, ROWS_AT_ONCE, append_entry, closed_blocks, lines, share_key};
use crate::domain::{Origin, SignalKind, Slot};
use crate::ledger::Interval;
use crate::ledger::Total;
use crate::ledger::entry::{Entry, Factor, Settlement};
use crate::ledger::report::SYNTHETIC;
use crate::ledger::settlement::{parts, spread};
use crate::store::{SourceKey, Store, StoreError, rows};

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
        let Some(span) = Slot::new(hour, hour + TimeDelta::hours(1)) else { return Ok(false) };
        let factors = {
            let before = holding(&mut *self.pool.acquire().await?, hour, with.book).await?;
            // The book of marginal intensities begins when a source gives them.
            if with.book == SignalKind::Marginal && with.sources.is_empty() && before.is_none() {
                return Ok(false);
            }
            self.known_of(&span, before.as_ref(), with).await?
        };
        let mut tx = self.begin().await?;
        let closed = closed_blocks(&mut tx).await?;
        let before = holding(&mut tx, hour, with.book).await?;
        if with.book == SignalKind::Average {
            sqlx::query("DELETE FROM due WHERE hour_us = $1").bind(hour.timestamp_micros()).execute(&mut *tx).await?;
        }
        let energy = booked(&mut tx, hour, closed, before.as_ref()).await?;
        if energy.is_empty() && before.is_none() {
            tx.commit().await?;
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
            tx.commit().await?;
            return Ok(false);
        }
        let entry = Entry::Settlement(settlement);
        let seq = append_entry(&mut tx, &entry).await?;
        let Entry::Settlement(settlement) = entry else { return Ok(false) };
        let sql = "INSERT INTO settled (hour_us, book, version, seq, final, through_block, sources) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (hour_us, book) DO UPDATE SET version = $3, \
                   seq = $4, final = $5, through_block = $6, sources = $7";
        sqlx::query(sql)
            .bind(hour.timestamp_micros())
            .bind(rows::name(&with.book)?)
            .bind(i64::from(settlement.version))
            .bind(seq)
            .bind(settlement.is_final())
            .bind(closed)
            .bind(sources_of(&settlement)?)
            .execute(&mut *tx)
            .await?;
        if let Some(before) = &before {
            note_restated(&mut tx, before, &settlement).await?;
        }
        add_to_day(&mut tx, before.as_ref(), &settlement).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What is known of an hour: what the sources say, and where they say nothing, what those said whose intensities the
    /// version that holds has: other settings, or a source that is down, take nothing back.
    async fn known_of(
        &self,
        hour: &Slot,
        before: Option<&Settlement>,
        with: &Settling<'_>,
    ) -> Result<Vec<Factor>, StoreError> {
        let Some(before) = before else {
            // A source that spoke until lately stands for its time, as in the hours before.
            let day = Slot::new(hour.start() - TimeDelta::days(1), hour.end()).unwrap_or(*hour);
            let believed = self.believed(with.book, with.sources, with.silent, &day).await?;
            return self.factors_within(&believed, hour).await;
        };
        // Energy that changes hands changes nothing that is known of the grid. Nor does a start before a source spoke.
        if with.why == Why::Correction || with.sources.is_empty() {
            return Ok(before.factors.clone());
        }
        let told = self.factors_within(with.sources, hour).await?;
        let is_said = |factor: &Factor| with.sources.iter().any(|key| key.is_of(factor)) && is_covered(factor, &told);
        if before.factors.iter().all(is_said) {
            return Ok(told);
        }
        self.factors_within(&joined(with.sources, with.silent, keys_of(with.book, &before.factors)), hour).await
    }

    /// Intensities with their provenance, cut at the ends of a span.
    async fn factors_within(&self, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
        let mut factors = self.factors(sources, span).await?;
        for factor in &mut factors {
            factor.start = factor.start.max(span.start());
            factor.end = factor.end.min(span.end());
        }
        Ok(factors)
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
        let sql = "SELECT seq, line FROM ledger WHERE seq IN (SELECT MAX(seq) FROM settled WHERE book = $1 \
                   AND hour_us > $2 - 3600000000 AND hour_us < $3 AND sources <> 'none' GROUP BY sources) \
                   ORDER BY seq DESC";
        let found = sqlx::query(sql)
            .bind(rows::name(&book)?)
            .bind(span.start().timestamp_micros())
            .bind(span.end().timestamp_micros())
            .fetch_all(&self.pool)
            .await?;
        let mut held: Vec<Factor> = Vec::new();
        for row in &found {
            held.extend(settlement(row)?.factors);
        }
        held.retain(|factor| !sources.iter().any(|key| key.is_of(factor)));
        Ok(joined(sources, silent, keys_of(book, &held)))
    }

    /// The hours since `from` whose settlement may still change, in any book.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn unsettled_hours(&self, from: DateTime<Utc>) -> Result<BTreeSet<DateTime<Utc>>, StoreError> {
        let sql = "SELECT DISTINCT hour_us FROM settled WHERE NOT final AND hour_us >= $1";
        let found = sqlx::query_scalar::<_, i64>(sql).bind(from.timestamp_micros()).fetch_all(&self.pool).await?;
        found.into_iter().map(rows::moment).collect()
    }

    /// The hours that are to be settled because of what was booked or corrected, or that were put off, and why.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn due_hours(&self) -> Result<Vec<(DateTime<Utc>, Why)>, StoreError> {
        let found = sqlx::query("SELECT hour_us, why FROM due ORDER BY hour_us").fetch_all(&self.pool).await?;
        let hour = |row: &SqliteRow| Ok((rows::moment(row.try_get("hour_us")?)?, Why::named(row.try_get("why")?)));
        found.iter().map(hour).collect()
    }

    /// Keeps for later which hours are to be settled, and why.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn put_off(&self, hours: &BTreeSet<(DateTime<Utc>, Why)>) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for (hour, why) in hours {
            // Both at once is what energy has looked up.
            let also_news = *why == Why::Correction && hours.contains(&(*hour, Why::Intensity));
            make_due(&mut tx, *hour, if also_news { Why::Energy } else { *why }).await?;
        }
        Ok(tx.commit().await?)
    }

    /// All versions of an hour's settlements in all books, oldest first.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settlements_of(&self, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE kind = 'settlement' AND about_us = $1 ORDER BY seq";
        sqlx::query(sql).bind(hour.timestamp_micros()).fetch_all(&self.pool).await?.iter().map(settlement).collect()
    }
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
pub(super) async fn booked(
    tx: &mut SqliteConnection,
    hour: DateTime<Utc>,
    through_block: i64,
    before: Option<&Settlement>,
) -> Result<Vec<Interval>, StoreError> {
    let (start, end) = (hour.timestamp_micros(), (hour + TimeDelta::hours(1)).timestamp_micros());
    let sql = "SELECT * FROM rolled_up WHERE hour_us = $1";
    let rolled = sqlx::query(sql).bind(start).fetch_all(&mut *tx).await?;
    let mut sums: Vec<Interval> = rolled.iter().map(rows::rolled_up).collect::<Result<_, _>>()?;
    let sql = format!(
        "SELECT {INTERVAL}, block FROM intervals WHERE start_us >= $1 AND start_us < $2 AND block <= $3 ORDER BY block, id"
    );
    let found =
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(start).bind(end).bind(through_block).fetch_all(&mut *tx).await?;
    let minutes: Vec<Interval> = found.iter().map(rows::interval).collect::<Result<_, _>>()?;
    if let Some(before) = before.filter(|_| !sums.is_empty()) {
        let blocks: Vec<i64> = found.iter().map(|row| row.try_get("block")).collect::<Result<_, _>>()?;
        let known = blocks.partition_point(|block| u64::try_from(*block).is_ok_and(|b| b <= before.through_block));
        sums = spread(sums, &minutes[..known], before);
    }
    sums.extend(minutes);
    Ok(sums)
}

async fn holding(
    tx: &mut SqliteConnection,
    hour: DateTime<Utc>,
    book: SignalKind,
) -> Result<Option<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us = $1 AND book = $2";
    let found =
        sqlx::query(sql).bind(hour.timestamp_micros()).bind(rows::name(&book)?).fetch_optional(&mut *tx).await?;
    found.as_ref().map(settlement).transpose()
}

/// The settlement in a row's column `line`.
pub(super) fn settlement(row: &SqliteRow) -> Result<Settlement, StoreError> {
    match lines::entry(row)? {
        Entry::Settlement(settlement) => Ok(settlement),
        other => Err(rows::damaged("settlement", other.kind())),
    }
}

/// Has an hour settled. That it got energy says most, as all is looked up then; that it was corrected says more than that
/// its intensities changed.
pub(super) async fn make_due(tx: &mut SqliteConnection, hour: DateTime<Utc>, why: Why) -> Result<(), StoreError> {
    let sql = "INSERT INTO due (hour_us, why) VALUES ($1, $2) \
               ON CONFLICT (hour_us) DO UPDATE SET why = $2 WHERE why = 'intensity' OR $2 = 'energy'";
    sqlx::query(sql).bind(hour.timestamp_micros()).bind(why.name()).execute(&mut *tx).await?;
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
async fn note_restated(tx: &mut SqliteConnection, before: &Settlement, after: &Settlement) -> Result<(), StoreError> {
    let (old, new) = (before.total(), after.total());
    let grams = |total: &Total| i64::try_from(total.carbon.get()).map_err(|e| rows::damaged("emissions", e));
    sqlx::query("INSERT INTO restated VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        .bind(after.hour.timestamp_micros())
        .bind(rows::name(&after.book)?)
        .bind(i64::from(after.version))
        .bind(after.at.timestamp_micros())
        .bind(&after.reason)
        .bind(rows::to_i64(old.energy)?)
        .bind(rows::to_i64(new.energy)?)
        .bind(grams(&old)?)
        .bind(grams(&new)?)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// Adds a settlement to its day's totals, in place of the one that held before.
async fn add_to_day(
    tx: &mut SqliteConnection,
    before: Option<&Settlement>,
    after: &Settlement,
) -> Result<(), StoreError> {
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
    let changed: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum != [0; 7]).collect();
    for some in changed.chunks(ROWS_AT_ONCE) {
        let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO day_totals ");
        insert.push_values(some, |mut to, ((device, (share, job)), sum)| {
            to.push_bind(day).push_bind(&book).push_bind(*device).push_bind(*share).push_bind(*job);
            for number in sum {
                to.push_bind(number);
            }
        });
        insert.push(
            " ON CONFLICT (day_us, book, device, share, job_id) DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj, \
             estimated_mj = estimated_mj + excluded.estimated_mj, forecast_mj = forecast_mj + excluded.forecast_mj, \
             provisional_mj = provisional_mj + excluded.provisional_mj, final_mj = final_mj + excluded.final_mj, \
             unknown_mj = unknown_mj + excluded.unknown_mj, carbon_ug = carbon_ug + excluded.carbon_ug",
        );
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}
