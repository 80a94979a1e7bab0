//! Inputs of a profiler, the cost of its measurements with their budget, and the measurement at the setting in force.

use std::collections::VecDeque;

use crate::profile::dips::Dip;
use crate::profile::drift::{Baseline, DriftWindow};
use crate::profile::measurement::Measurement;
use crate::profile::slack::Slack;
use crate::profile::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

/// State of a job's GPUs at one time.
#[derive(Clone, Debug)]
pub struct GpuSnapshot {
    /// Time of the snapshot.
    pub at: Monotonic,
    /// The setting in force on all GPUs, read back from them; `None` if there is no single one.
    pub setting: Option<Setting>,
    /// True if measurements must not count now, for example because heat slows a GPU.
    pub unusable: bool,
    /// True if a GPU reports that its power limit lowers its clocks.
    pub capped: bool,
    /// Cumulative energy per group.
    pub energy: Vec<Joules>,
}

/// A progress report of a job.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Time of arrival on the daemon's clock.
    pub received: Monotonic,
    /// Time of writing on the client's clock, if given; it makes measuring windows exact.
    pub at: Option<Seconds>,
    /// Cumulative samples.
    pub samples: Samples,
}

/// Cost of profiling in this run.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    /// The job's slack; `None` if it has no time limit.
    pub(super) slack: Option<Slack>,
    /// Time lost by measuring lower settings.
    pub(super) time_lost: Seconds,
    pub(super) current: Option<MeasurementBudget>,
    /// Settings whose budget was spent before they were known well enough.
    pub(super) abandoned: Vec<Setting>,
    /// True if settings wait for more slack.
    pub(super) deferred: bool,
    pub(super) last_observed: Option<Monotonic>,
    /// Times between the latest reports.
    pub(super) spacing: VecDeque<Seconds>,
}

/// Cost and budget of the current measurement below the reference.
#[derive(Clone, Debug)]
pub(super) struct MeasurementBudget {
    pub(super) setting: Setting,
    pub(super) cost: Seconds,
    pub(super) most: Seconds,
}

/// The measurement at the setting in force.
#[derive(Clone, Debug)]
pub(super) struct ActiveMeasurement {
    pub(super) setting: Setting,
    pub(super) since: Monotonic,
    pub(super) report: Option<Report>,
    pub(super) energy: Option<(Monotonic, Vec<Joules>)>,
    pub(super) pending: (Seconds, Vec<Joules>),
    /// True if a power limit lowered clocks since the last chunk.
    pub(super) capped: bool,
    /// True if reports without progress came since the last chunk.
    pub(super) waited: bool,
    /// Pauses since the last chunk.
    pub(super) paused: Dip,
    /// True if a pause seems to begin at the latest report, or at the end of the previous chunk.
    pub(super) ends_low: bool,
    pub(super) began_low: bool,
    /// True if the current chunk contains the beginning of a pause that was detected only later.
    pub(super) holds_beginning: bool,
    /// Chunks measured here without interruption.
    pub(super) measurement: Option<Measurement>,
    /// The profile's point when this measurement began, and the chunks since, for drift detection.
    pub(super) baseline: Option<Baseline>,
    pub(super) recent: DriftWindow,
}
