//! Routes of reports and of the ledger.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::blocking;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{Params, default_number, invalid, optional_whole_number, page_length, whole_number};
use crate::http::shared::Shared;
use crate::reports::{RESTATED_BY_PCT, ReportView, csv, functional_unit, html, span};
use crate::store::{LedgerPage, Store};
use wattune_core::domain::{EnergySource, InvalidJob, Slot};
use wattune_core::ledger::report::{Grouping, InvalidGrouping, Report, ReportRequest};
use wattune_core::ledger::{Interval, Share};
use wattune_core::units::Short;

const LONGEST_SPAN: TimeDelta = TimeDelta::days(7);

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::http) enum ReportFormat {
    /// JSON with all details.
    #[default]
    Json,
    /// CSV with the report's rows.
    Csv,
    /// An HTML page with plots.
    Html,
}

/// The selection of a report's content and format.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ReportQuery {
    /// The grouping of rows: `job`, `name`, `gpu`, `day`, `month`, or `tag:` followed by a tag's key.
    #[serde(default = "by_job")]
    #[param(default = "job")]
    by: String,
    /// The start of the requested span of time: a time in RFC 3339, or a date. Thirty days before `to` if absent.
    /// Rounded down to a full UTC hour.
    from: Option<String>,
    /// The end of the requested span of time: a time in RFC 3339, or a date, whose day is included. Now if absent.
    /// Rounded up to a full UTC hour.
    to: Option<String>,
    /// The format of the report.
    #[serde(default)]
    format: ReportFormat,
    /// The functional unit of the SCI score (software carbon intensity, ISO/IEC 21031): `run`, `epoch` or
    /// `1e6-samples`. No score is computed if absent.
    functional_unit: Option<String>,
    /// The number of samples per epoch, for the functional unit `epoch`; if absent, each job's tag
    /// `samples_per_epoch` gives the number.
    samples_per_epoch: Option<f64>,
    /// The change of an hour's emissions, in percent, above which the hour is listed as restated (changed by a later
    /// computation); 5 if absent.
    restated_by_pct: Option<f64>,
}

fn by_job() -> String {
    "job".into()
}

impl ReportQuery {
    /// Converts the query to a request for a report. The error is the first invalid parameter.
    fn checked(self, now: DateTime<Utc>) -> Result<ReportRequest, InvalidJob> {
        let by: Grouping = self.by.parse().map_err(|e: InvalidGrouping| invalid("by", e.to_string()))?;
        let span = span(self.from.as_deref(), self.to.as_deref(), now)?;
        let unit = functional_unit(self.functional_unit.as_deref(), self.samples_per_epoch)?;
        let restated_by_pct = self.restated_by_pct.unwrap_or(RESTATED_BY_PCT);
        if !(0.0..=1e6).contains(&restated_by_pct) {
            let why = format!("is {}; it must be from 0 to 1000000 percent", Short(restated_by_pct));
            return Err(invalid("restated_by_pct", why));
        }
        Ok(ReportRequest { by, span, unit, restated_by_pct, now })
    }
}

/// The selection of a part of the ledger, in pages.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct LedgerQuery {
    /// The start of the requested span of time: a time in RFC 3339, or a date. The day before `to` if absent. Rounded
    /// down to a full UTC hour.
    from: Option<String>,
    /// The end of the requested span of time: a time in RFC 3339, or a date, whose day is included. Now if absent.
    /// Rounded up to a full UTC hour.
    to: Option<String>,
    /// The number of the last interval of the previous page, which that page gives as `next_after`. The first page if
    /// absent.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<u64>,
    /// The maximum number of intervals per page, 1 to 10000.
    #[serde(default = "default_number::<1000>", deserialize_with = "whole_number")]
    #[param(default = 1000, minimum = 1, maximum = 10000)]
    limit: u32,
}

impl LedgerQuery {
    /// Returns the time span, the number of the last interval before the page (`None` for the first page), and the
    /// maximum number of intervals on the page.
    fn checked(self, now: DateTime<Utc>) -> Result<(Slot, Option<u64>, u32), InvalidJob> {
        let mut found = span(self.from.as_deref(), self.to.as_deref(), now)?;
        if self.from.is_none() {
            found = Slot::new(found.end() - TimeDelta::days(1), found.end()).unwrap_or(found);
        }
        if found.end() - found.start() > LONGEST_SPAN {
            return Err(invalid("from", "is more than seven days before the end; request one week at a time"));
        }
        let limit = page_length(self.limit, 10_000)?;
        if self.after.is_some_and(|after| i64::try_from(after).is_err()) {
            return Err(invalid("after", "is not the number of an interval; use next_after of the previous page"));
        }
        Ok((found, self.after, limit))
    }
}

/// One page of the ledger's content in a span of time.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::http) struct LedgerPageView {
    /// The start of the page's span of time, a full UTC hour.
    from: DateTime<Utc>,
    /// The end of the page's span of time, a full UTC hour.
    to: DateTime<Utc>,
    /// The recorded intervals, in the order in which they were recorded.
    intervals: Vec<LedgerRow>,
    /// The value of `after` for the next page; null on the last page.
    next_after: Option<u64>,
    /// Hourly sums of old intervals, which are no longer stored individually; only on the first page.
    rolled_up: Vec<RolledUpRow>,
    /// The ledger's entries about the requested span of time: all versions of each hour's settlement (computation of the
    /// hour's emissions), losses of energy, and the corrections of owners that were made in the span, whatever hours they
    /// correct; only on the first page.
    entries: Vec<LedgerEntry>,
}

/// The owner of recorded energy: a job, `idle` (no job and no other process used the device), or `unattributed` (the
/// owner is unknown).
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum EnergyOwner {
    Job,
    Idle,
    Unattributed,
}

impl From<&Share> for EnergyOwner {
    fn from(share: &Share) -> Self {
        match share {
            Share::Job(_) => Self::Job,
            Share::Idle => Self::Idle,
            Share::Unattributed => Self::Unattributed,
        }
    }
}

/// The source of an energy value: an energy counter, integrated power, or a counter's increase over a gap in the
/// readings.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum MeasuredBy {
    Counter,
    IntegratedPower,
    CounterGap,
}

impl From<EnergySource> for MeasuredBy {
    fn from(source: EnergySource) -> Self {
        match source {
            EnergySource::Counter => Self::Counter,
            EnergySource::IntegratedPower => Self::IntegratedPower,
            EnergySource::CounterGap => Self::CounterGap,
        }
    }
}

/// One recorded interval of the ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::http) struct LedgerRow {
    /// The interval's number in the ledger.
    row: u64,
    /// The number of the block that contains the interval. A block holds the intervals between two closes of the
    /// ledger, usually those of an hour.
    block: u64,
    /// SHA-256 digest of the hash chain of the interval's block, up to and including this interval.
    hash: String,
    /// The id of the measured device.
    device: String,
    /// The present owner of the energy, after all corrections.
    share: EnergyOwner,
    /// The id of the owning job, if the owner is a job.
    job_id: Option<String>,
    /// The owner before any correction; null if no correction has changed the owner.
    recorded_share: Option<EnergyOwner>,
    /// The id of the job that owned the energy before any correction; null if no correction has changed the owner, or
    /// if the owner was not a job.
    recorded_job_id: Option<String>,
    /// The start of the interval.
    start: DateTime<Utc>,
    /// The end of the interval.
    end: DateTime<Utc>,
    /// The energy that the device used in the interval.
    energy_mj: u64,
    /// The source of the energy value.
    source: MeasuredBy,
    /// The relative uncertainty of the energy.
    uncertainty_pct: f64,
}

/// The energy of one device and owner in one hour, summed over intervals that are no longer stored individually.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::http) struct RolledUpRow {
    /// The start of the hour.
    hour: DateTime<Utc>,
    /// The id of the measured device.
    device: String,
    /// The owner of the energy.
    share: EnergyOwner,
    /// The id of the owning job, if the owner is a job.
    job_id: Option<String>,
    /// The energy in the hour.
    energy_mj: u64,
    /// The source of the energy value.
    source: MeasuredBy,
}

/// An entry of the ledger's hash chain, such as a settlement (computation of an hour's emissions) or a correction of an
/// owner.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(in crate::http) struct LedgerEntry {
    /// The number of the entry in the chain.
    seq: u64,
    /// SHA-256 digest of the chain up to and including this entry.
    hash: String,
    /// The entry as it is stored.
    #[schema(value_type = Object)]
    entry: serde_json::Value,
}

fn job_of(share: &Share) -> Option<String> {
    match share {
        Share::Job(id) => Some(id.to_string()),
        Share::Idle | Share::Unattributed => None,
    }
}

impl LedgerPageView {
    /// Converts a page of the ledger in `span` to the form in which the API returns it.
    fn of(page: LedgerPage, span: &Slot) -> Self {
        let row = |r: crate::store::LedgerRow| LedgerRow {
            row: r.row,
            block: r.block,
            hash: r.hash.to_string(),
            device: r.interval.device.to_string(),
            share: (&r.interval.share).into(),
            job_id: job_of(&r.interval.share),
            recorded_share: r.recorded.as_ref().map(Into::into),
            recorded_job_id: r.recorded.as_ref().and_then(job_of),
            start: r.interval.slot.start(),
            end: r.interval.slot.end(),
            energy_mj: r.interval.energy.get(),
            source: r.interval.source.into(),
            uncertainty_pct: r.interval.source.uncertainty_pct(),
        };
        let hour = |r: Interval| RolledUpRow {
            hour: r.slot.start(),
            device: r.device.to_string(),
            share: (&r.share).into(),
            job_id: job_of(&r.share),
            energy_mj: r.energy.get(),
            source: r.source.into(),
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

/// Returns the database and the daemon's current time. Reading the database does not involve the control loop.
async fn store(shared: &Shared) -> Result<(Store, DateTime<Utc>), Problem> {
    shared.ask(|controller| Box::pin(async move { (controller.store(), controller.now().utc) })).await
}

/// Returns energy and emissions in a span of time, grouped by job, name, GPU, tag, day or month.
#[utoipa::path(
    get, path = "/v1/report", operation_id = "get_report", tag = "ledger", params(ReportQuery),
    responses(
        (status = OK, content((ReportView = "application/json"), (String = "text/csv"), (String = "text/html")))
    )
)]
pub(in crate::http) async fn report(
    State(shared): State<Shared>,
    Params(query): Params<ReportQuery>,
) -> Result<Response, Problem> {
    let format = query.format;
    let (store, now) = store(&shared).await?;
    let wanted = query.checked(now)?;
    let report = shared.within(store.report(wanted)).await?;
    blocking::in_place(|| respond(&report, format))
}

/// Renders a report.
fn respond(report: &Report, format: ReportFormat) -> Result<Response, Problem> {
    let view = ReportView::of(report);
    let (media_type, body) = match format {
        ReportFormat::Json => return Ok(Json(view).into_response()),
        ReportFormat::Csv => {
            let bytes = csv(&view).map_err(|e| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
            ("text/csv; charset=utf-8", bytes)
        }
        ReportFormat::Html => ("text/html; charset=utf-8", html(&view).into_bytes()),
    };
    let mut response = ([(header::CONTENT_TYPE, HeaderValue::from_static(media_type))], body).into_response();
    if format == ReportFormat::Html {
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}

/// Returns the ledger of a span of at most seven days, page by page: intervals of energy with their present owners. The
/// first page also has hourly sums of old intervals, all versions of each hour's settlement (computation of the hour's
/// emissions), corrections of owners, and losses of energy.
#[utoipa::path(
    get, path = "/v1/ledger", operation_id = "get_ledger", tag = "ledger", params(LedgerQuery),
    responses((status = OK, body = LedgerPageView))
)]
pub(in crate::http) async fn ledger(
    State(shared): State<Shared>,
    Params(query): Params<LedgerQuery>,
) -> Answer<LedgerPageView> {
    let (store, now) = store(&shared).await?;
    let (span, after, limit) = query.checked(now)?;
    let page = shared.within(store.ledger_page(&span, after, limit)).await?;
    Ok(Json(LedgerPageView::of(page, &span)))
}
