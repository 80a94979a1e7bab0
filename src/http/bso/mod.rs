//! Protocol of Zeus's batch size server, for Zeus's clients: `POST` and `DELETE /jobs`, `GET /jobs/batch_size`,
//! `POST /report`, `PATCH /trials`.
//!
//! The routes use the same service and the same database as `/v1/recurring`. Models, defaults, statuses and messages
//! are those of Zeus's server, so that its clients work unchanged; `explanation/zeus-protocols.md` in the book lists
//! the differences. The description of the API leaves these routes out, because their errors are not problem details.

mod answer;
mod fields;
mod json;
mod models;
mod python;
mod request;

use axum::Json;
use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, patch, post};
use serde::Serialize;

use self::answer::Refusal;
use self::models::{JobSpec, TrainingResult, TrialId, validation};
use self::request::{Body, JobParam};
use super::access::By;
use super::connection::Connection;
use super::error::{CHALLENGE, Problem};
use super::shared::Shared;
use crate::controller::Caller;
use crate::recurring::{ZeusError, ZeusRegistration};
use wattune_core::bandit::{ZeusRefused, ZeusVerdict};

/// The paths of the protocol, each with its methods.
const PATHS: [(&str, &str); 4] =
    [("/jobs", "POST, DELETE"), ("/jobs/batch_size", "GET"), ("/report", "POST"), ("/trials", "PATCH")];

/// Returns the routes of the protocol.
pub(super) fn router() -> Router<Shared> {
    let [jobs, batch_size, report_path, trials] = PATHS;
    let refuse = |allowed: &'static str| move || async move { Refusal::wrong_method(allowed) };
    let mut router = Router::new()
        .route(jobs.0, post(register).delete(delete).fallback(refuse(jobs.1)))
        .route(batch_size.0, get(next).fallback(refuse(batch_size.1)))
        .route(report_path.0, post(report).fallback(refuse(report_path.1)))
        .route(trials.0, patch(end).fallback(refuse(trials.1)));
    for (path, _) in PATHS {
        router = router.route(&format!("{path}/"), any(without_slash));
    }
    router
}

/// Returns all routes as method and path; the method is `*` where the route accepts any.
#[cfg(test)]
pub(super) fn paths() -> Vec<(String, String)> {
    let of = |(path, methods): (&str, &str)| {
        let with_methods = methods.split(", ").map(|method| (method.to_owned(), path.to_owned()));
        with_methods.chain([("*".to_owned(), format!("{path}/"))]).collect::<Vec<_>>()
    };
    PATHS.into_iter().flat_map(of).collect()
}

/// Returns true if the path is one of the protocol, or below one.
pub(super) fn owns(path: &str) -> bool {
    let path = path.trim_start_matches('/');
    ["jobs", "report", "trials"]
        .iter()
        .any(|name| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Renders the refusal of a request that has no right to its route.
pub(super) fn refuse(problem: Problem) -> Response {
    let challenge = (problem.status == StatusCode::UNAUTHORIZED.as_u16()).then_some(CHALLENGE);
    let mut response = Refusal::from(problem).into_response();
    if let Some(challenge) = challenge {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

/// Answers a request for an unknown path that [`owns`] accepts.
pub(super) fn unknown_path() -> Response {
    Refusal::not_found().into_response()
}

/// Redirects to the path without the slash at its end.
async fn without_slash(uri: Uri, headers: HeaderMap, connection: Option<Extension<Connection>>) -> Response {
    let path = uri.path().trim_end_matches('/');
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let scheme = if connection.is_some_and(|connection| connection.is_encrypted()) { "https" } else { "http" };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(|host| format!("{scheme}://{host}"));
    let location = format!("{}{path}{query}", host.unwrap_or_default());
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response()
}

async fn register(State(shared): State<Shared>, By(by): By, Body(spec): Body<JobSpec>) -> Result<Response, Refusal> {
    let other = || {
        let why = "JobSpec doesn't match with existing jobSpec. Use a new job_id for different configuration";
        Refusal::message(StatusCode::CONFLICT, why)
    };
    // What cannot be stored differs from every job, which is found before the mistake.
    if let Some(id) = &spec.job_id
        && (!spec.is_finite() || spec.registration(id).is_err())
        && within(&shared, shared.recurring.is_known_to_zeus(id)).await??
    {
        return Err(other());
    }
    if !spec.is_finite() && spec.registration("").is_ok() {
        // Zeus's server cannot write such numbers into its answer, either.
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response());
    }
    loop {
        let id = spec.job_id.clone().unwrap_or_else(|| {
            let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
            format!("{}-{:08x}", spec.job_id_prefix, random >> 32)
        });
        let internal = |message| Refusal::message(StatusCode::INTERNAL_SERVER_ERROR, message);
        let registration = spec.registration(&id).map_err(internal)?;
        let registered = within(&shared, shared.recurring.register_for_zeus(registration, by.owners())).await??;
        let status = match registered {
            ZeusRegistration::New => StatusCode::CREATED,
            // An identifier that was just drawn must be unused.
            ZeusRegistration::Same | ZeusRegistration::Other if spec.job_id.is_none() => continue,
            ZeusRegistration::Same => StatusCode::OK,
            ZeusRegistration::Other => return Err(other()),
        };
        return Ok((status, Json(spec.with_id(id))).into_response());
    }
}

/// Checks that the caller may change a job: as an owner, or at least as a user who has registered it.
async fn check_users(shared: &Shared, id: &str, by: &Caller, as_owner: bool) -> Result<(), Refusal> {
    Ok(within(shared, shared.recurring.check_users_for_zeus(id, &by.actor(), as_owner)).await??)
}

async fn delete(State(shared): State<Shared>, By(by): By, JobParam(id): JobParam) -> Result<Json<()>, Refusal> {
    check_users(&shared, &id, &by, true).await?;
    match within(&shared, shared.recurring.delete_for_zeus(&id)).await?? {
        true => Ok(Json(())),
        false => Err(Refusal::message(StatusCode::NOT_FOUND, "No job was deleted.")),
    }
}

async fn next(
    method: Method,
    State(shared): State<Shared>,
    By(by): By,
    JobParam(id): JobParam,
) -> Result<Response, Refusal> {
    if method == Method::HEAD {
        // It would begin a trial of which the client does not learn.
        return Ok(Refusal::wrong_method("GET"));
    }
    let text = |refused| match refused {
        ZeusRefused::Impossible(_) => {
            let limit = "ensure this value is greater than 0 (type=value_error.number.not_gt; limit_value=0)";
            (StatusCode::INTERNAL_SERVER_ERROR, validation("CreateExplorationTrial", &["batch_size"], limit))
        }
        _ => {
            let why = "No converged batch sizes has observed. Reconfigure batch_sizes and re-launch the job.";
            (StatusCode::INTERNAL_SERVER_ERROR, why.to_owned())
        }
    };
    let begun = within(&shared, shared.recurring.begin_for_zeus(&id, by.actor())).await?;
    let (number, batch_size) = begun.map_err(|error| match error {
        ZeusError::UnknownJob => {
            Refusal::message(StatusCode::BAD_REQUEST, format!("Unknown job({id}). Please register the job first"))
        }
        error => Refusal::of(error, text),
    })?;
    let (batch_size, trial_number) = (i128::from(batch_size), i128::from(number));
    Ok(Json(TrialId { job_id: id, batch_size, trial_number }).into_response())
}

/// The answer to a report.
#[derive(Serialize)]
struct ReportAnswer {
    stop_train: bool,
    converged: bool,
    message: String,
}

async fn report(
    State(shared): State<Shared>,
    By(by): By,
    Body(result): Body<TrainingResult>,
) -> Result<Json<ReportAnswer>, Refusal> {
    let id = result.trial.job_id.as_str();
    let bad = |message: String| Refusal::message(StatusCode::BAD_REQUEST, message);
    let unknown_trial = || bad(format!("Unknown trial {result}"));
    let unknown_job = || bad(format!("Unknown job {id}"));
    let (number, batch_size) = match result.trial.numbers() {
        Ok(Some(numbers)) => numbers,
        // Zeus's server looks for the job first.
        other => {
            check_users(&shared, id, &by, false).await?;
            let is_known = within(&shared, shared.recurring.is_known_to_zeus(id)).await??;
            return Err(match other {
                _ if !is_known => unknown_job(),
                Err(message) => Refusal::message(StatusCode::INTERNAL_SERVER_ERROR, message),
                Ok(_) => unknown_trial(),
            });
        }
    };
    let judged = shared.recurring.report_for_zeus(id, number, batch_size, result.report(), by.actor());
    let verdict = within(&shared, judged).await?.map_err(|error| match error {
        ZeusError::UnknownJob => unknown_job(),
        ZeusError::Refused(ZeusRefused::NoSuchTrial) => unknown_trial(),
        error => Refusal::of(error, |refused| match refused {
            ZeusRefused::NotAQuantity { time, energy } => {
                let wrong = [("time", time), ("energy", energy)];
                let fields: Vec<&str> = wrong.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
                let limit =
                    "ensure this value is greater than or equal to 0 (type=value_error.number.not_ge; limit_value=0)";
                (StatusCode::INTERNAL_SERVER_ERROR, validation("UpdateTrial", &fields, limit))
            }
            _ => {
                let why = format!("Trial({number}) is already reported but converged is not set.");
                (StatusCode::BAD_REQUEST, why)
            }
        }),
    })?;
    let (stop_train, converged, message) = match verdict {
        ZeusVerdict::Continue => (false, false, "Stop condition not met, keep training".to_owned()),
        ZeusVerdict::Reached => (true, true, "Train succeeded".to_owned()),
        ZeusVerdict::TooExpensive { cost, beta, least } => {
            let [cost, beta, least] = [cost, beta, least].map(python::float);
            let message = format!(
                "Batch Size({batch_size}) exceeded the cost upper bound: current cost({cost}) >\n                    \
                 beta_knob({beta})*min_cost({least})"
            );
            (true, false, message)
        }
        ZeusVerdict::NotReached { max_epochs } => {
            (true, false, format!("Train failed to converge within max_epoch({max_epochs})"))
        }
        ZeusVerdict::Ended { reached } => {
            (true, reached, format!("Result for this trial({number}) is already reported."))
        }
    };
    Ok(Json(ReportAnswer { stop_train, converged, message }))
}

async fn end(State(shared): State<Shared>, By(by): By, Body(trial): Body<TrialId>) -> Result<Json<()>, Refusal> {
    let unknown = || Refusal::message(StatusCode::NOT_FOUND, format!("Could not find the trial: {trial}"));
    let (number, batch_size) = match trial.numbers() {
        Ok(Some(numbers)) => numbers,
        other => {
            check_users(&shared, &trial.job_id, &by, false).await?;
            return Err(match other {
                Err(message) => Refusal::message(StatusCode::INTERNAL_SERVER_ERROR, message),
                Ok(_) => unknown(),
            });
        }
    };
    let ended = shared.recurring.end_for_zeus(&trial.job_id, number, batch_size, by.actor());
    within(&shared, ended).await?.map_err(|error| match error {
        ZeusError::UnknownJob | ZeusError::Refused(_) => unknown(),
        error => Refusal::of(error, |refused| (StatusCode::INTERNAL_SERVER_ERROR, refused.to_string())),
    })?;
    Ok(Json(()))
}

/// Awaits an answer of the service, for at most the time limit.
async fn within<T>(shared: &Shared, answer: impl Future<Output = T>) -> Result<T, Refusal> {
    let answer = tokio::time::timeout(shared.timeout, answer).await;
    answer.map_err(|_| super::error::Problem::timed_out(shared.timeout).into())
}

impl From<ZeusError> for Refusal {
    fn from(error: ZeusError) -> Self {
        Self::of(error, |refused| (StatusCode::INTERNAL_SERVER_ERROR, refused.to_string()))
    }
}
