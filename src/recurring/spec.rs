//! A recurring job as its owner writes it, and is shown it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use wattune_core::bandit::{Boards, InvalidSpec, Knob, PolicyName, Reward, Spec, Target, Terms};
use wattune_core::domain::{check_intensity, check_power};
use wattune_core::units::{GramsPerKwh, Seconds, Short, Watts};

/// The most samples in a batch.
const LARGEST_BATCH: u64 = 1 << 40;

/// What a recurring job is, and how its batch sizes are to be chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "batch_sizes": [32, 64, 128, 256], "default_batch_size": 128, "max_epochs": 100, "target_metric": 0.6,
    "max_power_w": 300,
}))]
pub struct RecurringSpec {
    /// The batch sizes to choose from, each once; at most 100.
    pub batch_sizes: Vec<u64>,
    /// What the first trial takes; one of them.
    pub default_batch_size: u64,
    /// A trial that has not reached its target by then is given up.
    #[schema(minimum = 1)]
    pub max_epochs: u32,
    /// The metric that a trial is to reach.
    pub target_metric: f64,
    /// Whether more of the metric is better.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub higher_is_better: bool,
    /// What the boards of a trial may draw at the most, together: up to 5,000 W each, or 50,000 W where `gpu_model` is absent.
    #[schema(minimum = 10)]
    pub max_power_w: f64,
    /// From 0, where time alone counts, to 1, where energy (or carbon) alone does.
    #[serde(default = "half")]
    #[schema(default = 0.5, minimum = 0, maximum = 1)]
    pub eta: f64,
    /// What counts beside time.
    #[serde(default)]
    #[schema(default = "energy")]
    pub objective: RecurringObjective,
    /// With the objective carbon: the intensity that stands for all runs, so that a dirty week does not look like a bad
    /// batch size.
    #[serde(default)]
    pub reference_g_per_kwh: Option<f64>,
    /// A trial is given up when it costs more than this multiple of the cheapest that reached its target; above 1. With
    /// null, trials are given up only after `max_epochs`.
    #[serde(default = "two")]
    #[schema(default = 2.0, exclusive_minimum = 1, maximum = 1_000_000)]
    pub beta: Option<f64>,
    /// How many of its newest trials count for a batch size; 0 for all. Only with the policy zeus.
    #[serde(default)]
    #[schema(default = 0)]
    pub window: u32,
    /// Who chooses.
    #[serde(default)]
    #[schema(default = "wattune")]
    pub policy: RecurringPolicy,
    /// What the generator starts from, so that choices can be had again; any number if null.
    #[serde(default)]
    pub seed: Option<u64>,
    /// How long after its last word a trial is taken for dead. 1 to 604800 s; longer than its longest epoch.
    #[serde(default = "an_hour")]
    #[schema(default = 3600, minimum = 1, maximum = 604_800)]
    pub lease_s: f64,
    /// The model of its boards as `GET /v1/gpus` has it: trials are then told the best limit that earlier runs of this
    /// name and batch size have found.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// How many boards a trial trains on.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 1024)]
    pub number_of_gpus: u32,
}

/// What counts beside time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringObjective {
    /// Energy.
    #[default]
    Energy,
    /// Carbon at the reference intensity.
    Carbon,
}

/// Who chooses batch sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringPolicy {
    /// The published algorithm: pruning, then Thompson sampling.
    Zeus,
    /// The same aim with less exploration.
    #[default]
    Wattune,
}

const fn yes() -> bool {
    true
}

const fn half() -> f64 {
    0.5
}

#[expect(clippy::unnecessary_wraps, reason = "the field's type")]
const fn two() -> Option<f64> {
    Some(2.0)
}

const fn an_hour() -> f64 {
    3600.0
}

const fn one() -> u32 {
    1
}

impl RecurringSpec {
    /// The first field in which another differs.
    pub fn differs_in(&self, other: &Self) -> Option<&'static str> {
        let table = [
            ("batch_sizes", self.batch_sizes != other.batch_sizes),
            ("default_batch_size", self.default_batch_size != other.default_batch_size),
            ("max_epochs", self.max_epochs != other.max_epochs),
            ("target_metric", self.target_metric != other.target_metric),
            ("higher_is_better", self.higher_is_better != other.higher_is_better),
            ("max_power_w", self.max_power_w != other.max_power_w),
            ("eta", self.eta != other.eta),
            ("objective", self.objective != other.objective),
            ("reference_g_per_kwh", self.reference_g_per_kwh != other.reference_g_per_kwh),
            ("beta", self.beta != other.beta),
            ("window", self.window != other.window),
            ("policy", self.policy != other.policy),
            ("seed", self.seed != other.seed),
            ("lease_s", self.lease_s != other.lease_s),
            ("gpu_model", self.gpu_model != other.gpu_model),
            ("number_of_gpus", self.number_of_gpus != other.number_of_gpus),
        ];
        table.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
    }
}

impl TryFrom<RecurringSpec> for Terms {
    type Error = InvalidSpec;

    fn try_from(wire: RecurringSpec) -> Result<Self, InvalidSpec> {
        let invalid = |field, why: &str| InvalidSpec { field, why: why.to_owned() };
        let not_finite = |field| invalid(field, "is not a finite number");
        if let Some(large) = wire.batch_sizes.iter().find(|b| **b > LARGEST_BATCH) {
            return Err(invalid("batch_sizes", &format!("contains {large}; give at most {LARGEST_BATCH} samples")));
        }
        let reward = match (wire.objective, wire.reference_g_per_kwh) {
            (RecurringObjective::Energy, None) => Reward::Energy,
            (RecurringObjective::Energy, Some(_)) => {
                return Err(invalid("reference_g_per_kwh", "is for the objective carbon alone; leave it out"));
            }
            (RecurringObjective::Carbon, None) => {
                let why = "is missing; the objective carbon needs the intensity that stands for all runs, such as 400";
                return Err(invalid("reference_g_per_kwh", why));
            }
            (RecurringObjective::Carbon, Some(given)) => {
                let reference = GramsPerKwh::try_new(given).ok_or_else(|| not_finite("reference_g_per_kwh"))?;
                check_intensity(reference).map_err(|why| invalid("reference_g_per_kwh", &format!("is {why}")))?;
                Reward::Carbon { reference }
            }
        };
        let max_power = Watts::try_new(wire.max_power_w).ok_or_else(|| not_finite("max_power_w"))?;
        check_max_power(max_power, wire.gpu_model.as_ref().map(|_| wire.number_of_gpus))?;
        let boards = |model| Boards { model, count: wire.number_of_gpus };
        if wire.gpu_model.is_none() && wire.number_of_gpus != 1 {
            return Err(invalid("number_of_gpus", "goes with gpu_model; give both or none"));
        }
        Self {
            spec: Spec {
                batch_sizes: wire.batch_sizes,
                default_batch_size: wire.default_batch_size,
                max_epochs: wire.max_epochs,
                knob: Knob { eta: wire.eta, max_power },
                beta: wire.beta,
                window: wire.window,
                policy: match wire.policy {
                    RecurringPolicy::Zeus => PolicyName::Zeus,
                    RecurringPolicy::Wattune => PolicyName::Wattune,
                },
            },
            target: Target { metric: wire.target_metric, higher_is_better: wire.higher_is_better },
            lease: Seconds::try_new(wire.lease_s).ok_or_else(|| not_finite("lease_s"))?,
            reward,
            boards: wire.gpu_model.map(boards),
            seed: wire.seed,
        }
        .checked()
    }
}

/// Every GPU draws more: what lies below was given in kilowatts.
const LEAST_POWER: Watts = Watts::new(10.0);

/// Checks that the power of so many GPUs, if that is known, was given in watts.
fn check_max_power(max_power: Watts, gpus: Option<u32>) -> Result<(), InvalidSpec> {
    let why = if max_power < LEAST_POWER {
        let meant = if max_power > Watts::ZERO { "; was it given in kilowatts?" } else { "" };
        let least = LEAST_POWER.get();
        format!("is {}; any GPU draws more than {least} watts{meant}", Short(max_power.get()))
    } else if let Err(why) = check_power(max_power, gpus) {
        format!("is {why}")
    } else {
        return Ok(());
    };
    Err(InvalidSpec { field: "max_power_w", why })
}

impl From<&Terms> for RecurringSpec {
    fn from(terms: &Terms) -> Self {
        let spec = &terms.spec;
        Self {
            batch_sizes: spec.batch_sizes.clone(),
            default_batch_size: spec.default_batch_size,
            max_epochs: spec.max_epochs,
            target_metric: terms.target.metric,
            higher_is_better: terms.target.higher_is_better,
            max_power_w: spec.knob.max_power.get(),
            eta: spec.knob.eta,
            objective: match terms.reward {
                Reward::Energy => RecurringObjective::Energy,
                Reward::Carbon { .. } => RecurringObjective::Carbon,
            },
            reference_g_per_kwh: match terms.reward {
                Reward::Energy => None,
                Reward::Carbon { reference } => Some(reference.get()),
            },
            beta: spec.beta,
            window: spec.window,
            policy: match spec.policy {
                PolicyName::Zeus => RecurringPolicy::Zeus,
                PolicyName::Wattune => RecurringPolicy::Wattune,
            },
            seed: terms.seed,
            lease_s: terms.lease.get(),
            gpu_model: terms.boards.as_ref().map(|b| b.model.clone()),
            number_of_gpus: terms.boards.as_ref().map_or(1, |b| b.count),
        }
    }
}
