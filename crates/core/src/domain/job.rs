//! A training job as registered by its user.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{GpuId, InvalidJob, JobName, Objective, Offers, Processes, first_invisible, is_visible, legible};
use crate::units::{Samples, Seconds, Short, Watts};

/// Upper bound of the idle power of one GPU.
const MOST_IDLE_EACH: Watts = Watts::new(1e3);

/// Amount of work of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The job has this many samples in total.
    TotalSamples(Samples),
    /// The amount is unknown; the job is planned over a window that moves forward with time.
    Unknown,
}

/// A training job as registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name that the user gave to the job; recurring runs share it.
    pub name: JobName,
    /// GPUs that the job trains on, in the job's order, without duplicates.
    pub gpus: Vec<GpuId>,
    /// Samples per step over all GPUs of the job; part of the key by which profiles are stored. `None` if unknown.
    pub batch_size: Option<u64>,
    /// Amount of work of the job.
    pub work: Work,
    /// Objective and constraints of the job.
    pub objective: Objective,
    /// Lease: time since the job's last report after which the job counts as dead.
    pub lease: Seconds,
    /// True if wattune may set the limits of the job's GPUs; otherwise it only records energy and emissions.
    pub control: bool,
    /// Priority of the job under a power cap: the limits of jobs with lower numbers are lowered first.
    #[serde(default)]
    pub priority: i32,
    /// Labels that the user gave to the job.
    pub tags: BTreeMap<String, String>,
    /// Processes of the job, by which CPU energy and the energy of shared GPUs are divided; absent if not registered.
    #[serde(default)]
    pub processes: Option<Processes>,
    /// Offers of the job: to start later, to be suspended, and to be continued by a later job with the same key.
    #[serde(default, skip_serializing_if = "Offers::is_empty")]
    pub offers: Offers,
}

/// Maximum number of samples. A larger number is a mistake, and sums could become infinite.
pub const MOST_SAMPLES: f64 = 1e15;

impl JobSpec {
    /// Valid leases (see [`Self::lease`]) in seconds: shorter ones would end live jobs, longer ones would keep the
    /// limits of dead jobs.
    pub const LEASE_RANGE_S: std::ops::RangeInclusive<f64> = 1.0..=86_400.0;

    /// Maximum number of tags.
    pub const MOST_TAGS: usize = 16;

    /// Valid values of [`Self::priority`].
    pub const PRIORITIES: std::ops::RangeInclusive<i32> = -1000..=1000;

    /// Checks ranges and combinations of fields that the types cannot express.
    ///
    /// # Errors
    /// Returns the first invalid field, with what would be right.
    pub fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        if self.gpus.is_empty() {
            return invalid("gpus", "names no GPU; give at least one index or UUID, see GET /v1/gpus".into());
        }
        if let Some(twice) = self.gpus.iter().enumerate().find(|(i, g)| self.gpus[..*i].contains(g)) {
            return invalid("gpus", format!("names {} twice", twice.1));
        }
        if self.batch_size == Some(0) {
            return invalid("batch_size", "is 0; give the number of samples per step, or leave it out".into());
        }
        if let Work::TotalSamples(total) = self.work
            && total <= Samples::ZERO
        {
            return invalid("work.total_samples", format!("is {}; it must be more than 0", Short(total.get())));
        }
        if let Work::TotalSamples(total) = self.work
            && total.get() > MOST_SAMPLES
        {
            let why =
                format!("is {:e}; it must be at most {MOST_SAMPLES:e}; leave work out if it is unknown", total.get());
            return invalid("work.total_samples", why);
        }
        if !Self::LEASE_RANGE_S.contains(&self.lease.get()) {
            return invalid("lease_s", format!("is {}; it must be from 1 to 86400 seconds", Short(self.lease.get())));
        }
        if self.work == Work::Unknown
            && let Some(promise) = self.objective.promises().find(|promise| promise.needs_known_work())
        {
            return invalid(promise.field(), "needs known work; give work.total_samples too".into());
        }
        let idle_power = self.objective.pausable.map_or(Watts::ZERO, |pausing| pausing.idle_power);
        #[expect(clippy::cast_precision_loss, reason = "a node has few GPUs")]
        let most = MOST_IDLE_EACH * self.gpus.len() as f64;
        if idle_power > most {
            let why = format!(
                "is {}, but {} idle GPU(s) draw at most {} watts: was it given in milliwatts?",
                Short(idle_power.get()),
                self.gpus.len(),
                most.get()
            );
            return invalid("objective.pausable.idle_power_w", why);
        }
        self.offers.check(self.objective.bounds_time(), self.control)?;
        if !Self::PRIORITIES.contains(&self.priority) {
            let why = format!("is {}; it must be from -1000 to 1000; higher is more important", self.priority);
            return invalid("priority", why);
        }
        if self.tags.len() > Self::MOST_TAGS
            || self.tags.iter().any(|(k, v)| k.is_empty() || k.len() > 64 || v.len() > 256)
        {
            let why = "at most 16 tags, with keys of 1 to 64 and values of up to 256 bytes".into();
            return invalid("tags", why);
        }
        for (key, value) in &self.tags {
            for (what, text) in [("the key", key), ("the value", value)] {
                if let Some(odd) = first_invisible(text) {
                    let why = format!(
                        "{what} of {key:?} has the character {odd}; control characters, invisible ones and those that change \
                         the direction of text are not allowed"
                    );
                    return invalid("tags", why);
                }
                if !text.is_empty() && !is_visible(text) {
                    let why = format!("{what} of {:?} has no visible character", legible(key));
                    return invalid("tags", why);
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_must_be_readable() {
        let check = |key: &str, value: &str| {
            let spec = JobSpec {
                name: JobName::new("a").expect("a name"),
                gpus: vec![GpuId::new("GPU-0").expect("an id")],
                batch_size: None,
                work: Work::Unknown,
                objective: Objective::slower_by(0.03).expect("right"),
                lease: Seconds::new(60.0),
                control: true,
                priority: 0,
                tags: BTreeMap::from([(key.to_owned(), value.to_owned())]),
                processes: None,
                offers: Default::default(),
            };
            spec.check()
        };
        assert!(check("team", "vision – größe 訓練 👍").is_ok());
        for odd in ["\n", "\r", "\t", "\u{1b}", "\0", "\u{85}", "\u{202e}", "\u{200b}", "\u{2029}"] {
            for (key, value, of) in [("team", format!("a{odd}b"), "value"), (&*format!("a{odd}"), "b".into(), "key")] {
                let error = check(key, &value).expect_err("refused").to_string();
                let named = format!("U+{:04X}", u32::from(odd.chars().next().expect("one")));
                assert!(error.starts_with(&format!("tags: the {of} of ")) && error.contains(&named), "{error}");
                assert!(!error.contains(odd), "{error:?}");
            }
        }
    }
}
