//! The request that registers a training run.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, de};
use utoipa::ToSchema;

use super::offers::{StartSpec, SuspendSpec};
use super::time::time;
use crate::controller::{Caller, GpuRef, NewJob, NewOffers, NewStart};
use crate::http::extract::{Wire, finite, invalid, optional_object, optional_quantity};
use wattune_core::domain::{
    InvalidJob, JobId, JobKey, JobName, Objective, Pausing, ProcessSelector, SuspendOffer, Work,
};
use wattune_core::units::{GramsCo2e, Samples, Seconds, Watts};

/// A training run to register.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "resnet50", "gpus": [0], "batch_size": 256, "work": {"total_samples": 100_000_000},
    "objective": {"max_slowdown": 0.03}, "lease_s": 60, "tags": {"team": "vision"},
}))]
pub(in crate::http) struct RegisterJob {
    /// The job's name, 1 to 128 characters. Runs with the same name, batch size and GPU models share a profile: the
    /// throughput and power draw at each power limit.
    name: String,
    /// The job's GPUs, by index, UUID or PCI bus id, each once.
    gpus: Vec<GpuSelector>,
    /// The number of samples per training step over all GPUs.
    batch_size: Option<u64>,
    /// The job's total work; absent if unknown.
    #[serde(default, deserialize_with = "optional_object")]
    work: Option<WorkSpec>,
    /// The objective and its constraints; absent or empty means `{"max_slowdown": 0.03}`.
    #[serde(default, deserialize_with = "optional_object")]
    objective: Option<ObjectiveSpec>,
    /// The lease: a job that does not report for this long counts as dead. 1 to 86400 s; the daemon's default if
    /// absent.
    lease_s: Option<f64>,
    /// True to let wattune set the power limits of the job's GPUs. If false, wattune records the job's energy, and
    /// lowers the limits only to meet the cap on the node's power. A GPU on which only other users' processes run is
    /// controlled only for root and those who may control GPUs.
    #[serde(default = "yes")]
    #[schema(default = true)]
    control: bool,
    /// The job's priority when the cap on the node's power requires lower limits: jobs with a lower number get lower
    /// limits first. -1000 to 1000; more than 0 only for root and those who may control GPUs.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(default = 0, minimum = -1000, maximum = 1000)]
    priority: i32,
    /// Labels that the user chooses, at most 16.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schema(default = json!({}))]
    tags: BTreeMap<String, String>,
    /// The job's processes, by process ids of the host; their descendants count too. The processes' CPU time determines
    /// the job's part of the CPU energy, and their use of a GPU the job's part of that GPU's energy if several jobs
    /// share it. At most 256; not together with `cgroup`. Processes of other users are named only by root and those who may
    /// control GPUs; that also holds for `cgroup` and `slurm_job_id`.
    pids: Option<Vec<u32>>,
    /// The id of an open job that this one replaces: that job ends, and this one takes over its GPUs in one step. For a
    /// script that registers its job itself although `wattune run` has registered one for it.
    #[serde(default, deserialize_with = "job_id")]
    #[schema(value_type = Option<String>)]
    replaces: Option<JobId>,
    /// The job's control group (cgroup v2), in place of `pids`, as a path from the root of the cgroup hierarchy.
    #[schema(example = "/system.slice/training.service")]
    cgroup: Option<String>,
    /// The number of a Slurm job (`SLURM_JOB_ID`), in place of `pids`: the job's processes are those that Slurm runs for
    /// it on this machine, also those that it starts later. Such a job need not report: while a process of the Slurm job
    /// runs, its lease is renewed.
    #[schema(minimum = 1)]
    slurm_job_id: Option<u32>,
    /// A key of the job, 1 to 128 characters. If the job's lease expires, because its starter or the machine has died,
    /// the next registration with the same key takes the job up again: it keeps the time of the request, the latest
    /// start and the work done.
    key: Option<String>,
    /// The offer to be held until a start that the daemon chooses; absent if the job starts at once. A held job holds no
    /// GPU and has to renew its lease.
    #[serde(default, deserialize_with = "optional_object")]
    start: Option<StartSpec>,
    /// The offer to be suspended; absent if the job must not be suspended.
    #[serde(default, deserialize_with = "optional_object")]
    suspend: Option<SuspendSpec>,
    /// The number of the user to whom the job belongs, besides the user who registers it: for a scheduler that registers
    /// the jobs of its users. Only root and those who may control GPUs can name another user.
    uid: Option<u32>,
}

/// Reads the id of a job.
fn job_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<JobId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|id| JobId::new(id).map_err(de::Error::custom)).transpose()
}

/// Deserializes a field in which null means the default value, like an absent field.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

const fn yes() -> bool {
    true
}

/// A GPU, by its index at this boot, its UUID or its PCI bus id.
#[derive(Clone, Debug, ToSchema)]
#[serde(untagged)]
pub(in crate::http) enum GpuSelector {
    /// The GPU's index at this boot.
    Index(u32),
    /// The GPU's UUID or PCI bus id.
    Id(String),
}

impl<'de> Deserialize<'de> for GpuSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl de::Visitor<'_> for Either {
            type Value = GpuSelector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the index or the UUID of a GPU")
            }

            fn visit_u64<E: de::Error>(self, index: u64) -> Result<GpuSelector, E> {
                let small = u32::try_from(index);
                small.map(GpuSelector::Index).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(index), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GpuSelector, E> {
                if text.is_empty() {
                    return Err(E::invalid_value(de::Unexpected::Str(text), &self));
                }
                Ok(GpuSelector::Id(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl From<GpuSelector> for GpuRef {
    fn from(name: GpuSelector) -> Self {
        match name {
            GpuSelector::Index(index) => Self::Index(index),
            GpuSelector::Id(text) => Self::parse(&text),
        }
    }
}

/// The total work of a job.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct WorkSpec {
    /// The total number of samples that the job will process; more than 0.
    total_samples: f64,
}

/// The job's objective and constraints, which can be combined.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ObjectiveSpec {
    /// The weight of carbon against time: 1 is carbon alone, 0 is time alone. Default: 1, or 0 if a carbon budget is
    /// the only constraint.
    #[schema(minimum = 0, maximum = 1)]
    eta: Option<f64>,
    /// The maximum increase of the job's duration, compared with running at the maximum usable power limit, as a
    /// fraction: 0.03 is 3 %.
    #[schema(minimum = 0, exclusive_maximum = 1)]
    max_slowdown: Option<f64>,
    /// The time by which the job's work must be done; needs `work.total_samples`.
    #[serde(default, deserialize_with = "time")]
    deadline: Option<DateTime<Utc>>,
    /// The carbon budget: the maximum emissions of all of the job's work, in grams of CO2 equivalent; needs
    /// `work.total_samples`. If the budget is the only constraint and `eta` is absent, the job's duration is minimised
    /// within the budget.
    #[schema(exclusive_minimum = 0)]
    carbon_budget_g: Option<f64>,
    /// The weight of the electricity price against carbon: 0 is carbon alone (the default), 1 the price alone. Needs a
    /// price source.
    #[schema(minimum = 0, maximum = 1)]
    price_weight: Option<f64>,
    /// The permission to ask the job to pause: true, or an object with the costs of a pause. No pauses by default.
    pausable: Option<Pausable>,
}

/// The permission to ask a job to pause, with the costs of a pause.
#[derive(Clone, Copy, Debug, ToSchema)]
#[serde(untagged)]
pub(in crate::http) enum Pausable {
    /// `true` permits pauses at the default costs; `false` permits none.
    Allowed(bool),
    /// Permits pauses at these costs.
    At(PausingCosts),
}

/// The costs of a pause of the job.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct PausingCosts {
    /// The power draw of all of the job's GPUs together during a pause; 50 W per GPU by default.
    #[schema(minimum = 0)]
    idle_power_w: Option<f64>,
    /// The minimum running time between two pauses; 1800 s by default.
    #[schema(minimum = 0, maximum = 86_400)]
    min_run_s: Option<f64>,
    /// The minimum duration of a pause; 1800 s by default.
    #[schema(minimum = 0, maximum = 86_400)]
    min_pause_s: Option<f64>,
    /// The time that each pause costs for saving and loading a checkpoint, in which the job draws its running power but
    /// does no work; 120 s by default.
    #[schema(minimum = 0, maximum = 86_400)]
    checkpoint_s: Option<f64>,
}

impl<'de> Deserialize<'de> for Pausable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = Pausable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or an object")
            }

            fn visit_bool<E: de::Error>(self, allowed: bool) -> Result<Pausable, E> {
                Ok(Pausable::Allowed(allowed))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Pausable, A::Error> {
                PausingCosts::deserialize(de::value::MapAccessDeserializer::new(map)).map(Pausable::At)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Pausable {
    /// Returns the costs of a pause for a job on this number of GPUs, absent costs replaced by the defaults; `None` if
    /// the job must not be asked to pause.
    fn on(self, gpus: usize) -> Result<Option<Pausing>, InvalidJob> {
        let usual = Pausing::default_for(gpus);
        let PausingCosts { idle_power_w, min_run_s, min_pause_s, checkpoint_s } = match self {
            Self::Allowed(false) => return Ok(None),
            Self::Allowed(true) => return Ok(Some(usual)),
            Self::At(costs) => costs,
        };
        let seconds = |field, given| optional_quantity(field, given, Seconds::try_new);
        let idle_power = optional_quantity("objective.pausable.idle_power_w", idle_power_w, Watts::try_new)?;
        Ok(Some(Pausing {
            idle_power: idle_power.unwrap_or(usual.idle_power),
            min_run: seconds("objective.pausable.min_run_s", min_run_s)?.unwrap_or(usual.min_run),
            min_pause: seconds("objective.pausable.min_pause_s", min_pause_s)?.unwrap_or(usual.min_pause),
            checkpoint: seconds("objective.pausable.checkpoint_s", checkpoint_s)?.unwrap_or(usual.checkpoint),
        }))
    }
}

impl ObjectiveSpec {
    /// Returns the checked objective of a job on this number of GPUs.
    fn on(self, gpus: usize) -> Result<Objective, InvalidJob> {
        let budget = optional_quantity("objective.carbon_budget_g", self.carbon_budget_g, GramsCo2e::try_new)?;
        let asked = Objective {
            max_slowdown: self.max_slowdown,
            deadline: self.deadline,
            carbon_budget: budget,
            price_weight: self.price_weight.unwrap_or(0.0),
            pausable: self.pausable.map_or(Ok(None), |p| p.on(gpus))?,
            ..Objective::UNBOUND
        };
        Objective::new(self.eta, asked)
    }
}

impl Wire for RegisterJob {
    const HINTS: &'static [(&'static str, &'static str)] = &[
        ("name", "give a text of 1 to 128 characters"),
        ("gpus", "give a list of indexes or UUIDs, such as [0, \"GPU-3f…\"], see GET /v1/gpus"),
        ("batch_size", "give the whole number of samples per step, more than 0, or leave it out"),
        ("work", "give {\"total_samples\": N}, or leave it out if the work is unknown"),
        ("work.total_samples", "give the number of samples in all, more than 0"),
        (
            "objective",
            "give an object with any of eta, max_slowdown, deadline, carbon_budget_g, price_weight and pausable",
        ),
        ("objective.eta", "give a number from 0 (time alone) to 1 (carbon alone)"),
        ("objective.max_slowdown", "give a fraction of the job's time: 0.03 allows 3 % more"),
        ("objective.deadline", "give a time in RFC 3339, such as \"2026-11-21T18:00:00Z\""),
        ("objective.carbon_budget_g", "give grams of CO2 equivalent for all of the work, more than 0"),
        ("objective.price_weight", "give a number from 0 (carbon alone) to 1 (price alone)"),
        (
            "objective.pausable",
            "give true, false, or an object with any of idle_power_w, min_run_s, min_pause_s and checkpoint_s",
        ),
        ("objective.pausable.idle_power_w", "give the watts of all of the job's GPUs together during a pause"),
        ("objective.pausable.min_run_s", "give seconds, from 0 to 86400"),
        ("objective.pausable.min_pause_s", "give seconds, from 0 to 86400"),
        ("objective.pausable.checkpoint_s", "give seconds, from 0 to 86400"),
        ("lease_s", "give seconds, from 1 to 86400"),
        ("control", "give true or false"),
        ("priority", "give a whole number from -1000 to 1000; higher is more important"),
        ("tags", "give an object of texts, such as {\"team\": \"vision\"}"),
        ("pids", "give a list of process numbers, such as [4711], or leave it out"),
        ("replaces", "give the job_id of an open job, or leave it out"),
        ("cgroup", "give the path of a control group, such as \"/system.slice/training.service\", or leave it out"),
        ("key", "give a text of 1 to 128 visible characters, or leave it out"),
        (
            "start",
            "give an object with within_s or latest, and any of duration_s, power_w, min_gain, max_loss_probability and \
             idle_power_w",
        ),
        ("start.within_s", "give seconds from now"),
        ("start.latest", "give a time in RFC 3339, such as \"2026-11-21T18:00:00Z\""),
        ("start.duration_s", "give the expected duration in seconds"),
        ("start.power_w", "give the watts of all of the job's GPUs together"),
        ("start.min_gain", "give a fraction: 0.02 waits only for 2 % or more"),
        ("start.max_loss_probability", "give a number from 0 to 1"),
        ("start.idle_power_w", "give the watts of all of the job's GPUs together while they are reserved"),
        ("suspend", "give an object with any of signal, checkpoint_s, restart_s and idle_power_w; {} for the defaults"),
        ("suspend.signal", "give the name of a signal, such as \"SIGTERM\""),
        ("suspend.checkpoint_s", "give seconds, from 0 to 86400"),
        ("suspend.restart_s", "give seconds, from 0 to 86400"),
        ("suspend.idle_power_w", "give the watts of all of the job's GPUs together while they are reserved"),
        ("slurm_job_id", "give the number of a Slurm job, the value of SLURM_JOB_ID, or leave it out"),
    ];
}

impl RegisterJob {
    /// Returns the request of this caller.
    pub(super) fn asked_by(self, by: Caller) -> Result<NewJob, InvalidJob> {
        let wire = self;
        let name =
            JobName::new(wire.name).and_then(JobName::require_visible).map_err(|e| invalid("name", e.to_string()))?;
        let work = match wire.work {
            Some(work) => Work::TotalSamples(finite("work.total_samples", Samples::try_new(work.total_samples))?),
            None => Work::Unknown,
        };
        let wishes = wire.objective.unwrap_or_default();
        let processes = ProcessSelector::new(wire.pids, wire.cgroup, wire.slurm_job_id)?;
        let lease = optional_quantity("lease_s", wire.lease_s, Seconds::try_new)?;
        Ok(NewJob {
            name,
            objective: wishes.on(wire.gpus.len())?,
            gpus: wire.gpus.into_iter().map(GpuRef::from).collect(),
            batch_size: wire.batch_size,
            work,
            lease,
            control: wire.control,
            priority: wire.priority,
            tags: wire.tags,
            processes,
            replaces: wire.replaces,
            offers: NewOffers {
                key: wire.key.map(|key| JobKey::new(key).map_err(|e| invalid("key", e.to_string()))).transpose()?,
                start: wire.start.map(NewStart::try_from).transpose()?,
                suspend: wire.suspend.map(SuspendOffer::try_from).transpose()?,
            },
            by,
            user: wire.uid,
        })
    }
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
