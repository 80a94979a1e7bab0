//! Routes of the trials of a recurring job: its runs, each with the batch size that wattune chose.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{RecurringPath, check_users};
use crate::controller::view::JobView;
use crate::controller::{Caller, ControlError};
use crate::http::access::By;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{
    FromPath, Named, Params, Payload, Wire, default_number, invalid, optional_object, optional_quantity,
    optional_whole_number, page_length, whole_number,
};
use crate::http::shared::Shared;
use crate::recurring::{LONGEST_KEY, TrialMessage, TrialView, VerdictView};
use crate::store::Page;
use wattune_core::bandit::{EarlierJob, Ending, MeteringJob, Report};
use wattune_core::domain::{InvalidJob, JobId, JobName};
use wattune_core::units::{Joules, Seconds};

/// The parameters in the URL path of a trial.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(in crate::http) struct TrialPath {
    /// The recurring job's name.
    name: String,
    /// The trial's number.
    number: u32,
}

impl FromPath for (JobName, u32) {
    type Parameters = TrialPath;

    fn parse(TrialPath { name, number }: TrialPath) -> Result<Self, Problem> {
        Ok((JobName::parse(RecurringPath { name })?, number))
    }
}

/// A request to begin a trial.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"key": "2026-11-21-nightly"}))]
pub(in crate::http) struct BeginTrial {
    /// A key that the client chooses, 1 to 200 characters: requests with the same key begin only one trial.
    key: Option<String>,
}

impl Wire for BeginTrial {
    const HINTS: &'static [(&'static str, &'static str)] =
        &[("key", "give a text of 1 to 200 characters of your own, or leave it out")];
}

/// The progress of a trial, counted from the trial's beginning.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"epochs": 3, "energy_j": 181_000, "time_s": 912.5, "metric": 0.41}))]
pub(in crate::http) struct ReportTrial {
    /// The number of completed epochs.
    #[schema(minimum = 0)]
    epochs: u32,
    /// The energy that all GPUs of the trial have used. Required without `job_id`, not allowed with it.
    #[schema(minimum = 0)]
    energy_j: Option<f64>,
    /// The training time of the trial. Required without `job_id`, and with a training run that has no progress;
    /// otherwise, by default, the recorded time of that training run.
    #[schema(minimum = 0)]
    time_s: Option<f64>,
    /// The id of the training run (`POST /v1/jobs`, same name and batch size) whose recorded energy and time count for
    /// the trial. If it is not that of the last report, the energy and time of both count.
    job_id: Option<String>,
    /// The job's metric after the last completed epoch; null if it was not measured or is not a number.
    metric: Option<f64>,
}

/// Expands to the fields of a report, each with a hint on valid values. The prefix is empty for a report, and `report.`
/// for the last report in a request to end a trial.
macro_rules! report_fields {
    ($prefix:literal) => {
        [
            (concat!($prefix, "epochs"), "give the whole number of epochs done so far"),
            (concat!($prefix, "energy_j"), "give the joules of all GPUs since the trial began, or job_id"),
            (concat!($prefix, "time_s"), "give the seconds since the trial began"),
            (concat!($prefix, "job_id"), "give the job_id from POST /v1/jobs, or energy_j and time_s"),
            (concat!($prefix, "metric"), "give a number, or null if it was not measured or is not a number"),
        ]
    };
}

impl Wire for ReportTrial {
    const HINTS: &'static [(&'static str, &'static str)] = &report_fields!("");
}

/// A trial's report, with the source of its energy.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) enum Metered {
    /// The client measured energy and time.
    Client(Report),
    /// A training run's record has the energy, and also the time if the client gives none.
    Job {
        /// The id of the training run.
        job: JobId,
        /// The training time, if the client gives it.
        time: Option<Seconds>,
        /// Epochs and metric of the report, without energy and time.
        rest: Report,
    },
}

impl ReportTrial {
    /// Checks and converts the report, which must have energy from exactly one source: the client or a training run.
    fn checked(self) -> Result<Metered, InvalidJob> {
        let refuse = |field, why: &str| Err(invalid(field, why));
        let energy = optional_quantity("energy_j", self.energy_j, Joules::try_new)?;
        let time = optional_quantity("time_s", self.time_s, Seconds::try_new)?;
        if energy.is_some_and(|e| e < Joules::ZERO) {
            return refuse("energy_j", "is negative; it counts from the trial's beginning");
        }
        if time.is_some_and(|t| t < Seconds::ZERO) {
            return refuse("time_s", "is negative; it counts from the trial's beginning");
        }
        let rest = Report { epochs: self.epochs, metric: self.metric, ..Report::default() };
        match (energy, time, self.job_id) {
            (Some(energy), Some(time), None) => Ok(Metered::Client(Report { energy, time, ..rest })),
            (None, time, Some(job)) => {
                let job = JobId::new(job).map_err(|e| invalid("job_id", e.to_string()))?;
                Ok(Metered::Job { job, time, rest })
            }
            (Some(_), _, Some(_)) => refuse("energy_j", "is given together with job_id; give one of them"),
            (None, _, None) => refuse("energy_j", "is missing; give it, or the job_id of the training run"),
            (Some(_), None, None) => refuse("time_s", "is missing; give the seconds since the trial began"),
        }
    }
}

/// A request to end a trial.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"outcome": "withdrawn"}))]
pub(in crate::http) struct EndTrial {
    /// The outcome of the trial, unless the last report implies another one, such as that the target was reached.
    #[serde(default)]
    #[schema(default = "withdrawn")]
    outcome: TrialEnding,
    /// A last report before the end.
    #[serde(default, deserialize_with = "optional_object")]
    report: Option<ReportTrial>,
}

/// The outcome of a trial that did not reach its target.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum TrialEnding {
    /// The trial was interrupted and does not count.
    #[default]
    Withdrawn,
    /// The target is out of reach with this batch size: the run diverged, or does not fit into memory.
    NotReached,
}

impl From<TrialEnding> for Ending {
    fn from(ending: TrialEnding) -> Self {
        match ending {
            TrialEnding::Withdrawn => Self::Withdrawn,
            TrialEnding::NotReached => Self::NotReached,
        }
    }
}

impl Wire for EndTrial {
    const HINTS: &'static [(&'static str, &'static str)] = &{
        let [epochs, energy, time, job, metric] = report_fields!("report.");
        let outcome = ("outcome", "give \"withdrawn\" or \"not_reached\"");
        let report = ("report", "give the fields of …/progress, or leave it out");
        [outcome, report, epochs, energy, time, job, metric]
    };
}

/// The order in which trials are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum TrialOrder {
    /// The oldest trial first.
    #[default]
    Asc,
    /// The newest trial first.
    Desc,
}

/// The selection of trials to list.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct TrialsQuery {
    /// The order of the trials by number.
    #[serde(default)]
    #[param(default = "asc")]
    order: TrialOrder,
    /// Only trials that follow the trial with this number in the chosen order.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(format = Int64, minimum = 0, maximum = 4_294_967_295_i64)]
    after: Option<u32>,
    /// The maximum number of trials, from 1 to 1000; 1000 if absent.
    #[serde(default = "default_number::<1000>", deserialize_with = "whole_number")]
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// Begins a trial: returns the number of the next run and the batch size that the run must use.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials", operation_id = "begin_trial", tag = "recurring jobs",
    params(RecurringPath), request_body = BeginTrial,
    responses(
        (status = CREATED, body = TrialView, headers(("location" = String, description = "The trial's address"))),
        (status = OK, body = TrialView, description = "The trial that began with this key"),
        (status = FORBIDDEN, description = "The recurring job belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "No batch size has reached the target, too many trials are running, or the key is that of another user's trial"),
        (status = GONE, description = "The trial that began with this key lost its lease or was withdrawn")
    )
)]
pub(in crate::http) async fn begin(
    State(shared): State<Shared>,
    By(by): By,
    Named(job): Named<JobName>,
    Payload(BeginTrial { key }): Payload<BeginTrial>,
) -> Result<impl IntoResponse, Problem> {
    check_users(&shared, &job, &by, false).await?;
    let length = key.as_ref().map(|key| key.chars().count());
    if let Some(length) = length.filter(|length| !(1..=LONGEST_KEY).contains(length)) {
        return Err(invalid("key", format!("has {length} characters; give from 1 to {LONGEST_KEY}")).into());
    }
    let (trial, is_new) = shared.within(shared.recurring.begin(&job, key, by.actor())).await?;
    let name: String = job.as_str().bytes().map(escaped).collect();
    let location = format!("/v1/recurring/{name}/trials/{}", trial.number);
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, [(header::LOCATION, location)], Json(trial)))
}

/// Lists trials by number, the oldest or the newest first.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/trials", operation_id = "list_trials", tag = "recurring jobs",
    params(RecurringPath, TrialsQuery),
    responses((status = OK, body = Vec<TrialView>), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Named(name): Named<JobName>,
    Params(query): Params<TrialsQuery>,
) -> Answer<Vec<TrialView>> {
    let TrialsQuery { order, after, limit } = query;
    let page = Page { newest_first: order == TrialOrder::Desc, after, limit: page_length(limit, 1000)? };
    shared.within(shared.recurring.trials(&name, page)).await.map(Json)
}

/// Returns one trial.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/trials/{number}", operation_id = "get_trial", tag = "recurring jobs",
    params(TrialPath),
    responses((status = OK, body = TrialView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn show(
    State(shared): State<Shared>,
    Named((name, number)): Named<(JobName, u32)>,
) -> Answer<TrialView> {
    shared.within(shared.recurring.trial(&name, number)).await.map(Json)
}

/// Reports a trial's progress and renews the trial's lease, the longest silence before a trial counts as lost. The
/// answer says if the run must stop. If the trial has ended, the answer says so again and nothing changes.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials/{number}/progress", operation_id = "report_trial",
    tag = "recurring jobs", params(TrialPath), request_body = ReportTrial,
    responses(
        (status = OK, body = VerdictView),
        (status = FORBIDDEN, description = "The trial, or the training run of `job_id`, belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The training run belongs to another trial, or the trial has ended and the report contradicts its last one"),
        (status = GONE, description = "The trial is over: its lease expired, or it was withdrawn"),
        (status = UNPROCESSABLE_ENTITY, description = "The report contradicts the previous one")
    )
)]
pub(in crate::http) async fn progress(
    State(shared): State<Shared>,
    By(by): By,
    Named((name, number)): Named<(JobName, u32)>,
    Payload(body): Payload<ReportTrial>,
) -> Answer<VerdictView> {
    shared.within(shared.recurring.check_trial(&name, number, &by.actor())).await?;
    let message = metered(&shared, &name, number, body.checked()?, &by).await?;
    shared.within(shared.recurring.report(&name, number, message)).await.map(Json)
}

/// Ends a trial, after a last report if one is given. A trial that has ended already does not change.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/trials/{number}/end", operation_id = "end_trial", tag = "recurring jobs",
    params(TrialPath), request_body = EndTrial,
    responses(
        (status = OK, body = TrialView),
        (status = FORBIDDEN, description = "The trial, or the training run of `job_id`, belongs to others"),
        (status = NOT_FOUND, response = Problem),
        (status = CONFLICT, description = "The training run belongs to another trial, or the trial has ended and the report contradicts its last one"),
        (status = GONE, description = "The trial is over: its lease expired, or it was withdrawn"),
        (status = UNPROCESSABLE_ENTITY, description = "The last report contradicts the previous one")
    )
)]
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    By(by): By,
    Named((name, number)): Named<(JobName, u32)>,
    Payload(body): Payload<EndTrial>,
) -> Answer<TrialView> {
    shared.within(shared.recurring.check_trial(&name, number, &by.actor())).await?;
    let last = match body.report {
        Some(report) => Some(metered(&shared, &name, number, report.checked()?, &by).await?),
        None => None,
    };
    shared.within(shared.recurring.end(&name, number, last, body.outcome.into())).await.map(Json)
}

/// Completes a report with energy and time: those that the client measured, or those recorded for a training run. The
/// controller is queried for the recorded ones, before any transaction of the database begins.
async fn metered(
    shared: &Shared,
    name: &JobName,
    number: u32,
    metered: Metered,
    by: &Caller,
) -> Result<TrialMessage, Problem> {
    let (id, time, rest) = match metered {
        Metered::Client(report) => return Ok(TrialMessage { report, job: None }),
        Metered::Job { job, time, rest } => (job, time, rest),
    };
    let (batch_size, last, time_before) = shared.within(shared.recurring.metering_of(name, number)).await?;
    let (asked, by, last) = (id.clone(), by.clone(), last.filter(|last| *last != id));
    // A trial with the energy of another user's training run would keep that run from reporting for its own trial.
    let ask = shared.ask(move |controller| {
        Box::pin(async move {
            controller.check_owner(&asked, &by).await?;
            let metered = controller.metered(&asked).await?;
            // The training run before this one may have used energy after its last report. If its account cannot be
            // read, what it reported counts.
            let mut before = None;
            if let Some(job) = last {
                let metered = controller.metered(&job).await.ok();
                before = metered.map(|(view, energy)| EarlierJob { job, energy, time: recorded_time(&view) });
            }
            Ok::<_, ControlError>((metered, before))
        })
    });
    let ((view, energy), before) = ask.await??;
    if view.name != name.as_str() || view.batch_size != Some(batch_size) {
        let has = view.batch_size.map_or("none".to_owned(), |b| b.to_string());
        let why = format!(
            "names job {id} ({}, batch size {has}); trial {number} belongs to {name} with batch size {batch_size}: register a \
             job like that",
            view.name
        );
        return Err(invalid("job_id", why).into());
    }
    let recorded = recorded_time(&view);
    // Without progress of the training run, its time is 0, and epochs would cost no time. A report without an epoch
    // only shows that the run lives, or ends it.
    if time.is_none() && rest.epochs > 0 && recorded <= Seconds::ZERO && time_before <= Seconds::ZERO {
        let why = format!(
            "is missing, and job {id} has no progress from which to take it; give the seconds since the trial began, \
             or report the job's samples (POST /v1/jobs/{id}/progress)"
        );
        return Err(invalid("time_s", why).into());
    }
    let report = Report { energy, time: time.unwrap_or(recorded), ..rest };
    Ok(TrialMessage { report, job: Some(MeteringJob { id, has_time: time.is_none(), before }) })
}

/// Returns the time in which a training run has reported progress.
fn recorded_time(view: &JobView) -> Seconds {
    Seconds::new(view.active_s + view.stalled_s)
}

fn escaped(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::extract::read;

    #[test]
    fn energy_is_given_once() {
        let report = |text: &str| -> Result<Metered, Problem> { Ok(read::<ReportTrial>(text.as_bytes())?.checked()?) };
        let parsed = report(r#"{"epochs":2,"energy_j":10,"time_s":4,"metric":null}"#).expect("valid");
        let whole = Report { epochs: 2, energy: Joules::new(10.0), time: Seconds::new(4.0), metric: None };
        assert_eq!(parsed, Metered::Client(whole));
        assert!(matches!(report(r#"{"epochs":2,"job_id":"a"}"#), Ok(Metered::Job { time: None, .. })));
        let table = [
            (r#"{"epochs":2}"#, "energy_j"),
            (r#"{"epochs":2,"energy_j":1}"#, "time_s"),
            (r#"{"epochs":2,"energy_j":1,"job_id":"a"}"#, "energy_j"),
            (r#"{"epochs":2,"job_id":"a b"}"#, "job_id"),
            (r#"{"epochs":2,"energy_j":-1,"time_s":1}"#, "energy_j"),
            (r#"{"epochs":2.5,"energy_j":1,"time_s":1}"#, "epochs"),
        ];
        for (text, field) in table {
            assert_eq!(report(text).expect_err(text).field.as_deref(), Some(field), "{text}");
        }
    }
}
