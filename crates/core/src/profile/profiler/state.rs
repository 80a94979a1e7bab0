//! Inputs of a profiler, time cost and budget of its measurements, and the measurement at the setting in force.

use std::collections::VecDeque;

use crate::profile::dips::Dip;
use crate::profile::drift::Baseline;
use crate::profile::measurement::Measurement;
use crate::profile::slack::Slack;
use crate::profile::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

/// State of a job's GPUs at one time, as the daemon reads it.
#[derive(Clone, Debug)]
pub struct GpuSnapshot {
    /// Time of the snapshot on the daemon's clock.
    pub at: Monotonic,
    /// Setting in force, as read back; `None` if equal GPUs have different set points or a GPU does not respond.
    pub setting: Option<Setting>,
    /// False while the wanted setting is not to be in force: a cap leaves no room for it, the GPUs are not controlled, or
    /// the job is absent. Such time counts neither as a measurement's duration nor as its cost.
    pub steered: bool,
    /// True if measurements must not count now, for example because heat slows a GPU.
    pub unusable: bool,
    /// True if a GPU reports that its power limit lowers its clocks.
    pub capped: bool,
    /// Cumulative energy of the job's GPUs, one sum per group of equal GPUs.
    pub energy: Vec<Joules>,
}

/// A progress report of a job.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Time of arrival on the daemon's clock.
    pub received: Monotonic,
    /// Time of writing on the client's clock, if reported; it makes the durations of measurements exact.
    pub at: Option<Seconds>,
    /// Cumulative samples of the job.
    pub samples: Samples,
}

/// Time that profiling may cost and has cost in this run of the job.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    /// Slack of the job (time that it may lose, and has lost); `None` if its objective does not limit time.
    pub(super) slack: Option<Slack>,
    /// Time lost by measuring settings below the reference (maximum usable limits).
    pub(super) time_lost: Seconds,
    pub(super) current: Option<MeasurementBudget>,
    /// Settings whose time budget was spent before their error was small enough.
    pub(super) abandoned: Vec<Setting>,
    /// True if unmeasured settings wait for more slack.
    pub(super) deferred: bool,
    pub(super) last_observed: Option<Monotonic>,
    /// Times between the latest progress reports.
    pub(super) spacing: VecDeque<Seconds>,
}

/// Time cost so far (`cost`) and maximum time cost (`most`) of the current measurement below the reference setting.
#[derive(Clone, Debug)]
pub(super) struct MeasurementBudget {
    pub(super) setting: Setting,
    pub(super) cost: Seconds,
    pub(super) most: Seconds,
}

/// Measurement at the setting in force.
#[derive(Clone, Debug)]
pub(super) struct ActiveMeasurement {
    pub(super) setting: Setting,
    pub(super) since: Monotonic,
    pub(super) report: Option<Report>,
    pub(super) energy: Option<(Monotonic, Vec<Joules>)>,
    pub(super) pending: (Seconds, Vec<Joules>),
    /// True if a GPU reported, since the last chunk (time between two reports) ended, that the GPU's power limit lowers
    /// the GPU's clocks.
    pub(super) capped: bool,
    /// True if reports without progress arrived since the last chunk (time between two reports) ended.
    pub(super) waited: bool,
    /// Time and energy of pauses since the last chunk (time between two reports) ended.
    pub(super) paused: Dip,
    /// True if power is low as in a pause: at the latest report (`ends_low`), at the previous chunk's end
    /// (`began_low`).
    pub(super) ends_low: bool,
    pub(super) began_low: bool,
    /// True if the current chunk (time between two reports) contains the beginning of a pause that was detected only
    /// later.
    pub(super) holds_beginning: bool,
    /// Chunks (times between two reports) measured at this setting without interruption.
    pub(super) measurement: Option<Measurement>,
    /// Throughput and power in the profile when the setting came into force, or at its first chunk (time between two
    /// reports) after the sweep if it was unmeasured before, for drift detection.
    pub(super) baseline: Option<Baseline>,
}
