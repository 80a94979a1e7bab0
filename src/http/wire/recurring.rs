//! Request bodies and queries for recurring jobs.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::extract::{Wire, optional_whole_number, whole_number};
use super::finite;
use crate::recurring::{LONGEST_KEY, RecurringDocument, RecurringSpec};
use crate::store::Page;
use wattune_core::bandit::{Ending, Report};
use wattune_core::domain::{InvalidJob, JobId};
use wattune_core::units::{Joules, Seconds};

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
        ("gpu_model", "give the model as in GET /v1/gpus has it, or leave it out"),
        ("number_of_gpus", "give a whole number from 1 to 1024"),
    ];
}

/// The maximum size of an exported job in bytes: some ten thousand trials.
pub(in crate::http) const MAX_DOCUMENT_BYTES: usize = 16 << 20;

impl Wire for RecurringDocument {
    const HINTS: &'static [(&'static str, &'static str)] =
        &[("trials", "give the document from GET /v1/recurring/{name}/export")];
    const MAX_BYTES: Option<usize> = Some(MAX_DOCUMENT_BYTES);
}

/// A request for a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"key": "2026-11-21-nightly"}))]
pub struct BeginTrial {
    /// The client's key of this trial, 1 to 200 characters: two requests with one key begin one trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Wire for BeginTrial {
    const HINTS: &'static [(&'static str, &'static str)] =
        &[("key", "give a text of 1 to 200 characters of your own, or leave it out")];
}

impl BeginTrial {
    /// Returns the key.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn checked(self) -> Result<Option<String>, InvalidJob> {
        match self.key {
            Some(key) if !(1..=LONGEST_KEY).contains(&key.chars().count()) => {
                let why = format!("has {} characters; give from 1 to {LONGEST_KEY}", key.chars().count());
                Err(InvalidJob { field: "key", why })
            }
            key => Ok(key),
        }
    }
}

/// The progress of a trial, counted from its beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"epochs": 3, "energy_j": 181_000, "time_s": 912.5, "metric": 0.41}))]
pub struct ReportTrial {
    /// The number of completed epochs.
    #[schema(minimum = 0)]
    pub epochs: u32,
    /// The energy of all its GPUs. `job_id` may replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub energy_j: Option<f64>,
    /// The training time. Optional with `job_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub time_s: Option<f64>,
    /// The training run (`POST /v1/jobs`, of the same name and batch size) whose ledger has energy and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The metric after the last of these epochs; null where it is not a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<f64>,
}

/// Field names and the values that they accept, for reports alone and within an end.
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

/// The source of a report's energy.
#[derive(Clone, Debug, PartialEq)]
pub enum Metered {
    /// Measured by the client.
    Client(Report),
    /// Recorded in a training run's ledger, which has the time, too, if the client gives none.
    Job {
        /// The run.
        job: JobId,
        /// The time, if the client gives it.
        time: Option<Seconds>,
        /// Epochs and metric, without energy and time.
        rest: Report,
    },
}

impl ReportTrial {
    /// Checks and converts the report.
    ///
    /// # Errors
    /// If a value is invalid, or energy is given twice or not at all.
    pub fn checked(self) -> Result<Metered, InvalidJob> {
        let invalid = |field, why: &str| Err(InvalidJob { field, why: why.to_owned() });
        let energy = self.energy_j.map(|e| finite("energy_j", Joules::try_new(e))).transpose()?;
        let time = self.time_s.map(|t| finite("time_s", Seconds::try_new(t))).transpose()?;
        if energy.is_some_and(|e| e < Joules::ZERO) {
            return invalid("energy_j", "is negative; it counts from the trial's beginning");
        }
        if time.is_some_and(|t| t < Seconds::ZERO) {
            return invalid("time_s", "is negative; it counts from the trial's beginning");
        }
        let rest = Report { epochs: self.epochs, metric: self.metric, ..Report::default() };
        match (energy, time, self.job_id) {
            (Some(energy), Some(time), None) => Ok(Metered::Client(Report { energy, time, ..rest })),
            (None, time, Some(job)) => {
                let job = JobId::new(job).map_err(|e| InvalidJob { field: "job_id", why: e.to_string() })?;
                Ok(Metered::Job { job, time, rest })
            }
            (Some(_), _, Some(_)) => invalid("energy_j", "is given together with job_id; give one of them"),
            (None, _, None) => invalid("energy_j", "is missing; give it, or the job_id of the training run"),
            (Some(_), None, None) => invalid("time_s", "is missing; give the seconds since the trial began"),
        }
    }
}

/// The end of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"outcome": "withdrawn"}))]
pub struct EndTrial {
    /// The outcome, unless the last report implies it.
    #[serde(default)]
    #[schema(default = "withdrawn")]
    pub outcome: TrialEnding,
    /// The last report.
    #[serde(default, deserialize_with = "optional_report", skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportTrial>,
}

fn optional_report<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ReportTrial>, D::Error> {
    super::super::extract::optional_object(d)
}

/// The outcome of a trial that did not reach its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialEnding {
    /// Interrupted; the trial does not count.
    #[default]
    Withdrawn,
    /// Out of reach with this batch size: the run diverged, or does not fit into memory.
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
        let report = ("report", "give an object as for …/progress, or leave it out");
        [outcome, report, epochs, energy, time, job, metric]
    };
}

/// The selection of a part of a list.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RecurringQuery {
    /// Only names after this one. At most 128 characters, like names.
    #[serde(default)]
    #[param(max_length = 128)]
    pub after: String,
    /// The maximum number, from 1 to 1000; 100 if absent.
    #[serde(default = "a_hundred", deserialize_with = "whole_number")]
    #[param(default = 100, minimum = 1, maximum = 1000)]
    pub limit: u32,
}

const fn a_hundred() -> u32 {
    100
}

/// The order of trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialOrder {
    /// The oldest first.
    #[default]
    Asc,
    /// The newest first.
    Desc,
}

/// The selection of trials.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrialsQuery {
    /// The order by number.
    #[serde(default)]
    #[param(default = "asc")]
    pub order: TrialOrder,
    /// Only trials after this number in that order.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[param(format = Int64, minimum = 0, maximum = 4_294_967_295_i64)]
    pub after: Option<u32>,
    /// The maximum number, from 1 to 1000; 1000 if absent.
    #[serde(default = "a_thousand", deserialize_with = "whole_number")]
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    pub limit: u32,
}

const fn a_thousand() -> u32 {
    1000
}

impl RecurringQuery {
    /// Returns the name before the page and the page's length.
    ///
    /// # Errors
    /// If the name is longer than names can be, or the limit is outside 1..=1000.
    pub fn checked(self) -> Result<(String, u32), InvalidJob> {
        let limit = checked_limit(self.limit)?;
        match self.after.chars().count() {
            0..=MAX_NAME_LEN => Ok((self.after, limit)),
            length => {
                let why = format!("has {length} characters; names have at most {MAX_NAME_LEN}");
                Err(InvalidJob { field: "after", why })
            }
        }
    }
}

/// The maximum length of a name, in characters.
const MAX_NAME_LEN: usize = 128;

impl TrialsQuery {
    /// Returns the requested page.
    ///
    /// # Errors
    /// If the limit is outside 1..=1000.
    pub fn checked(self) -> Result<Page, InvalidJob> {
        let Self { order, after, limit } = self;
        Ok(Page { newest_first: order == TrialOrder::Desc, after, limit: checked_limit(limit)? })
    }
}

/// Checks the limit of a list.
///
/// # Errors
/// If it is outside 1..=1000.
fn checked_limit(limit: u32) -> Result<u32, InvalidJob> {
    if (1..=1000).contains(&limit) {
        return Ok(limit);
    }
    Err(InvalidJob { field: "limit", why: format!("is {limit}; it must be within 1 to 1000") })
}

#[cfg(test)]
mod tests {
    use super::super::super::extract::read;
    use super::*;
    use crate::http::error::Problem;
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
            (r#""batch_sizes":[8,8]"#, "batch_sizes", "names 8 twice"),
            (r#""default_batch_size":5"#, "default_batch_size", "not among batch_sizes"),
            (r#""max_epochs":-1"#, "max_epochs", "at least 1"),
            (r#""eta":1.5"#, "eta", "from 0 (time alone)"),
            (r#""beta":0.5"#, "beta", "above 1"),
            (r#""policy":"best""#, "policy", "\"wattune\" or \"zeus\""),
            (r#""objective":"carbon""#, "reference_g_per_kwh", "needs a reference intensity"),
            (r#""reference_g_per_kwh":4"#, "reference_g_per_kwh", "omit it"),
            (r#""number_of_gpus":4"#, "number_of_gpus", "requires gpu_model"),
            (r#""lease_s":0"#, "lease_s", "within 1 to 604800"),
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
