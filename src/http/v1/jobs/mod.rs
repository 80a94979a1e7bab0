//! Routes of training runs, from registration to the final account.

mod offers;
mod register;
mod time;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use self::register::{RegisterJob, null_as_default};
use crate::controller::view::{AccountView, JobView, PlanView, ProfileView, ProgressOrigin, ProgressView};
use crate::controller::{BeginReason, Caller, ControlError, Controller, ProgressReport};
use crate::http::access::By;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{
    FromPath, Named, Params, Payload, Wire, finite, invalid, optional_quantity, optional_whole_number, page_length,
};
use crate::http::shared::Shared;
use wattune_core::domain::{InvalidJob, JobId, ProgressSource};
use wattune_core::units::{Samples, Seconds, Short};

const LATEST_ENDED: u32 = 50;

/// The parameters in the URL path of a job.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(in crate::http) struct JobPath {
    /// The job's id.
    id: String,
}

impl FromPath for JobId {
    type Parameters = JobPath;

    fn parse(path: JobPath) -> Result<Self, Problem> {
        Self::new(path.id).map_err(|error| Problem::new(StatusCode::NOT_FOUND, error.to_string()))
    }
}

/// A progress report of a job.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"samples": 123_456, "at_s": 8123.25}))]
pub(in crate::http) struct ReportProgress {
    /// The number of samples that this run has processed since its start.
    #[schema(minimum = 0)]
    samples: f64,
    /// The time at which the client counted, in seconds of the client's monotonic clock, for an exact throughput. If
    /// absent, the time at which the report arrives counts.
    #[schema(minimum = 0)]
    at_s: Option<f64>,
    /// The total number of samples that this run will have processed at its end, once it is known; replaces the total
    /// of the registration.
    #[schema(exclusive_minimum = 0)]
    total_samples: Option<f64>,
    /// The part of the software that counts the samples; `http` if absent.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(value_type = ProgressOrigin, default = "http")]
    source: ProgressSource,
}

/// A request to renew a job's lease; an empty object.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct RenewLease {}

impl Wire for RenewLease {
    const HINTS: &'static [(&'static str, &'static str)] = &[];
}

/// The beginning of a held or suspended job.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct BeginJob {
    /// The reason for which the job begins; the planned start or the resumption if absent.
    reason: Option<BeginReason>,
}

impl Wire for BeginJob {
    const HINTS: &'static [(&'static str, &'static str)] =
        &[("reason", "give start_now, latest_start, planned or resumed, or leave it out")];
}

/// The suspension of a job; an empty object.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct JobSuspended {}

impl Wire for JobSuspended {
    const HINTS: &'static [(&'static str, &'static str)] = &[];
}

impl Wire for ReportProgress {
    const HINTS: &'static [(&'static str, &'static str)] = &[
        ("samples", "give the cumulative count of samples of this run"),
        ("at_s", "give seconds of a monotonic clock, or leave it out"),
        ("total_samples", "give the number of samples of the whole run, more than 0, or leave it out"),
        ("source", "leave it out unless the report comes from one of these"),
    ];
}

impl TryFrom<ReportProgress> for ProgressReport {
    type Error = InvalidJob;

    fn try_from(wire: ReportProgress) -> Result<Self, InvalidJob> {
        let samples = finite("samples", Samples::try_new(wire.samples))?;
        let at = optional_quantity("at_s", wire.at_s, Seconds::try_new)?;
        let total = optional_quantity("total_samples", wire.total_samples, Samples::try_new)?;
        if samples < Samples::ZERO {
            let why = format!("is {}; it is a count and cannot be negative", Short(wire.samples));
            return Err(invalid("samples", why));
        }
        if let Some(at) = at.filter(|at| *at < Seconds::ZERO) {
            let why = format!("is {}; it counts seconds from a fixed moment and cannot be negative", Short(at.get()));
            return Err(invalid("at_s", why));
        }
        Ok(Self { samples, at, total, source: wire.source })
    }
}

/// The selection of jobs to list.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct JobsQuery {
    /// The state of the jobs to list: `open` (not ended, the default), or `ended` (the latest first).
    #[serde(default)]
    state: JobState,
    /// The maximum number of jobs, from 1 to 1000; if absent, 50 ended jobs or all open ones.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// The state of a job, by which a request selects jobs.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum JobState {
    /// The job has not ended.
    #[default]
    Open,
    /// The job has ended.
    Ended,
}

/// Registers a training run.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "register_job", tag = "jobs", request_body = RegisterJob,
    responses(
        (status = CREATED, body = JobView, headers(("location" = String, description = "The job's address"))),
        (status = FORBIDDEN, description = "The job to replace or one of the processes belongs to others, only others' processes run on a GPU that is to be controlled, or `uid` or `priority` needs more rights"),
        (status = NOT_FOUND, description = "There is no such GPU"),
        (status = CONFLICT, description = "Another job controls one of the GPUs, or an open job has the same key"),
        (status = TOO_MANY_REQUESTS, description = "The configured maximum of open jobs is reached, in total or on one of the GPUs")
    )
)]
pub(in crate::http) async fn register(
    State(shared): State<Shared>,
    By(by): By,
    Payload(body): Payload<RegisterJob>,
) -> Result<impl IntoResponse, Problem> {
    let new = body.asked_by(by)?;
    let job = shared.ask(move |controller| Box::pin(async move { controller.register(new).await })).await??;
    let location = format!("/v1/jobs/{}", job.job_id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(job)))
}

/// Lists the jobs that have not ended, or the latest ones that have ended.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(JobsQuery),
    responses((status = OK, body = Vec<JobView>))
)]
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Params(query): Params<JobsQuery>,
) -> Answer<Vec<JobView>> {
    let limit = query.limit.map(|limit| page_length(limit, 1000)).transpose()?;
    let jobs = match query.state {
        JobState::Open => {
            let mut jobs = shared.ask(|controller| Box::pin(async move { controller.jobs() })).await?;
            jobs.truncate(limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX)));
            jobs
        }
        JobState::Ended => {
            let limit = limit.unwrap_or(LATEST_ENDED);
            shared.ask(move |controller| Box::pin(async move { controller.ended_jobs(limit).await })).await??
        }
    };
    Ok(Json(jobs))
}

/// Returns one job, running or ended.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "get_job", tag = "jobs", params(JobPath),
    responses((status = OK, body = JobView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn show(State(shared): State<Shared>, Named(id): Named<JobId>) -> Answer<JobView> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.job(&id).await })).await??))
}

/// Changes a job for the sender of a request if the job belongs to the sender, and returns the controller's answer.
async fn change<T: Send + 'static>(
    shared: &Shared,
    id: JobId,
    by: Caller,
    change: impl for<'a> FnOnce(&'a mut Controller, &'a JobId, Caller) -> BoxFuture<'a, Result<T, ControlError>>
    + Send
    + 'static,
) -> Answer<T> {
    let answer = shared.ask(move |controller| {
        Box::pin(async move {
            controller.check_owner(&id, &by).await?;
            change(controller, &id, by).await
        })
    });
    Ok(Json(answer.await??))
}

/// Ends a job: restores the original limits of its GPUs, and returns the job's final account.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", operation_id = "end_job", tag = "jobs", params(JobPath),
    responses(
        (status = OK, body = AccountView, description = "The final account"),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The job has ended already")
    )
)]
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<JobId>,
) -> Answer<AccountView> {
    change(&shared, id, by, |controller, id, by| Box::pin(controller.end(id, by))).await
}

/// Reports a job's progress and renews the job's lease, the longest silence before a job counts as dead.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/progress", operation_id = "report_progress", tag = "jobs", params(JobPath),
    request_body = ReportProgress,
    responses(
        (status = OK, body = ProgressView),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The job has ended, is held or is suspended"),
        (status = UNPROCESSABLE_ENTITY, description = "The report contradicts the previous one")
    )
)]
pub(in crate::http) async fn progress(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<JobId>,
    Payload(body): Payload<ReportProgress>,
) -> Answer<ProgressView> {
    let report = ProgressReport::try_from(body)?;
    change(&shared, id, by, move |controller, id, _| Box::pin(controller.progress(id, report))).await
}

/// Renews a job's lease without progress: for a process that knows that the job runs, although the job does not report,
/// such as `wattune run`.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/lease", operation_id = "renew_lease", tag = "jobs", params(JobPath),
    request_body = RenewLease,
    responses(
        (status = OK, body = ProgressView),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The job has ended")
    )
)]
pub(in crate::http) async fn renew_lease(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<JobId>,
    Payload(RenewLease {}): Payload<RenewLease>,
) -> Answer<ProgressView> {
    change(&shared, id, by, |controller, id, _| Box::pin(controller.renew_lease(id))).await
}

/// Says that a held or suspended job begins now: the job takes its GPUs, and controls them unless another job does.
/// Changes nothing if the job is on its GPUs already.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/begin", operation_id = "begin_job", tag = "jobs", params(JobPath),
    request_body = BeginJob,
    responses(
        (status = OK, body = ProgressView),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The job has ended")
    )
)]
pub(in crate::http) async fn begin(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<JobId>,
    Payload(BeginJob { reason }): Payload<BeginJob>,
) -> Answer<ProgressView> {
    change(&shared, id, by, move |controller, id, by| Box::pin(controller.begin(id, by, reason))).await
}

/// Says that a job has saved a checkpoint and exited, to be started again later: its GPUs get their original limits
/// back at once and are free for other jobs. Changes nothing if the job is suspended already.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/suspended", operation_id = "job_suspended", tag = "jobs", params(JobPath),
    request_body = JobSuspended,
    responses(
        (status = OK, body = ProgressView),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The job has ended, has not begun, or does not offer to be suspended")
    )
)]
pub(in crate::http) async fn suspended(
    State(shared): State<Shared>,
    By(by): By,
    Named(id): Named<JobId>,
    Payload(JobSuspended {}): Payload<JobSuspended>,
) -> Answer<ProgressView> {
    change(&shared, id, by, |controller, id, by| Box::pin(controller.suspended(id, by))).await
}

/// Returns a job's planned power limits over time with their reasons.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/plan", operation_id = "get_job_plan", tag = "jobs", params(JobPath),
    responses((status = OK, body = PlanView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn plan(State(shared): State<Shared>, Named(id): Named<JobId>) -> Answer<PlanView> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.plan_of(&id) })).await??))
}

/// Returns a job's profile: throughput and power draw at each power limit.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/profile", operation_id = "get_job_profile", tag = "jobs", params(JobPath),
    responses((status = OK, body = ProfileView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn profile(State(shared): State<Shared>, Named(id): Named<JobId>) -> Answer<ProfileView> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.profile_of(&id).await })).await??))
}

/// Returns a job's energy and emissions so far, compared with running at the maximum usable limit.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/emissions", operation_id = "get_job_emissions", tag = "jobs", params(JobPath),
    responses((status = OK, body = AccountView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn emissions(State(shared): State<Shared>, Named(id): Named<JobId>) -> Answer<AccountView> {
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.account_of(&id).await })).await??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::extract::{assert_refused, read};

    #[test]
    fn invalid_reports_are_refused() {
        let report = |text: &str| Ok::<_, Problem>(ProgressReport::try_from(read::<ReportProgress>(text.as_bytes())?)?);
        let table = [
            (r#"{"samples":-1}"#, 422, Some("samples"), "cannot be negative"),
            (r#"{"samples":1,"at_s":-0.5}"#, 422, Some("at_s"), "cannot be negative"),
            (r#"{"samples":"1"}"#, 422, Some("samples"), "cumulative count"),
            (r#"{"at_s":1}"#, 422, Some("samples"), "missing field"),
            (r#"{"samples":Infinity}"#, 400, None, "no infinity"),
            (
                r#"{"samples":1,"loss":2}"#,
                422,
                Some("loss"),
                "expected one of `samples`, `at_s`, `total_samples`, `source`",
            ),
            (r#"{"samples":1,"total_samples":"all"}"#, 422, Some("total_samples"), "of the whole run"),
            (r#"{"samples":1,"source":"torch"}"#, 422, Some("source"), "`optimizer_hook`"),
        ];
        assert_refused(report, &table);
        let (samples, at) = (Samples::new(123_456.0), Some(Seconds::new(8123.25)));
        let expected = ProgressReport { samples, at, total: None, source: ProgressSource::Http };
        assert_eq!(report(r#"{"samples":123456,"at_s":8123.25}"#), Ok(expected));
        let full = ProgressReport { total: Some(Samples::new(5e5)), source: ProgressSource::Lightning, ..expected };
        assert_eq!(
            report(r#"{"samples":123456,"at_s":8123.25,"total_samples":500000,"source":"lightning"}"#),
            Ok(full)
        );
    }
}
