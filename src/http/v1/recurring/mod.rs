//! Routes of recurring jobs: trainings that run again and again, for which wattune chooses the batch size.

pub(in crate::http) mod trials;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::controller::Caller;
use crate::http::access::By;
use crate::http::error::{Answer, Problem};
use crate::http::extract::{
    FromPath, Named, Params, Payload, Wire, default_number, invalid, page_length, whole_number,
};
use crate::http::shared::Shared;
use crate::recurring::{RecurringDocument, RecurringEntry, RecurringError, RecurringSpec, RecurringView};
use wattune_core::domain::JobName;

/// The parameters in the URL path of a recurring job.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(in crate::http) struct RecurringPath {
    /// The job's name, which its training runs share.
    name: String,
}

impl FromPath for JobName {
    type Parameters = RecurringPath;

    /// Reads the name. An invalid name counts as an unknown job, which gives 404.
    fn parse(path: RecurringPath) -> Result<Self, Problem> {
        Self::new(path.name.clone()).map_err(|_| RecurringError::NotFound(path.name).into())
    }
}

/// The name of a recurring job to create; an invalid name gives 422.
pub(in crate::http) struct NewName(JobName);

impl FromPath for NewName {
    type Parameters = RecurringPath;

    fn parse(path: RecurringPath) -> Result<Self, Problem> {
        let name = JobName::new(path.name).and_then(JobName::require_visible);
        name.map(Self).map_err(|error| invalid("name", error.to_string()).into())
    }
}

/// The selection of a part of the list of recurring jobs.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct RecurringQuery {
    /// Only jobs whose names sort after this name. At most 128 characters.
    #[serde(default)]
    #[param(max_length = 128)]
    after: String,
    /// The maximum number of jobs, from 1 to 1000; 100 if absent.
    #[serde(default = "default_number::<100>", deserialize_with = "whole_number")]
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// The maximum length of a job's name in characters.
const MAX_NAME_LEN: usize = 128;

impl Wire for RecurringSpec {
    const HINTS: &'static [(&'static str, &'static str)] = &[
        ("batch_sizes", "give a list of whole numbers, each once, such as [32, 64, 128]"),
        ("default_batch_size", "give one of batch_sizes"),
        ("max_epochs", "give a whole number, at least 1"),
        ("target_metric", "give the metric at which a trial has reached its target"),
        ("higher_is_better", "give true or false"),
        ("max_power_w", "give the watts that all GPUs of a trial may draw together, 10 or more"),
        ("eta", "give a number from 0 (time alone) to 1 (energy or carbon alone)"),
        ("objective", "give \"energy\" or \"carbon\""),
        (
            "reference_g_per_kwh",
            "give grams of CO2 equivalent per kWh with the objective carbon, otherwise leave it out",
        ),
        ("beta", "give a number above 1 and up to 1000000, or null to never stop a trial early"),
        ("window", "give a whole number, or 0 for all trials"),
        ("policy", "give \"wattune\" or \"zeus\""),
        ("seed", "give a whole number, or leave it out"),
        ("lease_s", "give seconds, from 1 to 604800"),
        ("gpu_model", "give the GPU model as GET /v1/gpus reports it, or leave it out"),
        ("number_of_gpus", "give a whole number from 1 to 1024"),
    ];
}

/// The maximum size in bytes of an exported recurring job, enough for some ten thousand trials.
pub(in crate::http) const MAX_DOCUMENT_BYTES: usize = 16 << 20;

impl Wire for RecurringDocument {
    const HINTS: &'static [(&'static str, &'static str)] =
        &[("trials", "give the document from GET /v1/recurring/{name}/export")];
    const MAX_BYTES: Option<usize> = Some(MAX_DOCUMENT_BYTES);
}

/// Lists recurring jobs by name.
#[utoipa::path(
    get, path = "/v1/recurring", operation_id = "list_recurring", tag = "recurring jobs", params(RecurringQuery),
    responses((status = OK, body = Vec<RecurringEntry>))
)]
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Params(query): Params<RecurringQuery>,
) -> Answer<Vec<RecurringEntry>> {
    let limit = page_length(query.limit, 1000)?;
    let length = query.after.chars().count();
    if length > MAX_NAME_LEN {
        return Err(invalid("after", format!("has {length} characters; names have at most {MAX_NAME_LEN}")).into());
    }
    shared.within(shared.recurring.list(&query.after, limit)).await.map(Json)
}

/// Creates a recurring job, which belongs to the user who sends the request. Another user who repeats the request with the
/// same specification shares the job: both may begin trials, each reports for its own and ends them, and only the first may
/// delete the job.
#[utoipa::path(
    put, path = "/v1/recurring/{name}", operation_id = "put_recurring", tag = "recurring jobs",
    params(RecurringPath), request_body = RecurringSpec,
    responses(
        (status = CREATED, body = RecurringView),
        (status = OK, body = RecurringView, description = "The job existed already"),
        (status = CONFLICT, description = "A job of that name has another specification; the problem names the field")
    )
)]
pub(in crate::http) async fn put(
    State(shared): State<Shared>,
    By(by): By,
    Named(NewName(name)): Named<NewName>,
    Payload(spec): Payload<RecurringSpec>,
) -> Result<impl IntoResponse, Problem> {
    let (view, is_new) = shared.within(shared.recurring.put(name, spec, by.owners())).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(view)))
}

/// Returns a recurring job with its cost estimate for each batch size.
#[utoipa::path(
    get, path = "/v1/recurring/{name}", operation_id = "get_recurring", tag = "recurring jobs",
    params(RecurringPath),
    responses((status = OK, body = RecurringView), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn show(State(shared): State<Shared>, Named(name): Named<JobName>) -> Answer<RecurringView> {
    shared.within(shared.recurring.show(&name)).await.map(Json)
}

/// Deletes a recurring job with all its trials (its runs). If a job of that name is created again, the trial numbers
/// continue.
#[utoipa::path(
    delete, path = "/v1/recurring/{name}", operation_id = "delete_recurring", tag = "recurring jobs",
    params(RecurringPath),
    responses(
        (status = OK, body = RecurringView, description = "The deleted job"),
        (status = FORBIDDEN, description = "The job belongs to others"),
        (status = NOT_FOUND, response = Problem)
    )
)]
pub(in crate::http) async fn delete(
    State(shared): State<Shared>,
    By(by): By,
    Named(name): Named<JobName>,
) -> Answer<RecurringView> {
    check_users(&shared, &name, &by, true).await?;
    shared.within(shared.recurring.delete(&name)).await.map(Json)
}

/// Exports a recurring job with its trials as one document.
#[utoipa::path(
    get, path = "/v1/recurring/{name}/export", operation_id = "export_recurring", tag = "recurring jobs",
    params(RecurringPath),
    responses((status = OK, body = RecurringDocument), (status = NOT_FOUND, response = Problem))
)]
pub(in crate::http) async fn export(
    State(shared): State<Shared>,
    Named(name): Named<JobName>,
) -> Answer<RecurringDocument> {
    shared.within(shared.recurring.export(&name)).await.map(Json)
}

/// Imports an exported recurring job under the name in the address. Does not overwrite an existing job.
#[utoipa::path(
    post, path = "/v1/recurring/{name}/import", operation_id = "import_recurring", tag = "recurring jobs",
    params(RecurringPath), request_body = RecurringDocument,
    responses((status = CREATED, body = RecurringView), (status = CONFLICT, description = "A job of that name exists"))
)]
pub(in crate::http) async fn import(
    State(shared): State<Shared>,
    By(by): By,
    Named(NewName(name)): Named<NewName>,
    Payload(document): Payload<RecurringDocument>,
) -> Result<impl IntoResponse, Problem> {
    Ok((StatusCode::CREATED, Json(shared.within(shared.recurring.import(name, document, by.owners())).await?)))
}

/// Checks that the caller may change a recurring job: as an owner, or at least as a member.
pub(super) async fn check_users(shared: &Shared, name: &JobName, by: &Caller, as_owner: bool) -> Result<(), Problem> {
    shared.within(shared.recurring.check_users(name, &by.actor(), as_owner)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::extract::read;
    use wattune_core::bandit::Terms;

    fn spec(text: &str) -> Result<Terms, Problem> {
        Ok(Terms::try_from(read::<RecurringSpec>(text.as_bytes())?)?)
    }

    #[test]
    fn a_specification_has_defaults_and_survives_a_round_trip() {
        let terms = spec(
            r#"{"batch_sizes":[64,32],"default_batch_size":64,"max_epochs":9,"target_metric":0.6,"max_power_w":300}"#,
        );
        let terms = terms.expect("valid");
        assert_eq!(terms.spec.batch_sizes, [32, 64]);
        assert_eq!((terms.spec.beta, terms.spec.knob.eta, terms.lease.get()), (Some(2.0), 0.5, 3600.0));
        assert_eq!(Terms::try_from(RecurringSpec::from(&terms)), Ok(terms));
    }

    #[test]
    fn an_invalid_specification_is_refused_with_a_hint() {
        let table = [
            (r#""batch_sizes":[]"#, "batch_sizes", "from 1 to 100"),
            (r#""batch_sizes":[8,8]"#, "batch_sizes", "contains 8 twice"),
            (r#""default_batch_size":5"#, "default_batch_size", "not among batch_sizes"),
            (r#""max_epochs":-1"#, "max_epochs", "at least 1"),
            (r#""eta":1.5"#, "eta", "from 0 (time alone)"),
            (r#""beta":0.5"#, "beta", "above 1"),
            (r#""policy":"best""#, "policy", "\"wattune\" or \"zeus\""),
            (r#""objective":"carbon""#, "reference_g_per_kwh", "needs a reference intensity"),
            (r#""reference_g_per_kwh":4"#, "reference_g_per_kwh", "omit it"),
            (r#""number_of_gpus":4"#, "number_of_gpus", "requires gpu_model"),
            (r#""lease_s":0"#, "lease_s", "from 1 to 604800"),
            (r#""max_power_w":0"#, "max_power_w", "more than 10 watts"),
            (r#""max_power_w":0.3"#, "max_power_w", "kilowatts"),
            (r#""max_power_w":300000"#, "max_power_w", "in milliwatts: 300 watts"),
            (r#""max_power_w":2400000,"gpu_model":"A100","number_of_gpus":8"#, "max_power_w", "2400 watts"),
            (r#""lease_s":3600000"#, "lease_s", "milliseconds"),
            (r#""colour":"red""#, "colour", "unknown field"),
        ];
        for (wrong, field, right) in table {
            let name = wrong.split('"').nth(1).expect("a name");
            let usual = [
                r#""batch_sizes":[8,16]"#,
                r#""default_batch_size":8"#,
                r#""max_epochs":9"#,
                r#""target_metric":0.6"#,
                r#""max_power_w":300"#,
            ];
            let others: Vec<&str> = usual.into_iter().filter(|f| !f.contains(&format!("\"{name}\""))).collect();
            let text = format!("{{{},{wrong}}}", others.join(","));
            let problem = spec(&text).expect_err(wrong);
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{wrong}: {problem:?}");
            assert!(problem.detail.contains(right), "{wrong}: {}", problem.detail);
        }
    }
}
