//! Presence of a job on its GPUs: a held job waits for its start, and a suspended one has given its GPUs back.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use wattune_core::domain::LearnedTime;
use wattune_core::plan::StartReason;
use wattune_core::units::Seconds;

/// Presence of a job on its GPUs, with its waiting time and suspensions. A job that made no offers has the default: it
/// is present from its registration to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Presence {
    /// Absence of the job from its GPUs; `None` while the job is on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<Absence>,
    /// True if the daemon has a held job wait for a cleaner window. The job's minimum gain counts only until it waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_window: bool,
    /// Time of the job's first start; `None` while it is held, and for a job that was never held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<DateTime<Utc>>,
    /// Time since which the job is on its GPUs, if it was absent before; `None` for a job that was never absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_since: Option<DateTime<Utc>>,
    /// True if another job controlled one of the GPUs at the job's last start, so that its limits are not controlled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_guest: bool,
    /// Time since which the daemon asks the job to suspend; `None` while it does not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_asked_at: Option<DateTime<Utc>>,
    /// Number of suspensions so far.
    #[serde(default)]
    pub stops: u32,
    /// Time suspended so far, without the present suspension.
    #[serde(default)]
    pub suspended_for: Seconds,
    /// Time of the last resumption, until the job makes progress again; `None` afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<DateTime<Utc>>,
    /// Observed times from the request to suspend until the job had exited.
    #[serde(default)]
    pub checkpoints: LearnedTime,
    /// Observed times from a resumption until the job made progress again.
    #[serde(default)]
    pub restarts: LearnedTime,
    /// Start that was chosen for the job, stored at its first start; `None` before, and if none was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<ChosenStart>,
    /// Total time of saving and restarting in all suspensions: from each request to suspend until the job had exited,
    /// and from each resumption until the job made progress again.
    #[serde(default)]
    pub stop_time: Seconds,
    /// True if the job did not react to a request to suspend. It is then planned without suspensions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deaf: bool,
}

/// Absence of a job from its GPUs, and its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// The job waits for its start since this time.
    HeldSince(DateTime<Utc>),
    /// The job has saved its state, exited, and left its GPUs at this time.
    SuspendedSince(DateTime<Utc>),
}

/// Start that was chosen for a held job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenStart {
    /// Reason for the start.
    pub reason: StartReason,
    /// Expected saving against starting at once.
    pub saving: ExpectedSaving,
}

/// Expected saving of a start against starting at once, as fractions of the emissions of starting at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedSaving {
    /// Expected value.
    pub expected: f64,
    /// Lower bound of the 80 % prediction interval.
    pub low: f64,
    /// Upper bound of the 80 % prediction interval.
    pub high: f64,
    /// Probability that waiting causes more emissions than starting at once, or more cost if prices are weighed.
    pub loss_probability: f64,
}

impl Presence {
    /// Returns true if the job is held or suspended, so that it holds no GPU.
    pub fn is_absent(&self) -> bool {
        self.absence.is_some()
    }

    /// Returns true if the job waits for its start.
    pub fn is_held(&self) -> bool {
        matches!(self.absence, Some(Absence::HeldSince(_)))
    }

    /// Returns the time since which the job is suspended; `None` if it is not.
    pub fn suspended_since(&self) -> Option<DateTime<Utc>> {
        match self.absence {
            Some(Absence::SuspendedSince(at)) => Some(at),
            _ => None,
        }
    }

    /// Returns true for a job that was always present and made no offers.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}
