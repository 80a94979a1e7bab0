//! What reports are made of: settled totals by day, of single hours at the edges of a span, and what is not settled yet.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::rows;
use super::settle::settlement;
use crate::domain::{DeviceId, SignalKind, Slot};
use crate::ledger::{Interval, Share, Total};
use crate::store::{Store, StoreError};
use crate::units::{Micrograms, Millijoules};

/// A share's energy and emissions within a day, or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Booked {
    /// The day's beginning.
    pub day: DateTime<Utc>,
    /// Which book: whose intensities the emissions are reckoned with.
    pub book: SignalKind,
    /// What used it.
    pub device: DeviceId,
    /// Whose it is.
    pub share: Share,
    /// How much, and what is known of it.
    pub total: Total,
}

impl Store {
    /// What was settled of the hours that lie in `span`, by day, book, device and share. Whole days come from the days'
    /// totals, other hours from their settlements.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settled_totals(&self, span: &Slot) -> Result<Vec<Booked>, StoreError> {
        let day = TimeDelta::days(1);
        let floor = |t: DateTime<Utc>| t.duration_trunc(day).unwrap_or(t);
        let (first, last) = (floor(span.start() - TimeDelta::microseconds(1)) + day, floor(span.end()));
        let mut found = Vec::new();
        let mut edges = Vec::new();
        if let Some(days) = Slot::new(first, last) {
            let sql = "SELECT * FROM day_totals WHERE day_us >= $1 AND day_us < $2 ORDER BY day_us, book, device";
            let of_days = sqlx::query(sql)
                .bind(days.start().timestamp_micros())
                .bind(days.end().timestamp_micros())
                .fetch_all(&self.pool)
                .await?;
            found = of_days.iter().map(of_day).collect::<Result<Vec<_>, _>>()?;
            edges.extend(Slot::new(span.start(), days.start()));
            edges.extend(Slot::new(days.end(), span.end()));
        } else {
            edges.push(*span);
        }
        for edge in edges {
            let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us >= $1 AND hour_us < $2";
            let edge = sqlx::query(sql)
                .bind(edge.start().timestamp_micros())
                .bind(edge.end().timestamp_micros())
                .fetch_all(&self.pool)
                .await?;
            for row in &edge {
                let settled = settlement(row)?;
                let of_part = |(part, total): (&crate::ledger::entry::Part, Total)| Booked {
                    day: floor(settled.hour),
                    book: settled.book,
                    device: part.device.clone(),
                    share: part.share.clone(),
                    total,
                };
                found.extend(settled.totals().map(of_part));
            }
        }
        found.retain(|booked| booked.total.energy > Millijoules::ZERO);
        Ok(found)
    }

    /// What was settled of a book of the UTC days since the one that begins at `day`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settled_since(&self, day: DateTime<Utc>, book: SignalKind) -> Result<Total, StoreError> {
        let sums =
            ["energy_mj", "estimated_mj", "forecast_mj", "provisional_mj", "final_mj", "unknown_mj", "carbon_ug"]
                .map(|column| format!("COALESCE(SUM({column}), 0) AS {column}"))
                .join(", ");
        let sql = format!("SELECT {sums} FROM day_totals WHERE day_us >= $1 AND book = $2");
        let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(day.timestamp_micros()).bind(rows::name(&book)?);
        total(&found.fetch_one(&self.pool).await?)
    }

    /// The rows that begin in `span` and are booked and in no settlement yet.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn unsettled_rows(&self, span: &Slot) -> Result<Vec<Interval>, StoreError> {
        let mut tx = self.pool.begin().await?;
        super::report::open_rows(&mut tx, span).await
    }
}

fn of_day(row: &SqliteRow) -> Result<Booked, StoreError> {
    let job: String = row.try_get("job_id")?;
    Ok(Booked {
        day: rows::moment(row.try_get("day_us")?)?,
        book: rows::from_name("day's total", row.try_get("book")?)?,
        device: DeviceId::new(row.try_get::<String, _>("device")?).map_err(|e| rows::damaged("day's total", e))?,
        share: rows::share(&row.try_get::<String, _>("share")?, Some(job).filter(|j| !j.is_empty()))?,
        total: total(row)?,
    })
}

fn total(row: &SqliteRow) -> Result<Total, StoreError> {
    let mj = |name: &str| rows::from_i64(row.try_get(name)?);
    let carbon = u64::try_from(row.try_get::<i64, _>("carbon_ug")?).map_err(|e| rows::damaged("emissions", e))?;
    Ok(Total {
        energy: mj("energy_mj")?,
        estimated: mj("estimated_mj")?,
        forecast: mj("forecast_mj")?,
        provisional: mj("provisional_mj")?,
        final_: mj("final_mj")?,
        unknown: mj("unknown_mj")?,
        carbon: Micrograms::new(carbon),
    })
}
