//! Carbon signal: carbon intensities with their provenance, forecasts as published, and the time up to which actual
//! values are final.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::connection::writing;
use super::days::{FirstOf, first_kept};
use super::{Store, StoreError, rows};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Issued, Origin, Provenance, Slot, TimeSeries, Zone};
use wattune_core::ledger::entry::Factor;
use wattune_core::ledger::intensities::{self, SourceValues, Value};
use wattune_core::ledger::sources::SourceKey;
use wattune_core::units::GramsPerKwh;

/// Minimum number of days for which published forecasts are kept: the 36 that forecast models learn from, plus one.
const ISSUED_KEPT_DAYS: i64 = 37;

impl Store {
    /// Appends the carbon intensities `points`, with the provenance of the source's response `answer`.
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
        let (zone, source) = (answer.zone.clone(), answer.source.clone());
        let (kind, scope) = (answer.kind.as_str(), answer.scope.as_str());
        let (issued_us, retrieved_us) = (answer.issued_at.timestamp_micros(), answer.retrieved_at.timestamp_micros());
        let origins: BTreeMap<Origin, String> =
            points.iter().map(|(_, i)| Ok((i.origin, rows::name(&i.origin)?))).collect::<Result<_, StoreError>>()?;
        let values: Vec<(Slot, Intensity, Option<String>)> = points
            .iter()
            .map(|(slot, intensity)| {
                let provenance = known.then(|| rows::json(&answer.provenance.of(slot))).transpose()?;
                Ok((*slot, *intensity, provenance))
            })
            .collect::<Result<_, StoreError>>()?;
        let sql = "INSERT INTO intensities (zone, source, kind, scope, start_us, end_us, g_per_kwh, origin, trust, \
                   issued_us, retrieved_us, withdrawn, provenance) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            for (slot, intensity, provenance) in values {
                rows::execute(
                    &tx,
                    sql,
                    params![
                        zone.as_str(),
                        source,
                        kind,
                        scope,
                        slot.start().timestamp_micros(),
                        slot.end().timestamp_micros(),
                        intensity.value.get(),
                        origins[&intensity.origin],
                        intensity.origin as i32,
                        issued_us,
                        retrieved_us,
                        withdrawn,
                        provenance,
                    ],
                )?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// Records that the source of `answer` withdrew the values `points` that it had published, so that they are no
    /// longer valid.
    pub async fn withdraw_intensities(
        &self,
        answer: &Forecast,
        points: &[(Slot, Intensity)],
    ) -> Result<(), StoreError> {
        self.write_intensities(answer, points, true).await
    }

    /// Returns the best known carbon intensities of a span. All `sources` are of one kind and scope, the preferred one
    /// first. An actual value of any source outranks all forecasts; among values of equal rank, the preferred source
    /// decides, then the most trusted origin, then the newest value.
    pub async fn intensities(&self, sources: &[SourceKey], span: &Slot) -> Result<CarbonSeries, StoreError> {
        let (sources, span) = (sources.to_vec(), *span);
        let read = move |db: &mut Connection| Ok(best(&*db.transaction()?, &sources, &span)?.map(|(_, v)| v.intensity));
        self.short_reads.run(read).await
    }

    /// Returns the best known carbon intensities of a span, as [`Self::intensities`] does, with provenance and
    /// finality, oldest first. Slots that extend beyond the span are not cut.
    pub async fn factors(&self, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
        let (sources, span) = (sources.to_vec(), *span);
        self.short_reads.run(move |db| factors(&*db.transaction()?, &sources, &span)).await
    }

    /// Stores a forecast as published, and deletes forecasts that are older than 37 days on which a daemon ran.
    pub async fn append_issued(&self, issued: &Forecast) -> Result<(), StoreError> {
        let (zone, source) = (issued.zone.clone(), issued.source.clone());
        let (kind, scope) = (issued.kind.as_str(), issued.scope.as_str());
        let (issued_us, retrieved_us) = (issued.issued_at.timestamp_micros(), issued.retrieved_at.timestamp_micros());
        let runs = rows::json(&runs(&issued.expected))?;
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            let sql = "INSERT INTO issued_forecasts (zone, source, kind, scope, issued_us, retrieved_us, points) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            rows::execute(&tx, sql, params![zone.as_str(), source, kind, scope, issued_us, retrieved_us, runs])?;
            let kept = first_kept(&tx, FirstOf::Forecasts, ISSUED_KEPT_DAYS)?;
            rows::execute(&tx, "DELETE FROM issued_forecasts WHERE id < ?1", [kept])?;
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// Returns the forecasts fetched since a time, in the order of their issue. Of several that were fetched from one
    /// source within a UTC hour, only the first is returned.
    pub async fn issued_since(&self, since: DateTime<Utc>) -> Result<Vec<Issued>, StoreError> {
        let sql = "SELECT * FROM issued_forecasts WHERE id IN (SELECT MIN(id) FROM issued_forecasts \
                   WHERE retrieved_us >= ?1 GROUP BY zone, source, kind, scope, retrieved_us / 3600000000) \
                   ORDER BY issued_us";
        self.short_reads.run(move |db| rows::all(db, sql, [since.timestamp_micros()], issued)).await
    }

    /// Returns some of the forecasts that were fetched from a source since a time, oldest first: the newest one, and
    /// the first one of each six hours (from 00:00, 06:00, 12:00 and 18:00 UTC).
    pub async fn issued_of(&self, key: &SourceKey, since: DateTime<Utc>) -> Result<Vec<Issued>, StoreError> {
        let sql = "WITH of AS (SELECT id, retrieved_us FROM issued_forecasts \
                   WHERE retrieved_us >= ?1 AND zone = ?2 AND source = ?3 AND kind = ?4 AND scope = ?5) \
                   SELECT * FROM issued_forecasts WHERE id IN (SELECT MIN(id) FROM of GROUP BY retrieved_us / 21600000000) \
                   OR id = (SELECT MAX(id) FROM of) ORDER BY issued_us, retrieved_us";
        let columns = time_and_key(since, key);
        self.short_reads.run(move |db| rows::all(db, sql, columns, issued)).await
    }

    /// Returns the newest forecast of a source that had been issued and fetched by the time `at`; `None` if there is
    /// none.
    pub async fn issued_by(&self, key: &SourceKey, at: DateTime<Utc>) -> Result<Option<Issued>, StoreError> {
        let sql = "SELECT * FROM issued_forecasts WHERE retrieved_us <= ?1 AND issued_us <= ?1 \
                   AND zone = ?2 AND source = ?3 AND kind = ?4 AND scope = ?5 ORDER BY retrieved_us DESC LIMIT 1";
        let columns = time_and_key(at, key);
        self.short_reads.run(move |db| rows::optional(db, sql, columns, issued)).await
    }

    /// Records the time up to which a source's actual values are final. A time before the recorded one changes nothing,
    /// unless the recorded one is after `latest`: no value can be final after that.
    pub async fn set_final_until(
        &self,
        key: &SourceKey,
        until: DateTime<Utc>,
        latest: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO settlements (zone, source, kind, scope, final_us) VALUES (?2, ?3, ?4, ?5, ?1) \
                   ON CONFLICT (zone, source, kind, scope) DO UPDATE SET final_us = MAX(MIN(final_us, ?6), ?1)";
        let (until, zone, source, kind, scope) = time_and_key(until, key);
        let columns = (until, zone, source, kind, scope, latest.timestamp_micros());
        self.write.run(move |db| rows::execute(db, sql, columns).map(drop)).await
    }

    /// Returns the time up to which a source's actual values are final; `None` if no value is.
    pub async fn final_until(&self, key: &SourceKey) -> Result<Option<DateTime<Utc>>, StoreError> {
        let key = key.clone();
        self.short_reads.run(move |db| final_until(db, &key)).await
    }
}

/// Returns a time and a source as the first five parameters of a statement.
fn time_and_key(at: DateTime<Utc>, key: &SourceKey) -> (i64, String, String, &'static str, &'static str) {
    (at.timestamp_micros(), key.zone.to_string(), key.source.clone(), key.kind.as_str(), key.scope.as_str())
}

/// Returns the same as [`Store::factors`].
pub(super) fn factors(db: &Connection, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
    let finals: Vec<_> = sources.iter().map(|key| final_until(db, key)).collect::<Result<_, _>>()?;
    let best = best(db, sources, span)?;
    let provenances = provenances(db, &best)?;
    let factor = |(slot, (place, value)): &(Slot, (usize, Value))| {
        // Cloned, because a row may supply several parts of its slot, with newer values in between.
        let provenance = provenances.get(&value.row).cloned().unwrap_or_default();
        intensities::factor(slot, value, &sources[*place], finals[*place], provenance)
    };
    Ok(best.points().iter().map(factor).collect())
}

fn provenances(db: &Connection, of: &TimeSeries<(usize, Value)>) -> Result<BTreeMap<i64, Provenance>, StoreError> {
    let ids: Vec<i64> = of.points().iter().map(|(_, (_, value))| value.row).collect();
    let sql = "SELECT id, provenance FROM intensities \
               WHERE id IN (SELECT value FROM json_each(?1)) AND provenance IS NOT NULL";
    let of_row = |row: &Row<'_>| Ok((row.get(0)?, rows::from_json("intensity", rows::text(row, 1)?)?));
    let found: Vec<(i64, Provenance)> = rows::all(db, sql, [rows::json(&ids)?], of_row)?;
    Ok(found.into_iter().collect())
}

/// Returns the best known value for each time, with the index of its source in `sources`.
fn best(db: &Connection, sources: &[SourceKey], span: &Slot) -> Result<TimeSeries<(usize, Value)>, StoreError> {
    let values = sources.iter().map(|key| of_source(db, key, span)).collect::<Result<_, _>>()?;
    Ok(intensities::best(values))
}

fn of_source(db: &Connection, key: &SourceKey, span: &Slot) -> Result<SourceValues, StoreError> {
    // The plus in `+id` makes SQLite select rows by time and sort them afterwards; without it, SQLite would scan all
    // rows in the order of their ids.
    let sql = "SELECT id, start_us, end_us, g_per_kwh, origin, issued_us, retrieved_us, withdrawn FROM intensities \
               WHERE end_us > ?1 AND start_us < ?2 AND zone = ?3 AND source = ?4 AND kind = ?5 AND scope = ?6 \
               ORDER BY +id";
    let mut statement = db.prepare_cached(sql)?;
    let [start, end] = rows::ends(span);
    let (zone, source, kind, scope) = (key.zone.as_str(), &key.source, key.kind.as_str(), key.scope.as_str());
    let mut found = statement.query(params![start, end, zone, source, kind, scope])?;
    let mut values = SourceValues::default();
    while let Some(row) = found.next()? {
        let value =
            GramsPerKwh::try_new(row.get("g_per_kwh")?).ok_or_else(|| rows::damaged("intensity", "not finite"))?;
        let origin: Origin = rows::from_name("intensity", rows::text(row, "origin")?)?;
        let slot = rows::slot(row)?;
        if row.get("withdrawn")? {
            values.withdraw(slot, origin);
            continue;
        }
        let intensity = Intensity { value, origin };
        let (issued_at, retrieved_at) = (rows::time(row.get("issued_us")?)?, rows::time(row.get("retrieved_us")?)?);
        values.publish(slot, Value { intensity, issued_at, retrieved_at, row: row.get("id")? });
    }
    Ok(values)
}

fn final_until(db: &Connection, key: &SourceKey) -> Result<Option<DateTime<Utc>>, StoreError> {
    let sql = "SELECT final_us FROM settlements WHERE zone = ?1 AND source = ?2 AND kind = ?3 AND scope = ?4";
    let columns = params![key.zone.as_str(), key.source, key.kind.as_str(), key.scope.as_str()];
    rows::optional(db, sql, columns, |row| rows::time(row.get(0)?))
}

/// Consecutive slots of equal length: first the start of the first slot, in milliseconds since 1970; second the length
/// of a slot in milliseconds; third the value of each slot in g/kWh. Two days of five-minute slots take a few kilobytes
/// in this form.
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

fn issued(row: &Row<'_>) -> Result<Issued, StoreError> {
    let what = "issued forecast";
    let runs: Vec<Run> = rows::from_json(what, rows::text(row, "points")?)?;
    let mut points = Vec::new();
    for (start, step, values) in runs {
        for (i, value) in (0i64..).zip(values) {
            let moment = |i: i64| DateTime::from_timestamp_millis(start.checked_add(step.checked_mul(i)?)?);
            let slot = moment(i).zip(moment(i + 1)).and_then(|(from, to)| Slot::new(from, to));
            let value = GramsPerKwh::try_new(value);
            let point = slot.zip(value).map(|(slot, value)| (slot, Intensity { value, origin: Origin::Forecast }));
            points.push(point.ok_or_else(|| rows::damaged(what, "a point has no valid time or no finite value"))?);
        }
    }
    Ok(Issued {
        source: row.get("source")?,
        zone: Zone::new(row.get::<_, String>("zone")?).map_err(|e| rows::damaged(what, e))?,
        kind: rows::from_name(what, rows::text(row, "kind")?)?,
        scope: rows::from_name(what, rows::text(row, "scope")?)?,
        issued_at: rows::time(row.get("issued_us")?)?,
        retrieved_at: rows::time(row.get("retrieved_us")?)?,
        series: CarbonSeries::from_points(points).0,
    })
}
