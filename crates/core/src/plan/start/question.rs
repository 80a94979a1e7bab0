//! Question when a job should start, and the checks of its values.

use chrono::{DateTime, Utc};

use crate::domain::OperatingPoint;
use crate::plan::job::Point;
use crate::units::{Lasting, Samples, SamplesPerSecond, Seconds, Watts};

/// Longest duration of a job, and longest time for which a job may wait: ten years.
const LONGEST: Seconds = Seconds::new(3660.0 * 86_400.0);
/// Maximum power of a job: more than any data centre draws.
const MOST_POWER: Watts = Watts::new(1e9);

/// Latest time of a job's start or of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latest {
    /// The job starts at this time at the latest.
    Start(DateTime<Utc>),
    /// The job ends at this time at the latest, if it takes its stated duration.
    End(DateTime<Utc>),
}

/// Work and operating points of a job whose power limits are chosen together with its start.
#[derive(Clone, Debug, PartialEq)]
pub struct StartProfile {
    /// Operating points: power and throughput at each setting of the limits.
    pub points: Vec<Point>,
    /// Work of the job.
    pub work: Samples,
    /// Maximum slowdown against the fastest point: 0.03 is 3 %.
    pub max_slowdown: f64,
}

impl StartProfile {
    /// Creates the profile of a job that has this much work left from its measured operating points; `None` if none of
    /// them is usable, or no work is left.
    pub fn of(measured: &[OperatingPoint], work: Samples, max_slowdown: f64) -> Option<Self> {
        let usable = measured.iter().filter(|point| point.is_usable());
        let points = usable.map(|p| Point { power: p.power.mean, throughput: p.throughput.mean }).collect();
        let profile = Self { points, work, max_slowdown };
        profile.longest_duration().map(|_| profile)
    }

    /// Returns the power at the fastest point.
    pub fn power(&self) -> Option<Watts> {
        Some(self.points.iter().max_by(|a, b| a.throughput.total_cmp(&b.throughput))?.power)
    }

    /// Returns the longest duration that the maximum slowdown allows; `None` if no point does any work.
    pub fn longest_duration(&self) -> Option<Seconds> {
        let fastest = self.points.iter().map(|point| point.throughput).max_by(SamplesPerSecond::total_cmp)?;
        let longest = self.work.get() / fastest.get() * (1.0 + self.max_slowdown.max(0.0));
        Seconds::try_new(longest).filter(|longest| *longest > Seconds::ZERO)
    }
}

/// Question when a job should start.
#[derive(Clone, Debug, PartialEq)]
pub struct StartQuestion {
    /// Time of the question.
    pub now: DateTime<Utc>,
    /// Time since which the job has been waiting; `None` if it has just been submitted. A job that waits already goes on
    /// waiting for any expected gain, however small.
    pub waiting_since: Option<DateTime<Utc>>,
    /// Duration of the job, above zero.
    pub duration: Seconds,
    /// Mean power of the job while it runs.
    pub power: Watts,
    /// Operating points of a job whose limits are planned: each window then has the emissions of the best plan from its
    /// start on. `duration` should be the longest duration of such plans. `None` for constant power.
    pub profile: Option<StartProfile>,
    /// Earliest start; `None` for the time of the question.
    pub earliest: Option<DateTime<Utc>>,
    /// Latest start or latest end.
    pub latest: Latest,
    /// Power drawn on the job's behalf while it waits: the idle power of GPUs that are reserved for it; 0 W if others
    /// may use them.
    pub idle_power: Watts,
    /// Minimum relative reduction of the expected cost for which the job begins to wait: 0.02 is 2 %. The cost is the
    /// emissions, or carbon and price together if the price has a weight.
    pub min_gain: f64,
    /// Maximum probability that waiting costs more than starting at once, for which the job waits.
    pub max_loss_probability: f64,
    /// Weight of the price of electricity against carbon, from 0 (carbon alone) to 1, as in a job's objective.
    pub price_weight: f64,
    /// Key that spreads the starts of a fleet; `None` for the start with the least expected emissions.
    pub spread_key: Option<String>,
}

impl StartQuestion {
    /// Minimum gain for which a job waits, unless the question says otherwise.
    pub const MIN_GAIN: f64 = 0.02;
    /// Maximum probability that waiting loses, unless the question says otherwise.
    pub const MAX_LOSS_PROBABILITY: f64 = 0.5;

    /// Creates a question with the default values: start from now on, 0 W while waiting, carbon alone, no spread.
    pub fn new(now: DateTime<Utc>, duration: Seconds, power: Watts, latest: Latest) -> Self {
        Self {
            now,
            waiting_since: None,
            duration,
            power,
            profile: None,
            earliest: None,
            latest,
            idle_power: Watts::ZERO,
            min_gain: Self::MIN_GAIN,
            max_loss_probability: Self::MAX_LOSS_PROBABILITY,
            price_weight: 0.0,
            spread_key: None,
        }
    }

    /// Returns the earliest start that is not before the time of the question.
    pub fn earliest_start(&self) -> DateTime<Utc> {
        self.earliest.map_or(self.now, |earliest| earliest.max(self.now))
    }

    /// Returns the latest start as stated, which may be in the past.
    pub fn latest_start(&self) -> DateTime<Utc> {
        match self.latest {
            Latest::Start(at) => at,
            Latest::End(at) => at.checked_sub_signed(self.duration.to_delta()).unwrap_or(DateTime::<Utc>::MIN_UTC),
        }
    }

    /// Returns the end of the last window: the time up to which a forecast is needed.
    pub fn forecast_until(&self) -> DateTime<Utc> {
        let last = self.latest_start().max(self.earliest_start());
        last.checked_add_signed(self.duration.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Checks the values of the question.
    ///
    /// # Errors
    /// For the first value that is out of range; the error names the value and the range.
    pub fn check(&self) -> Result<(), InvalidStart> {
        if !(self.duration > Seconds::ZERO && self.duration <= LONGEST) {
            return Err(InvalidStart::Duration(self.duration));
        }
        if !(self.power > Watts::ZERO && self.power <= MOST_POWER) {
            return Err(InvalidStart::Power(self.power));
        }
        if !(Watts::ZERO..=MOST_POWER).contains(&self.idle_power) {
            return Err(InvalidStart::IdlePower(self.idle_power));
        }
        if !(0.0..1.0).contains(&self.min_gain) {
            return Err(InvalidStart::MinGain(self.min_gain));
        }
        if !(0.0..=1.0).contains(&self.max_loss_probability) {
            return Err(InvalidStart::MaxLossProbability(self.max_loss_probability));
        }
        if !(0.0..=1.0).contains(&self.price_weight) {
            return Err(InvalidStart::PriceWeight(self.price_weight));
        }
        let latest = self.latest_start();
        if let Some(earliest) = self.earliest.filter(|earliest| *earliest > latest) {
            return Err(InvalidStart::EarliestAfterLatest { earliest, latest });
        }
        if Seconds::from_delta(latest - self.now) > LONGEST {
            return Err(InvalidStart::TooFarAhead(latest));
        }
        Ok(())
    }
}

/// Reason why a question when to start is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidStart {
    /// The duration is not above zero, or above ten years.
    #[error("the duration is {}; it must be above 0 s and at most ten years", Lasting(*.0))]
    Duration(Seconds),
    /// The power is not above zero, or above a gigawatt.
    #[error("the power is {0}; it must be above 0 W and at most 1 GW")]
    Power(Watts),
    /// The power while waiting is negative, or above a gigawatt.
    #[error("the power while the job waits is {0}; it must be from 0 W to 1 GW")]
    IdlePower(Watts),
    /// The minimum gain is out of range.
    #[error("min_gain is {0}; it must be at least 0 and below 1: 0.02 is 2 %")]
    MinGain(f64),
    /// The maximum probability of a loss is out of range.
    #[error("max_loss_probability is {0}; it must be from 0 to 1")]
    MaxLossProbability(f64),
    /// The weight of the price is out of range.
    #[error("price_weight is {0}; it must be from 0 to 1")]
    PriceWeight(f64),
    /// The earliest start is after the latest start.
    #[error("the earliest start, {earliest}, is after the latest start, {latest}")]
    EarliestAfterLatest {
        /// The earliest start.
        earliest: DateTime<Utc>,
        /// The latest start; with a latest end, the time that leaves the duration until then.
        latest: DateTime<Utc>,
    },
    /// The latest start is more than ten years ahead.
    #[error("the latest start, {0}, is more than ten years ahead")]
    TooFarAhead(DateTime<Utc>),
}
