//! What a plan is made from.

use chrono::{DateTime, Utc};

use super::problem::{InvalidProblem, PlanSlot};
use crate::domain::{Activity, Objective, PowerLimit, Profile, Quoted, TimeSeries, Work};
use crate::forecast::ErrorPaths;
use crate::units::{GramsCo2e, GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

/// How far ahead unknown work is planned unless told otherwise: one day.
pub const WINDOW: Seconds = Seconds::new(86_400.0);

/// What a job has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Samples done.
    pub samples: Samples,
    /// Time so far: what the samples take at r(l_max), and what was lost to lower limits and planned pauses.
    pub elapsed: Seconds,
    /// The part of the job's time that is left unspent, because r(l_max) is known with an error only (see
    /// [`crate::profile::reserve`]): 0.001 is 0.1 points of slowdown.
    pub reserve: f64,
    /// What the job has emitted so far; counts against its carbon budget.
    pub carbon: GramsCo2e,
    /// What came of its time so far, where that is known.
    pub past: Option<Past>,
}

/// What the grid was in a job's time so far, and what its training emitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    /// The mean intensity over that time.
    pub intensity: GramsPerKwh,
    /// What training, and pauses that were planned, emitted in it.
    pub carbon: GramsCo2e,
}

/// Prices of electricity, and what makes them commensurable with carbon.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// What is known, past and coming.
    pub known: &'a TimeSeries<Quoted<PricePerMwh>>,
    /// π_ref: the mean of what is known. Times without a price are taken to cost this.
    pub reference: PricePerMwh,
}

/// Everything a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// What was learned about the job; its first point is the reference r(l_max).
    pub profile: &'a Profile,
    /// What is expected of the grid, contiguous; slots that have passed are skipped, the present one is cut, negative
    /// intensities count as zero. Time after it is planned with its mean.
    pub horizon: &'a [PlanSlot],
    /// What the user wants. A deadline and a carbon budget say nothing about unknown work.
    pub objective: &'a Objective,
    /// How much there is to do in all.
    pub work: Work,
    /// How much is done.
    pub progress: Progress,
    /// P_max: the largest limit, summed over the job's boards.
    pub max_power: Watts,
    /// c_ref: what makes carbon and time commensurable; also stands for a forecast that says nothing.
    pub reference_intensity: GramsPerKwh,
    /// Prices, if there is a source of them and they are fresh; used where the objective gives them weight.
    pub prices: Option<Prices<'a>>,
    /// How far ahead unknown work is planned; [`WINDOW`] by default.
    pub window: Seconds,
    /// The highest limit that may be used now, if an out-of-band cap is on. r(l_max) stays the reference.
    pub allowed: Option<PowerLimit>,
    /// The shortest time at one setting that is worth a switch; a second at the least.
    pub dwell: Seconds,
    /// Whether the job runs or pauses now; only looked at where it may pause. Absent: it runs, since long ago.
    pub activity: Option<Activity>,
    /// By how much forecasts made like this one were off; without them the forecast is followed all the way.
    pub errors: Option<&'a ErrorPaths>,
}

/// What a plan weighs energy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// With carbon.
    Carbon,
    /// With carbon and the price.
    CarbonAndPrice,
    /// With carbon alone, although the objective gives weight to prices: none is known.
    NoPrices,
}

impl Request<'_> {
    /// What energy is weighed with in this plan.
    pub fn weighing(&self) -> Weighing {
        match self.prices {
            _ if self.objective.price_weight <= 0.0 => Weighing::Carbon,
            Some(prices) if prices.reference > PricePerMwh::ZERO && !prices.known.is_empty() => {
                Weighing::CarbonAndPrice
            }
            _ => Weighing::NoPrices,
        }
    }

    /// What is minimised in each slot: (1−w)·c_t + w·c_ref·π_t/π_ref with the price weight w, in g/kWh, which makes a
    /// price at its mean as dear as carbon at its own. Negative values count as 0, as running faster than is useful earns
    /// nothing. It is c_t itself where prices have no weight or are not known.
    pub fn weighed_intensities(&self, slots: &[PlanSlot]) -> Vec<GramsPerKwh> {
        let weight = self.objective.price_weight;
        let carbon = |s: &PlanSlot| s.intensity.max(GramsPerKwh::ZERO);
        let prices = self.prices.filter(|_| self.weighing() == Weighing::CarbonAndPrice);
        let Some(Prices { known, reference }) = prices else { return slots.iter().map(carbon).collect() };
        let c_ref = self.reference_intensity.max(GramsPerKwh::ZERO);
        let weighed = |s: &PlanSlot| {
            let price = known.mean_over(&s.slot, |p| p.value.get()).map_or(1.0, |(mean, _)| mean / reference.get());
            (carbon(s) * (1.0 - weight) + c_ref * (weight * price)).max(GramsPerKwh::ZERO)
        };
        slots.iter().map(weighed).collect()
    }
}

/// Why there is no plan at all.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unplannable {
    /// Nothing is known about the job yet.
    #[error("the profile has no usable point")]
    NoUsablePoint,
    /// The cap is below every limit that was profiled.
    #[error("no profiled limit is at or below {0}")]
    NothingAllowed(PowerLimit),
    /// The horizon or the objective makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidProblem),
}
