//! Queries for reports and the ledger, and the ledger's JSON.

use chrono::{DateTime, TimeDelta, Timelike as _, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::extract::{optional_whole_number, whole_number};
use crate::store::LedgerPage;
use wattune_core::domain::{InvalidJob, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::report::{FunctionalUnit, Grouping, MIN_SAMPLES_PER_EPOCH, ReportRequest};
use wattune_core::ledger::{Interval, Share};
use wattune_core::units::{Samples, Short};

/// The default threshold for listing a restatement: the change of an hour's emissions in percent.
pub const RESTATED_BY_PCT: f64 = 5.0;

const LONGEST_SPAN: TimeDelta = TimeDelta::days(7);

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReportFormat {
    /// JSON with all details.
    #[default]
    Json,
    /// CSV with the rows.
    Csv,
    /// An HTML page with plots.
    Html,
}

/// The selection of a report.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportQuery {
    /// The grouping: `job`, `name`, `gpu`, `day`, `month`, or `tag:` with a label's key.
    #[serde(default = "by_job")]
    #[param(default = "job")]
    pub by: String,
    /// The start: RFC 3339, or a date. Thirty days before `to` if absent. Rounded down to a full UTC hour.
    pub from: Option<String>,
    /// The end: RFC 3339, or a date, which includes that day. Now if absent. Rounded up to a full hour.
    pub to: Option<String>,
    /// The format.
    #[serde(default)]
    pub format: ReportFormat,
    /// The functional unit of SCI: `run`, `epoch` or `1e6-samples`.
    pub functional_unit: Option<String>,
    /// Samples per epoch; from each job's label `samples_per_epoch` if absent.
    pub samples_per_epoch: Option<f64>,
    /// Hours whose emissions changed by more than this are listed.
    pub restated_by_pct: Option<f64>,
}

fn by_job() -> String {
    "job".into()
}

fn invalid(field: &'static str, why: impl ToString) -> InvalidJob {
    InvalidJob { field, why: why.to_string() }
}

impl ReportQuery {
    /// Converts the query.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn checked(self, now: DateTime<Utc>) -> Result<ReportRequest, InvalidJob> {
        let by: Grouping = self.by.parse().map_err(|e| invalid("by", e))?;
        let span = span(self.from.as_deref(), self.to.as_deref(), now)?;
        let unit = functional_unit(self.functional_unit.as_deref(), self.samples_per_epoch)?;
        let restated_by_pct = self.restated_by_pct.unwrap_or(RESTATED_BY_PCT);
        if !(0.0..=1e6).contains(&restated_by_pct) {
            let why = format!("is {}; it must be within 0 to 1000000 percent", Short(restated_by_pct));
            return Err(invalid("restated_by_pct", why));
        }
        Ok(ReportRequest { by, span, unit, restated_by_pct, now })
    }
}

/// Parses the functional unit of SCI.
///
/// # Errors
/// If the unit is unknown or the samples of an epoch are invalid.
pub fn functional_unit(unit: Option<&str>, samples: Option<f64>) -> Result<Option<FunctionalUnit>, InvalidJob> {
    let field = "samples_per_epoch";
    let samples = match samples {
        Some(number) if number >= MIN_SAMPLES_PER_EPOCH => {
            Some(Samples::try_new(number).ok_or_else(|| invalid(field, "is not finite"))?)
        }
        Some(number) => return Err(invalid(field, format!("is {}; it must be at least 1", Short(number)))),
        None => None,
    };
    match unit {
        Some("epoch") => Ok(Some(FunctionalUnit::Epoch(samples))),
        _ if samples.is_some() => Err(invalid(field, "needs functional_unit=epoch")),
        None => Ok(None),
        Some("run") => Ok(Some(FunctionalUnit::Run)),
        Some("1e6-samples") => Ok(Some(FunctionalUnit::MillionSamples)),
        Some(other) => {
            let other: String = other.chars().take(80).collect();
            Err(invalid("functional_unit", format!("{other:?} is unknown; give run, epoch or 1e6-samples")))
        }
    }
}

/// Returns whole UTC hours: from the hour that contains `from` to the end of the hour that contains `to`. A date stands
/// for its first moment as `from`, and for its last as `to`.
///
/// # Errors
/// If a time is invalid, or the span is empty.
pub fn span(from: Option<&str>, to: Option<&str>, now: DateTime<Utc>) -> Result<Slot, InvalidJob> {
    let hour = TimeDelta::hours(1);
    let end = match to {
        Some(text) => moment("to", text, true)?,
        None => now,
    };
    let from = from.map(|text| moment("from", text, false)).transpose()?;
    // An empty span must not become a whole hour.
    let is_none = from.is_some_and(|from| from >= end);
    let (floor, given) = (hour_of(end), end);
    let end = if floor == end { end } else { floor + hour };
    let start = from.map_or(end - TimeDelta::days(30), hour_of);
    let why = || match Slot::new(start, end) {
        None => format!("is not before the end, {}", end.format("%FT%RZ")),
        Some(_) => format!("is not before the end, {}", given.format("%FT%TZ")),
    };
    Slot::new(start, end).filter(|_| !is_none).ok_or_else(|| invalid("from", why()))
}

/// Returns the exact span. A date stands for its first moment as `from`, and for its last as `to`.
///
/// # Errors
/// If a time is invalid, or the span is empty.
pub fn exact_span(from: &str, to: Option<&str>, now: DateTime<Utc>) -> Result<Slot, InvalidJob> {
    let end = to.map_or(Ok(now), |text| moment("to", text, true))?;
    let why = format!("is not before the end, {}", end.format("%FT%TZ"));
    Slot::new(moment("from", from, false)?, end).ok_or_else(|| invalid("from", why))
}

fn moment(field: &'static str, text: &str, is_end: bool) -> Result<DateTime<Utc>, InvalidJob> {
    let (first, last) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + TimeDelta::days(366 * 400));
    let shown = || text.chars().take(80).collect::<String>();
    let found = match text.parse::<chrono::NaiveDate>() {
        Ok(date) => {
            let day = date.and_time(chrono::NaiveTime::MIN).and_utc();
            Some(if is_end { day + TimeDelta::days(1) } else { day })
        }
        // A leap second belongs to the hour that it ends.
        Err(_) => DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|t| t.to_utc())
            .map(|t| t.with_nanosecond(t.nanosecond().min(999_999_999)).unwrap_or(t)),
    };
    match found {
        Some(t) if (first..=last).contains(&t) => Ok(t),
        Some(_) => {
            let why = format!("{:?} is not within {} to {}", shown(), first.format("%F"), last.format("%F"));
            Err(invalid(field, why))
        }
        None => {
            let why = format!("{:?} is not a time; write it as 2026-01-31 or 2026-01-31T12:00:00Z", shown());
            Err(invalid(field, why))
        }
    }
}

/// The selection of a part of the ledger.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LedgerQuery {
    /// The start: RFC 3339, or a date. The day before `to` if absent.
    pub from: Option<String>,
    /// The end: RFC 3339, or a date, which includes that day. Now if absent.
    pub to: Option<String>,
    /// Only intervals after this number: `next_after` of the previous page.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    pub after: Option<u64>,
    /// The maximum number of intervals, 1 to 10000.
    #[serde(default = "a_page", deserialize_with = "whole_number")]
    #[param(default = 1000, minimum = 1, maximum = 10000)]
    pub limit: u32,
}

const fn a_page() -> u32 {
    1000
}

impl LedgerQuery {
    /// Returns the span, the interval before the page, and the page's length.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn checked(self, now: DateTime<Utc>) -> Result<(Slot, Option<u64>, u32), InvalidJob> {
        let mut found = span(self.from.as_deref(), self.to.as_deref(), now)?;
        if self.from.is_none() {
            found = Slot::new(found.end() - TimeDelta::days(1), found.end()).unwrap_or(found);
        }
        if found.end() - found.start() > LONGEST_SPAN {
            return Err(invalid("from", "is more than seven days before the end; request one week at a time"));
        }
        if !(1..=10_000).contains(&self.limit) {
            return Err(invalid("limit", format!("is {}; it must be within 1 to 10000", self.limit)));
        }
        if self.after.is_some_and(|after| i64::try_from(after).is_err()) {
            return Err(invalid("after", "is not the number of an interval; use next_after of the previous page"));
        }
        Ok((found, self.after, self.limit))
    }
}

/// A part of the ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LedgerPageView {
    /// The start of the span.
    pub from: DateTime<Utc>,
    /// The end of the span.
    pub to: DateTime<Utc>,
    /// The intervals in the order in which they were recorded.
    pub intervals: Vec<LedgerRow>,
    /// The value of `after` for the next page; absent on the last one.
    pub next_after: Option<u64>,
    /// Hourly sums of intervals that were rolled up; on the first page.
    pub rolled_up: Vec<RolledUpRow>,
    /// The settlements of the span's hours in all versions, and the corrections made within it, as stored in the
    /// ledger; on the first page.
    pub entries: Vec<LedgerEntry>,
}

/// One interval.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LedgerRow {
    /// The interval's number in the ledger.
    pub row: u64,
    /// The interval's block.
    pub block: u64,
    /// SHA-256 over the block's chain up to this interval.
    pub hash: String,
    /// The device.
    pub device: String,
    /// The current owner: `job`, `idle` or `unattributed`.
    pub share: &'static str,
    /// The owning job.
    pub job_id: Option<String>,
    /// The original owner, where a correction changed it.
    pub recorded_share: Option<&'static str>,
    /// The original owning job.
    pub recorded_job_id: Option<String>,
    /// The start.
    pub start: DateTime<Utc>,
    /// The end.
    pub end: DateTime<Utc>,
    /// The energy.
    pub energy_mj: u64,
    /// The source of the energy: `counter`, `integrated_power` or `counter_gap`.
    pub source: &'static str,
    /// The relative uncertainty.
    pub uncertainty_pct: f64,
}

/// An hour's sum of intervals that were rolled up.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RolledUpRow {
    /// The start of the hour.
    pub hour: DateTime<Utc>,
    /// The device.
    pub device: String,
    /// The owner: `job`, `idle` or `unattributed`.
    pub share: &'static str,
    /// The owning job.
    pub job_id: Option<String>,
    /// The energy.
    pub energy_mj: u64,
    /// The source of the energy.
    pub source: &'static str,
}

/// An entry of the ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LedgerEntry {
    /// The number of the entry.
    pub seq: u64,
    /// SHA-256 over the chain up to this entry.
    pub hash: String,
    /// The stored entry.
    #[schema(value_type = Object)]
    pub entry: serde_json::Value,
}

fn job_of(share: &Share) -> Option<String> {
    match share {
        Share::Job(id) => Some(id.to_string()),
        Share::Idle | Share::Unattributed => None,
    }
}

impl LedgerPageView {
    /// Converts a page of the ledger.
    pub fn of(page: LedgerPage, span: &Slot) -> Self {
        let row = |r: crate::store::LedgerRow| LedgerRow {
            row: r.row,
            block: r.block,
            hash: r.hash.to_string(),
            device: r.interval.device.to_string(),
            share: r.interval.share.name(),
            job_id: job_of(&r.interval.share),
            recorded_share: r.recorded.as_ref().map(Share::name),
            recorded_job_id: r.recorded.as_ref().and_then(job_of),
            start: r.interval.slot.start(),
            end: r.interval.slot.end(),
            energy_mj: r.interval.energy.get(),
            source: r.interval.source.as_str(),
            uncertainty_pct: r.interval.source.uncertainty_pct(),
        };
        let hour = |r: Interval| RolledUpRow {
            hour: r.slot.start(),
            device: r.device.to_string(),
            share: r.share.name(),
            job_id: job_of(&r.share),
            energy_mj: r.energy.get(),
            source: r.source.as_str(),
        };
        let entry = |(seq, hash, entry): (u64, wattune_core::ledger::chain::Digest, serde_json::Value)| LedgerEntry {
            seq,
            hash: hash.to_string(),
            entry,
        };
        Self {
            from: span.start(),
            to: span.end(),
            intervals: page.rows.into_iter().map(row).collect(),
            next_after: page.next_after,
            rolled_up: page.rolled_up.into_iter().map(hour).collect(),
            entries: page.entries.into_iter().map(entry).collect(),
        }
    }
}
