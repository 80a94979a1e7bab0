//! The grid's signals: intensities with their provenance, forecasts as issued, and what is final.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::{Store, StoreError, rows};
use crate::domain::{
    CarbonSeries, Forecast, Intensity, Issued, Origin, Provenance, SignalKind, SignalScope, Slot, TimeSeries, Zone,
};
use crate::ledger::entry::{Factor, State};
use crate::units::GramsPerKwh;

/// So many values are written by one statement at most: each has 13 columns, and SQLite takes 32766 of them.
const POINTS_AT_ONCE: usize = 2000;

/// How long issued forecasts are kept: as long as models learn from them, with a day to spare.
const ISSUED_KEPT: TimeDelta = TimeDelta::days(37);

/// An intensity, which of the sources said it, and when.
#[derive(Clone, Copy)]
struct Sourced {
    intensity: Intensity,
    source: usize,
    issued_at: DateTime<Utc>,
    retrieved_at: DateTime<Utc>,
    row: i64,
}

/// A source, the part of the grid that it was asked for, and what its values mean: settings may change what one source
/// gives, and series of different kinds or scopes are never joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceKey {
    /// The source's name.
    pub source: String,
    /// The zone as the settings name it.
    pub zone: Zone,
    /// Average or marginal.
    pub kind: SignalKind,
    /// Lifecycle or operational.
    pub scope: SignalScope,
}

impl SourceKey {
    /// What an answer is of.
    pub fn of(forecast: &Forecast) -> Self {
        Self {
            source: forecast.source.clone(),
            zone: forecast.zone.clone(),
            kind: forecast.kind,
            scope: forecast.scope,
        }
    }

    /// Whether an intensity may be of this source; it does not say of which kind it is.
    pub fn is_of(&self, factor: &Factor) -> bool {
        (&self.source, &self.zone, self.scope) == (&factor.source, &factor.zone, factor.scope)
    }
}

impl Store {
    /// Appends intensities with the provenance of `answer`.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn append_intensities(&self, answer: &Forecast, points: &[(Slot, Intensity)]) -> Result<(), StoreError> {
        self.write_intensities(answer, points, false).await
    }

    async fn write_intensities(
        &self,
        answer: &Forecast,
        points: &[(Slot, Intensity)],
        withdrawn: bool,
    ) -> Result<(), StoreError> {
        let known = answer.provenance != Provenance::default();
        let mut tx = self.pool.begin().await?;
        let (kind, scope) = (rows::name(&answer.kind)?, rows::name(&answer.scope)?);
        let origins: BTreeMap<Origin, String> =
            points.iter().map(|(_, i)| Ok((i.origin, rows::name(&i.origin)?))).collect::<Result<_, StoreError>>()?;
        for some in points.chunks(POINTS_AT_ONCE) {
            let mut insert = QueryBuilder::<Sqlite>::new(
                "INSERT INTO intensities (zone, source, kind, scope, start_us, end_us, g_per_kwh, origin, trust, \
                 issued_us, retrieved_us, withdrawn, provenance) ",
            );
            let provenances: Vec<Option<String>> = some
                .iter()
                .map(|(slot, _)| known.then(|| rows::json(&answer.provenance.of(slot))).transpose())
                .collect::<Result<_, _>>()?;
            insert.push_values(some.iter().zip(&provenances), |mut to, ((slot, intensity), provenance)| {
                to.push_bind(answer.zone.as_str()).push_bind(&answer.source).push_bind(&kind).push_bind(&scope);
                to.push_bind(slot.start().timestamp_micros()).push_bind(slot.end().timestamp_micros());
                to.push_bind(intensity.value.get());
                to.push_bind(&origins[&intensity.origin]).push_bind(intensity.origin as i32);
                to.push_bind(answer.issued_at.timestamp_micros()).push_bind(answer.retrieved_at.timestamp_micros());
                to.push_bind(withdrawn).push_bind(provenance);
            });
            insert.build().execute(&mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Notes that a source took back what it had said of slots: those values hold no more.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn withdraw_intensities(
        &self,
        answer: &Forecast,
        points: &[(Slot, Intensity)],
    ) -> Result<(), StoreError> {
        self.write_intensities(answer, points, true).await
    }

    /// The best intensities known for a time, from sources of one kind and scope, the preferred one first. What came is
    /// better than what was expected, whoever says it; otherwise the preferred source counts, and of its values the
    /// most trusted origin, of equally trusted ones the newest.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn intensities(&self, sources: &[SourceKey], span: &Slot) -> Result<CarbonSeries, StoreError> {
        Ok(self.sourced(sources, span).await?.map(|s| s.intensity))
    }

    /// The same with their provenance, whole slots, oldest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn factors(&self, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
        let mut settled = Vec::with_capacity(sources.len());
        for key in sources {
            settled.push(self.settled_until(key).await?);
        }
        let sourced = self.sourced(sources, span).await?;
        let provenances = self.provenances(&sourced).await?;
        let mut factors = Vec::with_capacity(sourced.points().len());
        for (slot, said) in sourced.points() {
            let provenance = provenances.get(&said.row).cloned().unwrap_or_default();
            let origin = said.intensity.origin;
            let state = State::of(origin, settled[said.source].is_some_and(|until| slot.end() <= until));
            factors.push(Factor {
                start: slot.start(),
                end: slot.end(),
                g_per_kwh: said.intensity.value,
                received: provenance.unit.map(|unit| unit.received(said.intensity.value)),
                origin,
                state,
                source: sources[said.source].source.clone(),
                zone: sources[said.source].zone.clone(),
                scope: sources[said.source].scope,
                issued_at: said.issued_at,
                retrieved_at: said.retrieved_at,
                provenance,
            });
        }
        Ok(factors)
    }

    /// From what values were read, by their rows.
    async fn provenances(&self, of: &TimeSeries<Sourced>) -> Result<BTreeMap<i64, Provenance>, StoreError> {
        let ids: Vec<i64> = of.points().iter().map(|(_, said)| said.row).collect();
        let sql = "SELECT id, provenance FROM intensities \
                   WHERE id IN (SELECT value FROM json_each($1)) AND provenance IS NOT NULL";
        let found = sqlx::query(sql).bind(rows::json(&ids)?).fetch_all(&self.pool).await?;
        let of_row = |row: &SqliteRow| {
            let text: &str = row.try_get("provenance")?;
            Ok((row.try_get("id")?, rows::from_json("intensity", text)?))
        };
        found.iter().map(of_row).collect()
    }

    async fn sourced(&self, sources: &[SourceKey], span: &Slot) -> Result<TimeSeries<Sourced>, StoreError> {
        // By their time, and sorted then: the plus keeps the database from going through all of them in their order.
        let sql = "SELECT id, start_us, end_us, g_per_kwh, origin, issued_us, retrieved_us, withdrawn FROM intensities \
                   WHERE end_us > $1 AND start_us < $2 AND zone = $3 AND source = $4 AND kind = $5 AND scope = $6 \
                   ORDER BY +id";
        let (mut expected, mut came) = (TimeSeries::default(), TimeSeries::default());
        for (source, key) in sources.iter().enumerate().rev() {
            let found = sqlx::query(sql)
                .bind(span.start().timestamp_micros())
                .bind(span.end().timestamp_micros())
                .bind(key.zone.as_str())
                .bind(&key.source)
                .bind(rows::name(&key.kind)?)
                .bind(rows::name(&key.scope)?)
                .fetch_all(&self.pool)
                .await?;
            // Who takes back what came does not stand by earlier versions of it either; what was expected stays.
            let mut layers: BTreeMap<Origin, TimeSeries<Sourced>> = BTreeMap::new();
            for row in &found {
                let value: f64 = row.try_get("g_per_kwh")?;
                let value = GramsPerKwh::try_new(value).ok_or_else(|| rows::damaged("intensity", "not finite"))?;
                let origin: Origin = rows::from_name("intensity", row.try_get("origin")?)?;
                if row.try_get("withdrawn")? {
                    let slot = rows::slot(row)?;
                    let of = |layer: &Origin| layer.is_measured() == origin.is_measured();
                    layers.iter_mut().filter(|(layer, _)| of(layer)).for_each(|(_, series)| series.remove(slot));
                    continue;
                }
                let layer = layers.entry(origin).or_default();
                let intensity = Intensity { value, origin };
                let issued_at = rows::moment(row.try_get("issued_us")?)?;
                let retrieved_at = rows::moment(row.try_get("retrieved_us")?)?;
                let row_id = row.try_get("id")?;
                let said = Sourced { intensity, source, issued_at, retrieved_at, row: row_id };
                layer.insert(rows::slot(row)?, said);
            }
            for (origin, layer) in layers {
                let series = if origin.is_measured() { &mut came } else { &mut expected };
                series.overwrite(&layer);
            }
        }
        expected.overwrite(&came);
        Ok(expected)
    }

    /// Keeps a forecast as it was issued, and forgets those of more than five weeks ago.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn append_issued(&self, issued: &Forecast) -> Result<(), StoreError> {
        let runs = runs(&issued.expected);
        sqlx::query(
            "INSERT INTO issued_forecasts (zone, source, kind, scope, issued_us, retrieved_us, points) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(issued.zone.as_str())
        .bind(&issued.source)
        .bind(rows::name(&issued.kind)?)
        .bind(rows::name(&issued.scope)?)
        .bind(issued.issued_at.timestamp_micros())
        .bind(issued.retrieved_at.timestamp_micros())
        .bind(rows::json(&runs)?)
        .execute(&self.pool)
        .await?;
        sqlx::query("DELETE FROM issued_forecasts WHERE retrieved_us < $1")
            .bind((issued.retrieved_at - ISSUED_KEPT).timestamp_micros())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The forecasts issued since a moment, oldest first; of those that a source issued within the same hour the first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn issued_since(&self, since: DateTime<Utc>) -> Result<Vec<Issued>, StoreError> {
        let sql = "SELECT * FROM issued_forecasts WHERE id IN (SELECT MIN(id) FROM issued_forecasts \
                   WHERE retrieved_us >= $1 GROUP BY zone, source, kind, scope, retrieved_us / 3600000000) \
                   ORDER BY issued_us";
        let found = sqlx::query(sql).bind(since.timestamp_micros()).fetch_all(&self.pool).await?;
        found.iter().map(issued).collect()
    }

    /// The forecasts of a source fetched since a moment, oldest first: the newest one, and of those fetched within the
    /// same six hours (counted from 1970-01-01T00:00Z) the first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn issued_of(&self, key: &SourceKey, since: DateTime<Utc>) -> Result<Vec<Issued>, StoreError> {
        let sql = "WITH of AS (SELECT id, retrieved_us FROM issued_forecasts \
                   WHERE retrieved_us >= $1 AND zone = $2 AND source = $3 AND kind = $4 AND scope = $5) \
                   SELECT * FROM issued_forecasts WHERE id IN (SELECT MIN(id) FROM of GROUP BY retrieved_us / 21600000000) \
                   OR id = (SELECT MAX(id) FROM of) ORDER BY issued_us, retrieved_us";
        let found = sqlx::query(sql)
            .bind(since.timestamp_micros())
            .bind(key.zone.as_str())
            .bind(&key.source)
            .bind(rows::name(&key.kind)?)
            .bind(rows::name(&key.scope)?)
            .fetch_all(&self.pool)
            .await?;
        found.iter().map(issued).collect()
    }

    /// The newest forecast of a source that was at hand at a moment.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn issued_by(&self, key: &SourceKey, at: DateTime<Utc>) -> Result<Option<Issued>, StoreError> {
        let sql = "SELECT * FROM issued_forecasts WHERE retrieved_us <= $1 AND issued_us <= $1 \
                   AND zone = $2 AND source = $3 AND kind = $4 AND scope = $5 ORDER BY retrieved_us DESC LIMIT 1";
        let found = sqlx::query(sql)
            .bind(at.timestamp_micros())
            .bind(key.zone.as_str())
            .bind(&key.source)
            .bind(rows::name(&key.kind)?)
            .bind(rows::name(&key.scope)?)
            .fetch_optional(&self.pool)
            .await?;
        found.as_ref().map(issued).transpose()
    }

    /// Notes up to when a source's values of what came are final.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn settle(&self, key: &SourceKey, until: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO settlements (zone, source, kind, scope, final_us) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (zone, source, kind, scope) DO UPDATE SET final_us = MAX(final_us, $5)",
        )
        .bind(key.zone.as_str())
        .bind(&key.source)
        .bind(rows::name(&key.kind)?)
        .bind(rows::name(&key.scope)?)
        .bind(until.timestamp_micros())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Up to when a source's values of what came are final, if any are.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settled_until(&self, key: &SourceKey) -> Result<Option<DateTime<Utc>>, StoreError> {
        let sql = "SELECT final_us FROM settlements WHERE zone = $1 AND source = $2 AND kind = $3 AND scope = $4";
        let found = sqlx::query(sql)
            .bind(key.zone.as_str())
            .bind(&key.source)
            .bind(rows::name(&key.kind)?)
            .bind(rows::name(&key.scope)?)
            .fetch_optional(&self.pool)
            .await?;
        found.map(|row| rows::moment(row.try_get("final_us")?)).transpose()
    }
}

/// Slots of one length that follow one another: the start of the first and their length in milliseconds, and their
/// values in g/kWh. Two days of five minutes take a few kilobytes that way.
type Run = (i64, i64, Vec<f64>);

fn runs(series: &CarbonSeries) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (slot, intensity) in series.points() {
        let (start, step) = (slot.start().timestamp_millis(), (slot.end() - slot.start()).num_milliseconds());
        let value = (intensity.value.get() * 100.0).round() / 100.0;
        match runs.last_mut() {
            #[expect(clippy::cast_possible_wrap, reason = "a forecast has some thousand slots")]
            Some((first, length, values)) if *length == step && *first + step * values.len() as i64 == start => {
                values.push(value);
            }
            _ => runs.push((start, step, vec![value])),
        }
    }
    runs
}

fn issued(row: &SqliteRow) -> Result<Issued, StoreError> {
    let what = "issued forecast";
    let runs: Vec<Run> = rows::from_json(what, &row.try_get::<String, _>("points")?)?;
    let mut points = Vec::new();
    for (start, step, values) in runs {
        for (i, value) in (0i64..).zip(values) {
            let moment = |i: i64| DateTime::from_timestamp_millis(start.checked_add(step.checked_mul(i)?)?);
            let slot = moment(i).zip(moment(i + 1)).and_then(|(from, to)| Slot::new(from, to));
            let value = GramsPerKwh::try_new(value);
            let point = slot.zip(value).map(|(slot, value)| (slot, Intensity { value, origin: Origin::Forecast }));
            points.push(point.ok_or_else(|| rows::damaged(what, "a point is no slot with a value"))?);
        }
    }
    Ok(Issued {
        source: row.try_get("source")?,
        zone: Zone::new(row.try_get::<String, _>("zone")?).map_err(|e| rows::damaged(what, e))?,
        kind: rows::from_name(what, row.try_get("kind")?)?,
        scope: rows::from_name(what, row.try_get("scope")?)?,
        issued_at: rows::moment(row.try_get("issued_us")?)?,
        retrieved_at: rows::moment(row.try_get("retrieved_us")?)?,
        series: CarbonSeries::from_points(points).0,
    })
}
