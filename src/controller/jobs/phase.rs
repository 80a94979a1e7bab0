//! What the daemon does for a job.

/// What the daemon does for a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Registered; its first progress report is awaited before anything is set.
    Waiting,
    /// Its throughput and power are being measured.
    Profiling,
    /// Its limits follow a plan.
    Planned,
    /// Its plan has it pause: it should save a checkpoint, stand still and go on reporting.
    Paused,
    /// It is booked; its limits are left alone.
    Observing,
}
