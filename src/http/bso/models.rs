//! Requests of Zeus's clients, with the defaults and the checks of Zeus's server.

use std::collections::HashMap;

use serde::Serialize;

use super::fields::{Fields, Mistake};
use super::json::Value;
use super::python;
use wattune_core::bandit::{ZeusReport, ZeusSpec};

/// A request that is read from a JSON object.
pub(super) trait Model: Sized {
    fn read(fields: HashMap<String, Value>) -> Result<Self, Vec<Mistake>>;
}

/// Bound of the whole numbers that Zeus's server can store.
const LARGEST: i128 = i64::MAX as i128;

/// Returns a number as the server stores it.
///
/// # Errors
/// The number does not fit.
fn stored(number: i128) -> Result<i64, String> {
    i64::try_from(number).map_err(|_| "Python int too large to convert to SQLite INTEGER".to_owned())
}

/// A job specification as a client submits it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct JobSpec {
    max_power: f64,
    number_of_gpus: i128,
    gpu_model: String,
    pub(super) job_id: Option<String>,
    pub(super) job_id_prefix: String,
    batch_sizes: Vec<i128>,
    default_batch_size: i128,
    eta_knob: f64,
    beta_knob: Option<f64>,
    target_metric: f64,
    higher_is_better_metric: bool,
    max_epochs: i128,
    num_pruning_rounds: i128,
    window_size: i128,
    mab_prior_mean: f64,
    mab_prior_precision: f64,
    mab_num_explorations: i128,
    mab_seed: Option<i128>,
}

impl Model for JobSpec {
    fn read(values: HashMap<String, Value>) -> Result<Self, Vec<Mistake>> {
        let mut of = Fields::new(values);
        let max_power = of.required::<f64>("max_power");
        let max_power = of.above("max_power", max_power, max_power.is_none_or(|p| p > 0.0));
        let number_of_gpus = of.required::<i128>("number_of_gpus");
        let number_of_gpus = of.above("number_of_gpus", number_of_gpus, number_of_gpus.is_none_or(|n| n > 0));
        let gpu_model = of.required::<String>("gpu_model");
        let no_model = |model: &String| format!("Invalid gpu_model({model}). Shouldn't be empty.");
        let gpu_model = of.check("gpu_model", gpu_model, |model| !model.is_empty(), no_model);
        let job_id = of.optional::<String>("job_id", None);
        let job_id_prefix = of.required::<String>("job_id_prefix");
        let batch_sizes = of.required::<Vec<i128>>("batch_sizes");
        let none = |_: &Vec<i128>| "Batch Sizes = [] is empty".to_owned();
        let batch_sizes = of.check("batch_sizes", batch_sizes, |sizes| !sizes.is_empty(), none);
        let default_batch_size = of.required::<i128>("default_batch_size");
        let is_positive = default_batch_size.is_none_or(|size| size > 0);
        let default_batch_size = of.above("default_batch_size", default_batch_size, is_positive);
        let eta_knob = of.or("eta_knob", 0.5);
        let out_of_range = |_: &f64| "eta_knob should be in range [0,1]".to_owned();
        let eta_knob = of.check("eta_knob", eta_knob, |eta| !(*eta < 0.0 || *eta > 1.0), out_of_range);
        let beta_knob = of.optional("beta_knob", Some(2.0));
        let not_positive = |beta: &Option<f64>| {
            let beta = python::float(beta.unwrap_or_default());
            format!(
                "Invalid beta_knob({beta}). To disable early stop, set beta_knob = None to disable or positive value."
            )
        };
        let beta_knob = of.check("beta_knob", beta_knob, |beta| beta.is_none_or(|b| b > 0.0), not_positive);
        let target_metric = of.or("target_metric", 0.5);
        let higher_is_better_metric = of.or("higher_is_better_metric", true);
        let max_epochs = of.or("max_epochs", 100);
        let max_epochs = of.above("max_epochs", max_epochs, max_epochs.is_none_or(|epochs| epochs > 0));
        let num_pruning_rounds = of.or("num_pruning_rounds", 2);
        let num_pruning_rounds = of.at_least_0("num_pruning_rounds", num_pruning_rounds);
        let window_size = of.or("window_size", 0);
        let mab_prior_mean = of.or("mab_prior_mean", 0.0);
        let mab_prior_precision = of.or("mab_prior_precision", 0.0);
        let mab_num_explorations = of.or("mab_num_explorations", 2);
        let mab_num_explorations = of.at_least_0("mab_num_explorations", mab_num_explorations);
        let mab_seed = of.optional("mab_seed", None);
        let complete = || {
            let mut batch_sizes = batch_sizes?;
            batch_sizes.sort_unstable();
            Some(Self {
                max_power: max_power?,
                number_of_gpus: number_of_gpus?,
                gpu_model: gpu_model?,
                job_id: job_id?,
                job_id_prefix: job_id_prefix?,
                batch_sizes,
                default_batch_size: default_batch_size?,
                eta_knob: eta_knob?,
                beta_knob: beta_knob?,
                target_metric: target_metric?,
                higher_is_better_metric: higher_is_better_metric?,
                max_epochs: max_epochs?,
                num_pruning_rounds: num_pruning_rounds?,
                window_size: window_size?,
                mab_prior_mean: mab_prior_mean?,
                mab_prior_precision: mab_prior_precision?,
                mab_num_explorations: mab_num_explorations?,
                mab_seed: mab_seed?,
            })
        };
        let spec = complete();
        let cross = spec.as_ref().and_then(Self::contradiction);
        let mistakes = of.mistakes(cross);
        spec.filter(|_| mistakes.is_empty()).ok_or(mistakes)
    }
}

impl JobSpec {
    /// Returns the message of the first check across fields that fails.
    fn contradiction(&self) -> Option<String> {
        let Self { batch_sizes, default_batch_size, job_id, job_id_prefix, .. } = self;
        if !batch_sizes.contains(default_batch_size) {
            return Some(format!("Default BS({default_batch_size}) not in batch_sizes({batch_sizes:?})."));
        }
        let id = job_id.as_ref().filter(|id| !id.starts_with(job_id_prefix.as_str()))?;
        Some(format!("Job_id({id}) does not start with prefix({job_id_prefix})."))
    }

    /// Returns the specification with this identifier.
    pub(super) fn with_id(self, id: String) -> Self {
        Self { job_id: Some(id), ..self }
    }

    /// Returns true if all numbers of the specification are finite, so that JSON can express them.
    pub(super) fn is_finite(&self) -> bool {
        let floats = [self.max_power, self.eta_knob, self.target_metric, self.mab_prior_mean, self.mab_prior_precision];
        floats.iter().chain(&self.beta_knob).all(|number| number.is_finite())
    }

    /// Returns the specification of a job with this identifier.
    ///
    /// # Errors
    /// A value passes the checks, but the server cannot store it: the message for the client.
    pub(super) fn registration(&self, job_id: &str) -> Result<ZeusSpec, String> {
        if self.mab_seed.is_some_and(|seed| seed < 0) {
            return Err("expected non-negative integer".to_owned());
        }
        let floats = [self.max_power, self.eta_knob, self.target_metric, self.mab_prior_mean, self.mab_prior_precision];
        if floats.iter().any(|number| number.is_nan()) {
            return Err("NOT NULL constraint failed: a number of the job is NaN".to_owned());
        }
        if let Some(twice) = self.batch_sizes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("UNIQUE constraint failed: batch_sizes contains {} twice", twice[0]));
        }
        let batch_sizes = self.batch_sizes.iter().map(|size| stored(*size)).collect::<Result<_, _>>()?;
        Ok(ZeusSpec {
            max_power: self.max_power,
            number_of_gpus: stored(self.number_of_gpus)?,
            gpu_model: self.gpu_model.clone(),
            job_id: job_id.to_owned(),
            job_id_prefix: self.job_id_prefix.clone(),
            batch_sizes,
            default_batch_size: stored(self.default_batch_size)?,
            eta_knob: self.eta_knob,
            beta_knob: self.beta_knob,
            target_metric: self.target_metric,
            higher_is_better_metric: self.higher_is_better_metric,
            max_epochs: stored(self.max_epochs)?,
            num_pruning_rounds: stored(self.num_pruning_rounds)?,
            window_size: stored(self.window_size)?,
            mab_prior_mean: self.mab_prior_mean,
            mab_prior_precision: self.mab_prior_precision,
            mab_num_explorations: stored(self.mab_num_explorations)?,
            mab_seed: self.mab_seed.map(stored).transpose()?,
        })
    }
}

/// The identity of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TrialId {
    pub(super) job_id: String,
    pub(super) batch_size: i128,
    pub(super) trial_number: i128,
}

impl Model for TrialId {
    fn read(values: HashMap<String, Value>) -> Result<Self, Vec<Mistake>> {
        let mut of = Fields::new(values);
        let trial = Self::of(&mut of);
        let mistakes = of.mistakes(None);
        trial.filter(|_| mistakes.is_empty()).ok_or(mistakes)
    }
}

impl TrialId {
    fn of(fields: &mut Fields) -> Option<Self> {
        let job_id = fields.required("job_id");
        let (batch_size, trial_number) = (fields.required("batch_size"), fields.required("trial_number"));
        Some(Self { job_id: job_id?, batch_size: batch_size?, trial_number: trial_number? })
    }

    /// Returns the numbers of the trial. `None` if the server has no trial with such numbers.
    ///
    /// # Errors
    /// A number is below 1, or too large for the server: the message for the client.
    pub(super) fn numbers(&self) -> Result<Option<(u32, u64)>, String> {
        let table = [("batch_size", self.batch_size), ("trial_number", self.trial_number)];
        let wrong: Vec<&str> = table.iter().filter(|(_, number)| *number < 1).map(|(name, _)| *name).collect();
        if !wrong.is_empty() {
            let limit = "ensure this value is greater than 0 (type=value_error.number.not_gt; limit_value=0)";
            return Err(validation("ReadTrial", &wrong, limit));
        }
        if let Some((_, large)) = table.iter().find(|(_, number)| *number > LARGEST) {
            return Err(stored(*large).err().unwrap_or_default());
        }
        Ok(u32::try_from(self.trial_number).ok().zip(u64::try_from(self.batch_size).ok()))
    }
}

impl std::fmt::Display for TrialId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { job_id, batch_size, trial_number } = self;
        write!(f, "job_id={} batch_size={batch_size} trial_number={trial_number}", python::quoted(job_id))
    }
}

/// A report of a trial's progress.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrainingResult {
    pub(super) trial: TrialId,
    time: f64,
    energy: f64,
    metric: f64,
    current_epoch: i128,
}

impl Model for TrainingResult {
    fn read(values: HashMap<String, Value>) -> Result<Self, Vec<Mistake>> {
        let mut of = Fields::new(values);
        let trial = TrialId::of(&mut of);
        let (time, energy) = (of.required("time"), of.required("energy"));
        let (metric, current_epoch) = (of.required("metric"), of.required("current_epoch"));
        let complete = || {
            Some(Self { trial: trial?, time: time?, energy: energy?, metric: metric?, current_epoch: current_epoch? })
        };
        let result = complete();
        let mistakes = of.mistakes(None);
        result.filter(|_| mistakes.is_empty()).ok_or(mistakes)
    }
}

impl TrainingResult {
    pub(super) fn report(&self) -> ZeusReport {
        let bound = if self.current_epoch < 0 { i64::MIN } else { i64::MAX };
        let epoch = i64::try_from(self.current_epoch).unwrap_or(bound);
        ZeusReport { time: self.time, energy: self.energy, metric: self.metric, epoch }
    }
}

impl std::fmt::Display for TrainingResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [time, energy, metric] = [self.time, self.energy, self.metric].map(python::float);
        let Self { trial, current_epoch, .. } = self;
        write!(f, "{trial} time={time} energy={energy} metric={metric} current_epoch={current_epoch}")
    }
}

/// Returns the text of pydantic's error about a model with these wrong fields.
pub(super) fn validation(model: &str, fields: &[&str], what: &str) -> String {
    let errors = if fields.len() == 1 { "error" } else { "errors" };
    let each: String = fields.iter().map(|field| format!("\n{field}\n  {what}")).collect();
    format!("{} validation {errors} for {model}{each}", fields.len())
}
