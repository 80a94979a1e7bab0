//! Entries of the ledger about jobs that offer to be held or suspended: the request for a start, and each change of the
//! job's presence on its GPUs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::forecast_id::ForecastId;
use crate::domain::JobId;
use crate::units::{Samples, Seconds, Watts};

/// Rule of the reference in [`StartRequest`].
pub const START_RULE: &str = "started when asked, at the original limit, without suspensions";

/// Request for the start of a job, with the reference that the job will be compared with, as known when the request
/// arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRequest {
    /// Time at which the request arrived.
    pub at: DateTime<Utc>,
    /// Job that the request registers.
    pub job: JobId,
    /// Rule of the reference, [`START_RULE`].
    pub rule: String,
    /// Time at which the reference starts: the time of the request. For a job that continues an earlier one, the time
    /// of the first request.
    pub asked_at: DateTime<Utc>,
    /// Samples that earlier jobs with the same key completed. The reference begins with these samples completed, too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub done: Samples,
    /// Time by which the job starts at the latest; absent if the job did not offer to be held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<DateTime<Utc>>,
    /// Expected duration at the original limits; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<Seconds>,
    /// Expected power of the job's GPUs together at the original limits; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<Watts>,
    /// Carbon-intensity forecast at the time of the request; absent without a forecast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastId>,
    /// Earlier job with the same key, which this job continues; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<JobId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(samples: &Samples) -> bool {
    *samples == Samples::ZERO
}

/// Change of a job's presence on its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceChange {
    /// Time of the change.
    pub at: DateTime<Utc>,
    /// Job whose presence changed.
    pub job: JobId,
    /// Kind of the change.
    pub change: PresenceKind,
    /// Reason for the change, for people.
    pub why: String,
}

/// Kind of a change of a job's presence on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PresenceKind {
    /// The job began for the first time.
    Begun,
    /// The job saved a checkpoint and exited, and its GPUs are free.
    Suspended,
    /// The job began again after a suspension.
    Resumed,
}
