//! Requests to the program that starts a job, and the start that is chosen for a held job.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::store::{ChosenStart, ExpectedSaving};
use wattune_core::plan::StartReason;

/// The daemon's request to the program that starts and stops the job, such as `wattune run`. The daemon itself starts
/// no process and sends no signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The job is to wait for its start.
    Hold,
    /// The job is to run: to be started if it is held or suspended.
    #[default]
    Run,
    /// The job is to save a checkpoint and exit, or to stay suspended.
    Suspend,
}

/// Reason why the program that starts the job starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BeginReason {
    /// The user asked to start at once.
    StartNow,
    /// The latest start has come.
    LatestStart,
    /// The planned start has come.
    Planned,
    /// The job is started again after a suspension.
    Resumed,
}

impl std::fmt::Display for BeginReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::StartNow => "the user asked to start now",
            Self::LatestStart => "its latest start has come",
            Self::Planned => "its planned start has come",
            Self::Resumed => "it goes on after a suspension",
        })
    }
}

/// Start that was chosen for a held job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StartChoice {
    /// Chosen start; a past time means at once.
    pub(crate) start: DateTime<Utc>,
    /// Time of the next choice, unless a new forecast comes before.
    pub(crate) decide_at: DateTime<Utc>,
    /// Latest start that the offer and the job's deadline allow.
    pub(crate) latest: DateTime<Utc>,
    /// Expected saving against starting at once, with its 80 % prediction interval, as fractions; absent if unknown.
    pub(crate) saving: Option<ExpectedSaving>,
    /// Reason for the start, in one sentence.
    pub(crate) reason: String,
    /// Kind of the reason; `None` where no start could be chosen.
    pub(crate) kind: Option<StartReason>,
    /// Reason why the choice is not based on a forecast, in one sentence; `None` if it is.
    pub(crate) caveat: Option<String>,
}

impl StartChoice {
    /// Returns the choice as it is stored when the job begins.
    pub(super) fn stored(&self) -> Option<ChosenStart> {
        Some(ChosenStart { reason: self.kind?, saving: self.saving? })
    }
}
