//! Offers of a job: to start later, to be suspended, and to be continued by a later job with the same key.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{InvalidJob, JobId, JobKey};
use crate::units::{GramsCo2e, Samples, Seconds, Short, Watts};

/// Longest time that a job may offer to wait for its start, and the longest expected duration: a year.
const LONGEST: Seconds = Seconds::new(366.0 * 86_400.0);
/// Maximum length of the name of a signal.
const LONGEST_SIGNAL: usize = 32;

/// Offers that a job makes at its registration. A job without offers runs from its registration to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offers {
    /// Key by which a later registration continues a job that has lost its lease; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<JobKey>,
    /// Offer to be held until a start that the daemon chooses; absent if the job starts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartOffer>,
    /// Offer to be suspended; absent if the job must not be suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<SuspendOffer>,
    /// Earlier job with the same key, which this job continues; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continuation>,
}

/// Earlier job that a later job with the same key continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// Earlier job.
    pub job: JobId,
    /// Time at which the first job with the key was requested.
    pub asked_at: DateTime<Utc>,
    /// Samples that the earlier jobs with the key completed.
    pub done: Samples,
    /// Emissions of the earlier jobs' GPUs, which count against a carbon budget of all of the work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub emitted: GramsCo2e,
    /// First job with the key; absent if that is `job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<JobId>,
}

impl Continuation {
    /// Returns the first job with the key. All later jobs with the key are parts of it.
    pub fn first(&self) -> &JobId {
        self.first.as_ref().unwrap_or(&self.job)
    }
}

/// Offer of a job to be held until a start that the daemon chooses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartOffer {
    /// Time by which the job starts at the latest.
    pub latest: DateTime<Utc>,
    /// Expected duration at the original power limits; absent if the job's stored profile determines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Seconds>,
    /// Expected power of the job's GPUs together; absent if the job's stored profile determines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Watts>,
    /// Minimum expected saving for which the job waits, as a fraction; absent for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gain: Option<f64>,
    /// Maximum probability with which waiting may cause more emissions than starting at once; absent for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loss_probability: Option<f64>,
    /// Power of the job's GPUs together while they are reserved for the job before its start; zero if they are not
    /// reserved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_power: Watts,
}

/// Offer of a job to save a checkpoint and exit when it is asked to, and to be started again later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuspendOffer {
    /// Name of the signal with which the program that started the job (such as `wattune run`) asks the job to save a
    /// checkpoint and exit. The daemon stores the name and reports it; the daemon itself sends no signal to any
    /// process.
    pub signal: String,
    /// Expected time from the request to suspend until the job has saved and exited.
    pub checkpoint: Seconds,
    /// Expected time from the job's restart until it makes progress again.
    pub restart: Seconds,
    /// Power of the job's GPUs together while they are reserved for the suspended job; zero if they are not reserved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_power: Watts,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for SuspendOffer {
    fn default() -> Self {
        Self {
            signal: "SIGTERM".into(),
            checkpoint: Seconds::new(120.0),
            restart: Seconds::new(180.0),
            idle_power: Watts::ZERO,
        }
    }
}

impl Offers {
    /// Returns true if the job offers nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the ranges of all values. `bounds_time` is true if the job's objective has a promise about time.
    ///
    /// # Errors
    /// Returns the first invalid field, with what would be right.
    pub fn check(&self, bounds_time: bool, control: bool) -> Result<(), InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        if let Some(start) = &self.start {
            if start.duration.is_some_and(|d| !(Seconds::new(1.0)..=LONGEST).contains(&d)) {
                return invalid("start.duration_s", "must be from 1 second to 366 days".into());
            }
            if start.power.is_some_and(|p| !(Watts::new(1.0)..=Watts::new(1e6)).contains(&p)) {
                return invalid("start.power_w", "must be from 1 to 1000000 watts".into());
            }
            if let Some(gain) = start.min_gain.filter(|gain| !(0.0..1.0).contains(gain)) {
                let why = format!("is {}; it is a fraction: 0.02 waits only for 2 % or more", Short(gain));
                return invalid("start.min_gain", why);
            }
            if let Some(most) = start.max_loss_probability.filter(|most| !(0.0..=1.0).contains(most)) {
                return invalid("start.max_loss_probability", format!("is {}; it must be from 0 to 1", Short(most)));
            }
            check_idle("start.idle_power_w", start.idle_power)?;
        }
        let Some(suspend) = &self.suspend else { return Ok(()) };
        for (field, time) in [("suspend.checkpoint_s", suspend.checkpoint), ("suspend.restart_s", suspend.restart)] {
            if !(0.0..=86_400.0).contains(&time.get()) {
                return invalid(field, format!("is {}; it must be from 0 to 86400 seconds", Short(time.get())));
            }
        }
        check_idle("suspend.idle_power_w", suspend.idle_power)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-');
        if suspend.signal.is_empty() || suspend.signal.len() > LONGEST_SIGNAL || !suspend.signal.chars().all(is_plain) {
            return invalid(
                "suspend.signal",
                "must be the name of a signal, such as \"SIGTERM\" or \"SIGUSR1\"".into(),
            );
        }
        if !bounds_time {
            let why = "needs max_slowdown or a deadline in the objective: without one a job could wait for ever".into();
            return invalid("suspend", why);
        }
        if !control {
            return invalid("suspend", "needs \"control\": true: only a planned job is suspended".into());
        }
        Ok(())
    }
}

fn check_idle(field: &'static str, power: Watts) -> Result<(), InvalidJob> {
    match (Watts::ZERO..=Watts::new(1e5)).contains(&power) {
        true => Ok(()),
        false => {
            let why = format!("is {}; it must be from 0 to 100000 watts", Short(power.get()));
            Err(InvalidJob { field, why })
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn ranges_are_checked() {
        let start = StartOffer {
            latest: DateTime::UNIX_EPOCH + TimeDelta::hours(3),
            duration: None,
            power: None,
            min_gain: None,
            max_loss_probability: None,
            idle_power: Watts::ZERO,
        };
        let with = |start| Offers { start: Some(start), ..Offers::default() };
        let stop = |suspend| Offers { suspend: Some(suspend), ..Offers::default() };
        let day = Seconds::new(86_400.0);
        let usual = SuspendOffer::default();
        let table = [
            (with(start), true, None),
            (with(StartOffer { duration: Some(Seconds::ZERO), ..start }), true, Some("start.duration_s")),
            (with(StartOffer { duration: Some(day * 400.0), ..start }), true, Some("start.duration_s")),
            (with(StartOffer { power: Some(Watts::ZERO), ..start }), true, Some("start.power_w")),
            (with(StartOffer { min_gain: Some(2.0), ..start }), true, Some("start.min_gain")),
            (with(StartOffer { max_loss_probability: Some(30.0), ..start }), true, Some("start.max_loss_probability")),
            (with(StartOffer { idle_power: Watts::new(-1.0), ..start }), true, Some("start.idle_power_w")),
            (stop(usual.clone()), true, None),
            (stop(usual.clone()), false, Some("suspend")),
            (stop(SuspendOffer { signal: "kill -9 1; x".into(), ..usual.clone() }), true, Some("suspend.signal")),
            (stop(SuspendOffer { checkpoint: day * 2.0, ..usual.clone() }), true, Some("suspend.checkpoint_s")),
            (stop(SuspendOffer { idle_power: Watts::new(1e7), ..usual }), true, Some("suspend.idle_power_w")),
        ];
        for (offers, bounds_time, field) in table {
            assert_eq!(offers.check(bounds_time, true).err().map(|e| e.field), field, "{offers:?}");
        }
    }

    #[test]
    fn a_job_without_offers_is_stored_as_before() {
        assert!(Offers::default().is_empty());
        assert_eq!(serde_json::to_string(&Offers::default()).expect("plain data"), "{}");
    }
}
