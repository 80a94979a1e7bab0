//! The freedom that a job offers at its registration, as sent by clients.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::ToSchema;

use super::time::time;
use crate::controller::{NewStart, StartBy};
use crate::http::extract::{invalid, optional_quantity};
use wattune_core::domain::{InvalidJob, SuspendOffer};
use wattune_core::units::{Seconds, Watts};

/// The offer of a job to be held until a start that the daemon chooses. Give either `within_s` or `latest`.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct StartSpec {
    /// The longest time from now to the job's start.
    within_s: Option<f64>,
    /// The job's latest start, in place of `within_s`. A past time means to start at once.
    #[serde(default, deserialize_with = "time")]
    latest: Option<DateTime<Utc>>,
    /// The job's expected duration at the original power limits. If absent, the stored profile of the job's name
    /// determines it.
    #[schema(minimum = 1)]
    duration_s: Option<f64>,
    /// The expected power of the job's GPUs together. If absent, the stored profile determines it, or else the GPUs'
    /// limits.
    #[schema(minimum = 1)]
    power_w: Option<f64>,
    /// The minimum expected saving for which the job waits, as a fraction; 0.02 by default.
    #[schema(minimum = 0, exclusive_maximum = 1)]
    min_gain: Option<f64>,
    /// The maximum probability with which waiting may cause more emissions than starting at once; 0.5 by default.
    #[schema(minimum = 0, maximum = 1)]
    max_loss_probability: Option<f64>,
    /// The power of the job's GPUs together while they are reserved for the job before its start; 0, which is the
    /// default, if they are not reserved. The idle energy of reserved GPUs is attributed to the job.
    #[schema(minimum = 0)]
    idle_power_w: Option<f64>,
}

/// The offer of a job to save a checkpoint and exit when asked to, and to be started again later. Needs a maximum
/// slowdown or a deadline.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct SuspendSpec {
    /// The name of the signal by which the job's starter asks the job to save and exit; `SIGTERM` by default. The daemon
    /// only repeats it.
    signal: Option<String>,
    /// The expected time from the request until the job has saved and exited; 120 s by default.
    #[schema(minimum = 0, maximum = 86_400)]
    checkpoint_s: Option<f64>,
    /// The expected time from the job's restart until it makes progress again; 180 s by default.
    #[schema(minimum = 0, maximum = 86_400)]
    restart_s: Option<f64>,
    /// The power of the job's GPUs together while they are reserved for the suspended job; 0, which is the default, if
    /// they are not reserved. The idle energy of reserved GPUs is attributed to the job.
    #[schema(minimum = 0)]
    idle_power_w: Option<f64>,
}

impl TryFrom<StartSpec> for NewStart {
    type Error = InvalidJob;

    fn try_from(wire: StartSpec) -> Result<Self, InvalidJob> {
        let seconds = |field, given| optional_quantity(field, given, Seconds::try_new);
        let watts = |field, given| optional_quantity(field, given, Watts::try_new);
        let within = seconds("start.within_s", wire.within_s)?;
        let by = match (within, wire.latest) {
            (Some(within), None) if within.get() <= 3.2e7 => StartBy::Within(within.max(Seconds::ZERO)),
            (Some(_), None) => return Err(invalid("start.within_s", "must be at most 370 days")),
            (None, Some(latest)) => StartBy::At(latest),
            (Some(_), Some(_)) => {
                return Err(invalid("start.latest", "and within_s both bound the start; give one of them"));
            }
            (None, None) => {
                return Err(invalid("start", "needs a bound: give within_s in seconds, or latest as a time"));
            }
        };
        Ok(Self {
            by,
            duration: seconds("start.duration_s", wire.duration_s)?,
            power: watts("start.power_w", wire.power_w)?,
            min_gain: wire.min_gain,
            max_loss_probability: wire.max_loss_probability,
            idle_power: watts("start.idle_power_w", wire.idle_power_w)?.unwrap_or(Watts::ZERO),
        })
    }
}

impl TryFrom<SuspendSpec> for SuspendOffer {
    type Error = InvalidJob;

    fn try_from(wire: SuspendSpec) -> Result<Self, InvalidJob> {
        let usual = Self::default();
        let seconds = |field, given| optional_quantity(field, given, Seconds::try_new);
        let idle_power = optional_quantity("suspend.idle_power_w", wire.idle_power_w, Watts::try_new)?;
        Ok(Self {
            signal: wire.signal.unwrap_or(usual.signal),
            checkpoint: seconds("suspend.checkpoint_s", wire.checkpoint_s)?.unwrap_or(usual.checkpoint),
            restart: seconds("suspend.restart_s", wire.restart_s)?.unwrap_or(usual.restart),
            idle_power: idle_power.unwrap_or(Watts::ZERO),
        })
    }
}
