//! Recurring jobs and their trials.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::http::Shared;
use crate::http::error::Problem;
use crate::http::extract::{Params, Payload, Segment};
use crate::http::openapi::Problems;
pub(in crate::http) use crate::http::wire::recurring::MAX_DOCUMENT_BYTES;
use crate::http::wire::recurring::{BeginTrial, EndTrial, Metered, RecurringQuery, ReportTrial, TrialsQuery};
use crate::recurring::{
    RecurringDocument, RecurringEntry, RecurringError, RecurringSpec, RecurringView, TrialMessage, TrialView,
    VerdictView,
};
use wattune_core::bandit::Report;
use wattune_core::domain::{InvalidJob, JobName};
use wattune_core::units::Seconds;

/// Lists recurring jobs by name.
#[utoipa::path(
    get, path = "/v1/recurring", operation_id = "list_recurring", tag = "recurring jobs", params(RecurringQuery),
    responses((status = OK, body = Vec<RecurringEntry>), (status = UNPROCESSABLE_ENTITY, response = Problem), Problems)
)]
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Params(query): Params<RecurringQuery>,
) -> Result<Json<Vec<RecurringEntry>>, Problem> {
    let (after, limit) = query.checked()?;
    Ok(Json(shared.within(shared.recurring.list(&after, limit)).await?))
}

/// Creates a recurring job. Repeating the request with the same specification changes nothing.
#[utoipa::path(
    put, path = "/v1/recurring/{name}", operation_id = "put_recurring", tag = "recurring jobs",
    params(("name" = String, Path, description = "The name, which its training runs share")),
    request_body = RecurringSpec,
    responses(
        (status = CREATED, body = RecurringView),
        (status = OK, body = RecurringView, description = "The job existed already"),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "A job of that name has another specification; the problem names the field"
        ),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn put(
    State(shared): State<Shared>,
    Segment(name): Segment,
    Payload(spec): Payload<RecurringSpec>,
) -> Result<impl IntoResponse, Problem> {
    let name = new_name(name)?;
    let (view, is_new) = shared.within(shared.recurring.put(name, spec)).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(view)))
}

/// Returns a recurring job with its cost estimate for each batch size.
#[utoipa::path(
    get, path = "/v1/recurring/{name}", operation_id = "get_recurring", tag = "recurring jobs",
    params(("name" = String, Path, description = "The job's name")),
    responses((status = OK, body = RecurringView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn show(
    State(shared): State<Shared>,
    Segment(name): Segment,
) -> Result<Json<RecurringView>, Problem> {
    let name = known_name(name)?;
    Ok(Json(shared.within(shared.recurring.show(&name)).await?))
}

/// Deletes a recurring job with all its trials. If it is created again, trial numbers continue.
#[utoipa::path(
    delete, path = "/v1/recurring/{name}", operation_id = "delete_recurring", tag = "recurring jobs",
    params(("name" = String, Path, description = "The job's name")),
    responses(
        (status = OK, body = RecurringView, description = "The deleted job"),
        (status = NOT_FOUND, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn delete(
    State(shared): State<Shared>,
    Segment(name): Segment,
) -> Result<Json<RecurringView>, Problem> {
    let name = known_name(name)?;
    Ok(Json(shared.within(shared.recurring.delete(&name)).await?))
}

/// Begins a trial: the next run, with the batch size that it must use.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials", operation_id = "begin_trial", tag = "recurring jobs",
    params(("name" = String, Path, description = "The recurring job's name")),
    request_body = BeginTrial,
    responses(
        (status = CREATED, body = TrialView, headers(("location" = String, description = "The trial's address"))),
        (status = OK, body = TrialView, description = "The trial that began with this key"),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "No batch size has reached the target, or too many trials are running"
        ),
        (
            status = GONE, body = Problem, content_type = "application/problem+json",
            description = "The trial that began with this key lost its lease or was withdrawn"
        ),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn begin(
    State(shared): State<Shared>,
    Segment(name): Segment,
    Payload(body): Payload<BeginTrial>,
) -> Result<impl IntoResponse, Problem> {
    let key = body.checked()?;
    let job = known_name(name)?;
    let (trial, is_new) = shared.within(shared.recurring.begin(&job, key)).await?;
    let name: String = job.as_str().bytes().map(escaped).collect();
    let location = format!("/v1/recurring/{name}/trials/{}", trial.number);
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], Json(trial)))
}

/// Lists trials by number, the oldest or the newest first.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/trials", operation_id = "list_trials", tag = "recurring jobs",
    params(("name" = String, Path, description = "The recurring job's name"), TrialsQuery),
    responses(
        (status = OK, body = Vec<TrialView>),
        (status = NOT_FOUND, response = Problem),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn trials(
    State(shared): State<Shared>,
    Segment(name): Segment,
    Params(query): Params<TrialsQuery>,
) -> Result<Json<Vec<TrialView>>, Problem> {
    let page = query.checked()?;
    let name = known_name(name)?;
    Ok(Json(shared.within(shared.recurring.trials(&name, page)).await?))
}

/// Returns one trial.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/trials/{number}", operation_id = "get_trial", tag = "recurring jobs",
    params(
        ("name" = String, Path, description = "The recurring job's name"),
        ("number" = u32, Path, description = "The trial's number")
    ),
    responses((status = OK, body = TrialView), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn trial(
    State(shared): State<Shared>,
    Segment((name, number)): Segment<(String, u32)>,
) -> Result<Json<TrialView>, Problem> {
    let name = known_name(name)?;
    Ok(Json(shared.within(shared.recurring.trial(&name, number)).await?))
}

/// Reports a trial's progress and renews its lease; the answer says if the run is to stop. For an ended trial the
/// answer is repeated and nothing changes.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials/{number}/progress", operation_id = "report_trial",
    tag = "recurring jobs",
    params(
        ("name" = String, Path, description = "The recurring job's name"),
        ("number" = u32, Path, description = "The trial's number")
    ),
    request_body = ReportTrial,
    responses(
        (status = OK, body = VerdictView),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The training run reports for another trial, or the trial has ended and this contradicts its last report"
        ),
        (
            status = GONE, body = Problem, content_type = "application/problem+json",
            description = "The trial is over: its lease expired, or it was withdrawn"
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
    Segment((name, number)): Segment<(String, u32)>,
    Payload(body): Payload<ReportTrial>,
) -> Result<Json<VerdictView>, Problem> {
    let name = known_name(name)?;
    let told = metered(&shared, &name, number, body.checked()?).await?;
    Ok(Json(shared.within(shared.recurring.report(&name, number, told)).await?))
}

/// Ends a trial, after a last report if one is given. An ended trial does not change.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials/{number}/end", operation_id = "end_trial", tag = "recurring jobs",
    params(
        ("name" = String, Path, description = "The recurring job's name"),
        ("number" = u32, Path, description = "The trial's number")
    ),
    request_body = EndTrial,
    responses(
        (status = OK, body = TrialView),
        (status = NOT_FOUND, response = Problem),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "The training run reports for another trial, or the trial has ended and this contradicts its last report"
        ),
        (
            status = GONE, body = Problem, content_type = "application/problem+json",
            description = "The trial is over: its lease expired, or it was withdrawn"
        ),
        (
            status = UNPROCESSABLE_ENTITY, body = Problem, content_type = "application/problem+json",
            description = "The last report contradicts the previous one"
        ),
        Problems
    )
)]
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    Segment((name, number)): Segment<(String, u32)>,
    Payload(body): Payload<EndTrial>,
) -> Result<Json<TrialView>, Problem> {
    let name = known_name(name)?;
    let last = match body.report {
        Some(report) => Some(metered(&shared, &name, number, report.checked()?).await?),
        None => None,
    };
    let ended = shared.recurring.end(&name, number, last, body.outcome.into());
    Ok(Json(shared.within(ended).await?))
}

/// Exports a recurring job as one document.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/export", operation_id = "export_recurring", tag = "recurring jobs",
    params(("name" = String, Path, description = "The job's name")),
    responses((status = OK, body = RecurringDocument), (status = NOT_FOUND, response = Problem), Problems)
)]
pub(in crate::http) async fn export(
    State(shared): State<Shared>,
    Segment(name): Segment,
) -> Result<Json<RecurringDocument>, Problem> {
    let name = known_name(name)?;
    Ok(Json(shared.within(shared.recurring.export(&name)).await?))
}

/// Imports an exported job under the name in the address. Nothing is overwritten.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/import", operation_id = "import_recurring", tag = "recurring jobs",
    params(("name" = String, Path, description = "The name of the new job")),
    request_body = RecurringDocument,
    responses(
        (status = CREATED, body = RecurringView),
        (
            status = CONFLICT, body = Problem, content_type = "application/problem+json",
            description = "A job of that name exists"
        ),
        (status = UNPROCESSABLE_ENTITY, response = Problem),
        Problems
    )
)]
pub(in crate::http) async fn import(
    State(shared): State<Shared>,
    Segment(name): Segment,
    Payload(document): Payload<RecurringDocument>,
) -> Result<impl IntoResponse, Problem> {
    let name = new_name(name)?;
    Ok((StatusCode::CREATED, Json(shared.within(shared.recurring.import(name, document)).await?)))
}

/// Completes a report with its energy: the client's, or that of a training run's ledger. The controller is asked only
/// for the latter, before any transaction begins.
async fn metered(shared: &Shared, name: &JobName, number: u32, metered: Metered) -> Result<TrialMessage, Problem> {
    let (id, time, rest) = match metered {
        Metered::Client(report) => return Ok(TrialMessage { report, job: None }),
        Metered::Job { job, time, rest } => (job, time, rest),
    };
    let batch_size = shared.within(shared.recurring.batch_size(name, number)).await?;
    let asked = id.clone();
    let (view, energy) =
        shared.ask(move |controller| Box::pin(async move { controller.metered(&asked).await })).await??;
    if view.name != name.as_str() || view.batch_size != Some(batch_size) {
        let has = view.batch_size.map_or("none".to_owned(), |b| b.to_string());
        let why = format!(
            "names job {id} ({}, batch size {has}); trial {number} belongs to {name} with batch size {batch_size}: register a \
             job like that",
            view.name
        );
        return Err(InvalidJob { field: "job_id", why }.into());
    }
    let time = time.unwrap_or(Seconds::new(view.active_s + view.stalled_s));
    let report = Report { energy, time, ..rest };
    Ok(TrialMessage { report, job: Some(id) })
}

/// Parses a name; an invalid name is an unknown job.
fn known_name(text: String) -> Result<JobName, Problem> {
    JobName::new(text.clone()).map_err(|_| RecurringError::NotFound(text).into())
}

fn new_name(text: String) -> Result<JobName, Problem> {
    JobName::new(text)
        .and_then(JobName::require_visible)
        .map_err(|error| InvalidJob { field: "name", why: error.to_string() }.into())
}

fn escaped(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    }
}
