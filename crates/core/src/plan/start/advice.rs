//! Advice when a job should start: the windows that it compares, the saving of waiting, and the reason.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::forecast::Basis;
use crate::units::{GramsCo2e, GramsPerKwh};

/// Window of time in which a job could run, with the expected emissions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StartWindow {
    /// Start of the job.
    pub start: DateTime<Utc>,
    /// End of the job.
    pub end: DateTime<Utc>,
    /// Expected mean carbon intensity over the window.
    pub intensity: GramsPerKwh,
    /// Expected emissions of the job in this window, including those of the power drawn while it waits.
    pub carbon: GramsCo2e,
    /// Cost by which windows are compared: `carbon`, or carbon and price weighed as the question says.
    pub cost: GramsCo2e,
    /// Poorest basis of the forecast values in the window.
    pub basis: Basis,
}

/// Expected saving of waiting for the best window, relative to starting as early as possible: 0.1 is 10 %, below zero is
/// a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitingSaving {
    /// Expected value.
    pub expected: f64,
    /// Lower bound of the 80 % prediction interval.
    pub low: f64,
    /// Upper bound of the 80 % prediction interval.
    pub high: f64,
}

/// Reason for a start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartReason {
    /// The job waits for a window in which it is expected to emit less.
    CleanerLater,
    /// No later window is expected to emit less than the earliest one.
    CleanestNow,
    /// The expected gain of waiting is below the minimum gain.
    GainTooSmall,
    /// The expected gain of waiting is not worth its risk: the probability of a loss is too high.
    TooUncertain,
    /// The latest start is not after the earliest possible start.
    NoTimeToWait,
    /// The latest start has passed.
    LatestStartPassed,
    /// There are no data to forecast with, so no window is known to be cleaner.
    NothingKnown,
    /// The job waits because other jobs that are held here use its GPUs or the node's power cap first.
    AfterOthers,
    /// The best window is taken by other jobs that are held here; the job starts in the best one that is left.
    AroundOthers,
}

/// Displays the reason in the past tense, as one sentence.
impl fmt::Display for StartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CleanerLater => "It waited for a cleaner window.",
            Self::CleanestNow => "No later start was expected to be better.",
            Self::GainTooSmall => "Waiting was expected to save too little.",
            Self::TooUncertain => "Waiting was too likely to lose.",
            Self::NoTimeToWait => "The latest start left no time to wait.",
            Self::LatestStartPassed => "The latest start had passed.",
            Self::NothingKnown => "There were no data to forecast with.",
            Self::AfterOthers => "Other jobs used the GPUs or the power cap before.",
            Self::AroundOthers => "Other jobs took the cleanest time.",
        })
    }
}

/// Advice when to start a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StartAdvice {
    /// Time of the question.
    pub asked_at: DateTime<Utc>,
    /// Time at which to start the job; the time of the question if it should start at once.
    pub start: DateTime<Utc>,
    /// Latest start; the time of the question if the stated one has passed.
    pub latest_start: DateTime<Utc>,
    /// Reason for the start time.
    pub reason: StartReason,
    /// Window of starting as early as possible, with which waiting is compared.
    pub now: StartWindow,
    /// Window after it with the least expected cost, for which the job waits or would wait; `now` if there is no
    /// other. For a job that others keep from that window, the window of its start.
    pub best: StartWindow,
    /// Expected saving of emissions by waiting for `best`, also where the job starts at once.
    pub saving: WaitingSaving,
    /// Expected saving of cost by waiting for `best`, by which the start is chosen: that of emissions, or of carbon and
    /// price weighed as the question says.
    pub cost_saving: WaitingSaving,
    /// Probability that waiting for `best`, and starting then whatever newer forecasts say, costs more than starting as
    /// early as possible, from 0 to 1, also where the job starts at once. Without a weight of prices the cost is the
    /// emissions. Deciding again avoids a part of these losses.
    pub loss_probability: f64,
    /// Time at which to ask again while the job waits, unless a new forecast arrives earlier. Never after `start`.
    pub decide_at: DateTime<Utc>,
    /// Windows in order of their starts, for a chart.
    pub windows: Vec<StartWindow>,
}

impl StartAdvice {
    /// Returns true if the job should start as early as possible.
    pub fn starts_at_once(&self) -> bool {
        self.start <= self.now.start
    }

    /// Returns true if prices have a part in the cost.
    fn weighs_prices(&self) -> bool {
        [self.now, self.best].iter().any(|window| window.cost != window.carbon)
    }
}

/// Displays the advice as one sentence.
impl fmt::Display for StartAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |fraction: f64| format!("{:.1} %", 100.0 * fraction);
        let at = |t: DateTime<Utc>| t.format("%Y-%m-%d %H:%M UTC");
        let risk = format!("{:.0} %", 100.0 * self.loss_probability);
        let (first, then) = match self.now.start > self.asked_at {
            true => (format!("Starting at {}, the earliest start", at(self.now.start)), "at the earliest start"),
            false => ("Starting at once".to_owned(), "when starting at once"),
        };
        match self.reason {
            StartReason::CleanerLater if self.weighs_prices() => {
                let (start, gain) = (at(self.start), percent(self.cost_saving.expected));
                write!(
                    f,
                    "Starting at {start}: carbon and price, as weighed, are expected to be {gain} lower than {then}."
                )
            }
            StartReason::CleanerLater => {
                let start = at(self.start);
                let (now, best) = (self.now.intensity.get(), self.best.intensity.get());
                write!(f, "Starting at {start}: {best:.0} g/kWh expected then, {now:.0} g/kWh {then}.")
            }
            StartReason::CleanestNow => {
                let now = self.now.intensity.get();
                write!(f, "{first}, at {now:.0} g/kWh: no later start is expected to be better.")
            }
            StartReason::GainTooSmall => {
                let gain = percent(self.cost_saving.expected.max(0.0));
                write!(f, "{first}: waiting is expected to save only {gain}.")
            }
            StartReason::TooUncertain => {
                let gain = percent(self.cost_saving.expected.max(0.0));
                write!(f, "{first}: waiting may save {gain} but loses with a probability of {risk}.")
            }
            StartReason::NoTimeToWait => write!(f, "{first}: the latest start leaves no time to wait."),
            StartReason::LatestStartPassed => write!(f, "{first}: the latest start has passed."),
            StartReason::NothingKnown => write!(f, "{first}: there are no data to forecast with."),
            StartReason::AfterOthers => {
                write!(f, "Starting at {}: other jobs use the GPUs or the power cap until then.", at(self.start))
            }
            StartReason::AroundOthers => {
                write!(f, "Starting at {}: other jobs take the cleanest time.", at(self.start))
            }
        }
    }
}
