//! What clients send about recurring jobs.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::extract::{Wire, digits, some_digits};
use super::finite;
use crate::recurring::{LONGEST_KEY, RecurringDocument, RecurringSpec};
use crate::store::Page;
use wattune_core::bandit::{Ending, Report};
use wattune_core::domain::{InvalidJob, JobId};
use wattune_core::units::{Joules, Seconds};

impl Wire for RecurringSpec {
    const RIGHT: &'static [(&'static str, &'static str)] = &[
        ("batch_sizes", "give a list of whole numbers, each once, such as [32, 64, 128]"),
        ("default_batch_size", "give one of batch_sizes"),
        ("max_epochs", "give a whole number, at least 1"),
        ("target_metric", "give the metric at which a trial is done"),
        ("higher_is_better", "give true or false"),
        ("max_power_w", "give the watts that all boards of a trial may draw together, 10 or more"),
        ("eta", "give a number from 0 (time alone) to 1 (energy or carbon alone)"),
        ("objective", "give \"energy\" or \"carbon\""),
        ("reference_g_per_kwh", "give grams of CO2 equivalent per kWh with the objective carbon, else leave it out"),
        ("beta", "give a number above 1 and up to 1000000, or null to never stop a trial early"),
        ("window", "give a whole number, or 0 for all trials"),
        ("policy", "give \"wattune\" or \"zeus\""),
        ("seed", "give a whole number, or leave it out"),
        ("lease_s", "give seconds, from 1 to 604800"),
        ("gpu_model", "give the model as GET /v1/gpus has it, or leave it out"),
        ("number_of_gpus", "give a whole number from 1 to 1024"),
    ];
}

/// What an exported job may take up: some ten thousand trials.
pub(in crate::http) const LARGEST_DOCUMENT: usize = 16 << 20;

impl Wire for RecurringDocument {
    const RIGHT: &'static [(&'static str, &'static str)] =
        &[("trials", "give the document as GET /v1/recurring/{name}/export answered it")];
    const LARGEST: Option<usize> = Some(LARGEST_DOCUMENT);
}

/// Asks for a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"key": "2026-11-21-nightly"}))]
pub struct BeginTrial {
    /// By what the client knows this trial again, 1 to 200 characters: asking twice with one key begins one trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Wire for BeginTrial {
    const RIGHT: &'static [(&'static str, &'static str)] =
        &[("key", "give a text of 1 to 200 characters of your own, or leave it out")];
}

impl BeginTrial {
    /// The key.
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

/// How far a trial has come; all of it counts from the trial's beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"epochs": 3, "energy_j": 181_000, "time_s": 912.5, "metric": 0.41}))]
pub struct ReportTrial {
    /// Whole epochs done.
    #[schema(minimum = 0)]
    pub epochs: u32,
    /// Energy of all its boards. `job_id` may stand in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub energy_j: Option<f64>,
    /// Time spent training. With `job_id` it may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub time_s: Option<f64>,
    /// The training run (`POST /v1/jobs`, of the same name and batch size) whose books know energy and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The metric after the last of these epochs; null where it is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<f64>,
}

/// Field names and what belongs there, for reports on their own and within an end.
macro_rules! report_fields {
    ($prefix:literal) => {
        [
            (concat!($prefix, "epochs"), "give the whole number of epochs done so far"),
            (concat!($prefix, "energy_j"), "give the joules of all boards since the trial began, or job_id"),
            (concat!($prefix, "time_s"), "give the seconds since the trial began"),
            (concat!($prefix, "job_id"), "give the job_id that POST /v1/jobs answered, or energy_j and time_s"),
            (concat!($prefix, "metric"), "give a number, or null where it was not measured or is no number"),
        ]
    };
}

impl Wire for ReportTrial {
    const RIGHT: &'static [(&'static str, &'static str)] = &report_fields!("");
}

/// Where the energy of a report is from.
#[derive(Clone, Debug, PartialEq)]
pub enum Metered {
    /// The client measured it.
    Here(Report),
    /// A training run's books have it; its time is there too, if it is not given.
    Books {
        /// The run.
        job: JobId,
        /// The time, if the client gives it.
        time: Option<Seconds>,
        /// Epochs and metric, without energy and time.
        rest: Report,
    },
}

impl ReportTrial {
    /// What it says.
    ///
    /// # Errors
    /// If a value makes no sense, or energy is given twice or not at all.
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
            (Some(energy), Some(time), None) => Ok(Metered::Here(Report { energy, time, ..rest })),
            (None, time, Some(job)) => {
                let job = JobId::new(job).map_err(|e| InvalidJob { field: "job_id", why: e.to_string() })?;
                Ok(Metered::Books { job, time, rest })
            }
            (Some(_), _, Some(_)) => invalid("energy_j", "is given and job_id too; give one of them"),
            (None, _, None) => invalid("energy_j", "is missing; give it, or the job_id of a job whose books know it"),
            (Some(_), None, None) => invalid("time_s", "is missing; give the seconds since the trial began"),
        }
    }
}

/// Ends a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"outcome": "withdrawn"}))]
pub struct EndTrial {
    /// What became of it, unless its last report says so.
    #[serde(default)]
    #[schema(default = "withdrawn")]
    pub outcome: TrialEnding,
    /// Its last report.
    #[serde(default, deserialize_with = "optional_report", skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportTrial>,
}

fn optional_report<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ReportTrial>, D::Error> {
    super::super::extract::optional_object(d)
}

/// How a trial ends that is not at its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialEnding {
    /// It was interrupted and counts as if it had not been.
    #[default]
    Withdrawn,
    /// It does not get there with this batch size: it diverged, or does not fit into memory.
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
    const RIGHT: &'static [(&'static str, &'static str)] = &{
        let [epochs, energy, time, job, metric] = report_fields!("report.");
        let outcome = ("outcome", "give \"withdrawn\" or \"not_reached\"");
        let report = ("report", "give an object as …/progress takes it, or leave it out");
        [outcome, report, epochs, energy, time, job, metric]
    };
}

/// Which part of a list.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RecurringQuery {
    /// Only names after this one. At most 128 characters, as names have.
    #[serde(default)]
    #[param(max_length = 128)]
    pub after: String,
    /// At most so many, from 1 to 1000; 100 if absent.
    #[serde(default = "a_hundred", deserialize_with = "digits")]
    #[param(default = 100, minimum = 1, maximum = 1000)]
    pub limit: u32,
}

const fn a_hundred() -> u32 {
    100
}

/// In which order trials are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialOrder {
    /// The oldest first.
    #[default]
    Asc,
    /// The newest first.
    Desc,
}

/// Which trials.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrialsQuery {
    /// By number, rising or falling.
    #[serde(default)]
    #[param(default = "asc")]
    pub order: TrialOrder,
    /// Only those that come after the trial of this number in that order.
    #[serde(default, deserialize_with = "some_digits")]
    #[param(format = Int64, minimum = 0, maximum = 4_294_967_295_i64)]
    pub after: Option<u32>,
    /// At most so many, from 1 to 1000; 1000 if absent.
    #[serde(default = "a_thousand", deserialize_with = "digits")]
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    pub limit: u32,
}

const fn a_thousand() -> u32 {
    1000
}

impl RecurringQuery {
    /// After which name, and how many.
    ///
    /// # Errors
    /// If the name is longer than any, or the limit is outside 1..=1000.
    pub fn checked(self) -> Result<(String, u32), InvalidJob> {
        let limit = checked_limit(self.limit)?;
        match self.after.chars().count() {
            0..=LONGEST_NAME => Ok((self.after, limit)),
            length => {
                let why = format!("has {length} characters; names have at most {LONGEST_NAME}");
                Err(InvalidJob { field: "after", why })
            }
        }
    }
}

/// In characters.
const LONGEST_NAME: usize = 128;

impl TrialsQuery {
    /// The page that it asks for.
    ///
    /// # Errors
    /// If the limit is outside 1..=1000.
    pub fn checked(self) -> Result<Page, InvalidJob> {
        let Self { order, after, limit } = self;
        Ok(Page { newest_first: order == TrialOrder::Desc, after, limit: checked_limit(limit)? })
    }
}

/// A limit of a list.
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
    fn a_specification_has_defaults_and_comes_back_as_it_was() {
        let terms = spec(
            r#"{"batch_sizes":[64,32],"default_batch_size":64,"max_epochs":9,"target_metric":0.6,"max_power_w":300}"#,
        );
        let terms = terms.expect("valid");
        assert_eq!(terms.spec.batch_sizes, [32, 64]);
        assert_eq!((terms.spec.beta, terms.spec.knob.eta, terms.lease.get()), (Some(2.0), 0.5, 3600.0));
        assert_eq!(Terms::try_from(RecurringSpec::from(&terms)), Ok(terms));
    }

    #[test]
    fn a_wrong_specification_is_told_where_and_what_would_be_right() {
        let table = [
            (r#""batch_sizes":[]"#, "batch_sizes", "from 1 to 100"),
            (r#""batch_sizes":[8,8]"#, "batch_sizes", "names 8 twice"),
            (r#""default_batch_size":5"#, "default_batch_size", "not among batch_sizes"),
            (r#""max_epochs":-1"#, "max_epochs", "at least 1"),
            (r#""eta":1.5"#, "eta", "from 0 (time alone)"),
            (r#""beta":0.5"#, "beta", "above 1"),
            (r#""policy":"best""#, "policy", "\"wattune\" or \"zeus\""),
            (r#""objective":"carbon""#, "reference_g_per_kwh", "needs the intensity"),
            (r#""reference_g_per_kwh":4"#, "reference_g_per_kwh", "leave it out"),
            (r#""number_of_gpus":4"#, "number_of_gpus", "goes with gpu_model"),
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
        let told = report(r#"{"epochs":2,"energy_j":10,"time_s":4,"metric":null}"#).expect("valid");
        let whole = Report { epochs: 2, energy: Joules::new(10.0), time: Seconds::new(4.0), metric: None };
        assert_eq!(told, Metered::Here(whole));
        assert!(matches!(report(r#"{"epochs":2,"job_id":"a"}"#), Ok(Metered::Books { time: None, .. })));
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
