//! Training runs, from registration to the final account.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::controller::view::{AccountView, JobView, PlanView, ProfileView, ProgressView};
use crate::controller::{NewJob, ProgressReport};
use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::{Params, Payload, Segment};
use crate::http::openapi::Problems;
use crate::http::wire::{JobState, JobsQuery, RegisterJob, ReportProgress};
use wattune_core::domain::JobId;

const LATEST_ENDED: u32 = 50;

/// Registers a training run.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "register_job", tag = "jobs", request_body = RegisterJob,
    responses(
        (status = CREATED, body = JobView, headers(("location" = String, description = "The job's address"))),
        (
            status = NOT_FOUND, body = Problem, content_type = "application/problem+json",
            description = "There is no such GPU"
        ),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "Another job controls one of the GPUs"
        ),
        (
            status = TOO_MANY_REQUESTS, body = Problem, content_type = "application/problem+json",
            description = "The configured maximum of open jobs is reached, in total or on one of the GPUs"
        ),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn register(
    State(shared): State<Shared>,
    Payload(body): Payload<RegisterJob>,
) -> Result<impl IntoResponse, Problem> {
    let new = NewJob::try_from(body)?;
    let job = shared.ask(move |controller| Box::pin(async move { controller.register(new).await })).await??;
    let location = format!("/v1/jobs/{}", job.job_id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(job)))
}

/// Lists the jobs that have not ended, or the latest that have.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(JobsQuery),
    responses((status = OK, body = Vec<JobView>), (status = UNPROCESSABLE_ENTITY, response = Problem), Problems)
)]
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Params(query): Params<JobsQuery>,
) -> Result<Json<Vec<JobView>>, Problem> {
    let limit = query.limit()?;
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
    get, path = "/v1/jobs/{id}", operation_id = "get_job",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    responses((status = OK, body = JobView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn show(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<JobView>, Problem> {
    let id = job_id(id)?;
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.job(&id).await })).await??))
}

/// Ends a job: its GPUs get their original limits back, its account is final.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", operation_id = "end_job",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = OK, body = AccountView, description = "The final account"),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The job has ended already"
        ),
        Problems
    )
)]
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<AccountView>, Problem> {
    let id = job_id(id)?;
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.end(&id).await })).await??))
}

/// Reports a job's progress and renews its lease.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/progress", operation_id = "report_progress",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    request_body = ReportProgress,
    responses(
        (status = OK, body = ProgressView),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The job has ended"
        ),
        (
            status = UNPROCESSABLE_ENTITY, body = Problem, content_type = "application/problem+json",
            description = "The report contradicts the previous one"
        ),
        Problems
    )
)]
pub(in crate::http) async fn progress(
    State(shared): State<Shared>,
    Segment(id): Segment,
    Payload(body): Payload<ReportProgress>,
) -> Result<Json<ProgressView>, Problem> {
    let id = job_id(id)?;
    let report = ProgressReport::try_from(body)?;
    let answer = shared.ask(move |controller| Box::pin(async move { controller.progress(&id, report).await }));
    Ok(Json(answer.await??))
}

/// Returns the planned limits of a job with the reasons.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/plan", operation_id = "get_job_plan",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    responses((status = OK, body = PlanView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn plan(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<PlanView>, Problem> {
    let id = job_id(id)?;
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.plan_of(&id) })).await??))
}

/// Returns a job's profile: throughput and draw at each limit.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/profile", operation_id = "get_job_profile",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    responses((status = OK, body = ProfileView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn profile(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<ProfileView>, Problem> {
    let id = job_id(id)?;
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.profile_of(&id).await })).await??))
}

/// Returns a job's energy and emissions so far, compared with running at the maximum usable limit.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/emissions", operation_id = "get_job_emissions",
    tag = "jobs", params(("id" = String, Path, description = "The job's id")),
    responses((status = OK, body = AccountView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn emissions(
    State(shared): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<AccountView>, Problem> {
    let id = job_id(id)?;
    Ok(Json(shared.ask(move |controller| Box::pin(async move { controller.account_of(&id).await })).await??))
}

/// Parses a job id; an invalid id is an unknown job.
fn job_id(text: String) -> Result<JobId, Problem> {
    JobId::new(text).map_err(|error| Problem::new(StatusCode::NOT_FOUND, error.to_string()))
}
