//! Specification of a recurring job, as clients write and read it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use wattune_core::bandit::{GpuSet, InvalidSpec, Knob, PolicyName, Reward, Spec, Target, Terms, ZeusSpec};
use wattune_core::domain::{check_intensity, check_power};
use wattune_core::units::{GramsPerKwh, Seconds, Short, Watts};

/// Maximum number of samples in a batch.
const LARGEST_BATCH: u64 = 1 << 40;

/// Specification of a recurring job: its batch sizes, its target, and the policy that chooses among the batch sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "batch_sizes": [32, 64, 128, 256], "default_batch_size": 128, "max_epochs": 100, "target_metric": 0.6,
    "max_power_w": 300,
}))]
pub struct RecurringSpec {
    /// Batch sizes to choose from, without duplicates; at most 100.
    pub batch_sizes: Vec<u64>,
    /// Batch size of the first trial; one of `batch_sizes`.
    pub default_batch_size: u64,
    /// Maximum number of epochs: a trial that has not reached its target after that number ends.
    #[schema(minimum = 1)]
    pub max_epochs: u32,
    /// Target value of the metric.
    pub target_metric: f64,
    /// True if a higher metric is better.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub higher_is_better: bool,
    /// Maximum total power of a trial's GPUs: up to 5,000 W each, or 50,000 W in total where `gpu_model` is absent.
    #[schema(minimum = 10)]
    pub max_power_w: f64,
    /// Weight of energy (or carbon) relative to time: 0 minimises time only, 1 energy only.
    #[serde(default = "half")]
    #[schema(default = 0.5, minimum = 0, maximum = 1)]
    pub eta: f64,
    /// Quantity that the policy minimises besides time.
    #[serde(default)]
    #[schema(default = "energy")]
    pub objective: RecurringObjective,
    /// Reference carbon intensity for all runs; required with the objective carbon. Because it is constant, a week with
    /// a high intensity does not distort the comparison of batch sizes.
    #[serde(default)]
    pub reference_g_per_kwh: Option<f64>,
    /// Cost limit of a trial; above 1. With the policy zeus, a multiple of the cost of the cheapest trial that reached
    /// its target; with wattune, of the expected cost of the best batch size. With null, trials stop only at
    /// `max_epochs`.
    #[serde(default = "two")]
    #[schema(default = 2.0, exclusive_minimum = 1, maximum = 1_000_000)]
    pub beta: Option<f64>,
    /// Number of newest trials per batch size that the policy uses; 0 for all. Only with the policy zeus.
    #[serde(default)]
    #[schema(default = 0)]
    pub window: u32,
    /// Policy that chooses batch sizes.
    #[serde(default)]
    #[schema(default = "wattune")]
    pub policy: RecurringPolicy,
    /// Seed of the random generator, for reproducible choices; if null, the daemon draws one.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Time after its last report at which a trial counts as lost. 1 to 604800 s; must exceed the longest epoch.
    #[serde(default = "an_hour")]
    #[schema(default = 3600, minimum = 1, maximum = 604_800)]
    pub lease_s: f64,
    /// GPU model as in `GET /v1/gpus`. If given, trials receive the best power limit that earlier runs with this name
    /// and batch size found.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Number of GPUs of a trial.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 1024)]
    pub number_of_gpus: u32,
    /// Specification of the Zeus client that registered the job, as in Zeus's `POST /jobs`; the other fields follow from
    /// it. Only in exports and imports of such a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    pub zeus: Option<ZeusSpec>,
}

/// Quantity that the policy minimises besides time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringObjective {
    /// The policy minimises the energy of the trial's GPUs.
    #[default]
    Energy,
    /// The policy minimises the emissions of the trial's GPUs at the reference intensity.
    Carbon,
}

/// Policy that chooses batch sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringPolicy {
    /// Published algorithm of Zeus: pruning of batch sizes, then Thompson sampling.
    Zeus,
    /// wattune's policy: the same objective as Zeus, with less exploration.
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
    /// Returns the name of one field that differs between the two specifications; `None` if they are equal.
    pub fn differs_in(&self, other: &Self) -> Option<String> {
        let fields = |spec: &Self| serde_json::to_value(spec).ok()?.as_object().cloned();
        let (own, others) = (fields(self)?, fields(other)?);
        own.into_iter().find(|(field, value)| others.get(field) != Some(value)).map(|(field, _)| field)
    }
}

impl TryFrom<RecurringSpec> for Terms {
    type Error = InvalidSpec;

    fn try_from(wire: RecurringSpec) -> Result<Self, InvalidSpec> {
        let invalid = |field, why: &str| InvalidSpec { field, why: why.to_owned() };
        if let Some(zeus) = wire.zeus.clone() {
            let lease = Seconds::try_new(wire.lease_s).unwrap_or(Self::LONGEST_LEASE).min(Self::LONGEST_LEASE);
            let terms = zeus.terms(lease)?;
            let field = RecurringSpec::from(&terms).differs_in(&wire);
            return match field {
                None => Ok(terms),
                Some(field) => Err(invalid("zeus", &format!("contradicts {field}; give the document as exported"))),
            };
        }
        let not_finite = |field| invalid(field, "is not a finite number");
        if let Some(large) = wire.batch_sizes.iter().find(|b| **b > LARGEST_BATCH) {
            return Err(invalid("batch_sizes", &format!("contains {large}; give at most {LARGEST_BATCH} samples")));
        }
        let reward = match (wire.objective, wire.reference_g_per_kwh) {
            (RecurringObjective::Energy, None) => Reward::Energy,
            (RecurringObjective::Energy, Some(_)) => {
                return Err(invalid("reference_g_per_kwh", "applies to the objective carbon only; omit it"));
            }
            (RecurringObjective::Carbon, None) => {
                let why = "is missing; the objective carbon needs a reference intensity for all runs, such as 400";
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
        let gpu_set = |model| GpuSet { model, count: wire.number_of_gpus };
        if wire.gpu_model.is_none() && wire.number_of_gpus != 1 {
            return Err(invalid("number_of_gpus", "requires gpu_model; give both or none"));
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
                zeus: None,
            },
            target: Target { metric: wire.target_metric, higher_is_better: wire.higher_is_better },
            lease: Seconds::try_new(wire.lease_s).ok_or_else(|| not_finite("lease_s"))?,
            reward,
            gpus: wire.gpu_model.map(gpu_set),
            seed: wire.seed,
        }
        .checked()
    }
}

/// Minimum plausible power: any GPU draws more, so that a lower value was probably given in kilowatts.
const MIN_POWER: Watts = Watts::new(10.0);

/// Checks that the maximum power of a trial is plausible in watts. `gpus` is the trial's number of GPUs, if it is
/// known.
fn check_max_power(max_power: Watts, gpus: Option<u32>) -> Result<(), InvalidSpec> {
    let why = if max_power < MIN_POWER {
        let meant = if max_power > Watts::ZERO { "; was it given in kilowatts?" } else { "" };
        let least = MIN_POWER.get();
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
            gpu_model: terms.gpus.as_ref().map(|b| b.model.clone()),
            number_of_gpus: terms.gpus.as_ref().map_or(1, |b| b.count),
            zeus: spec.zeus.as_deref().cloned(),
        }
    }
}
