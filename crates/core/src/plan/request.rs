//! Input of planning.

use chrono::{DateTime, Utc};

use super::job::{InvalidProblem, PlanSlot};
use crate::domain::{Activity, Objective, PowerLimit, Profile, Promise, Quoted, TimeSeries, Work};
use crate::forecast::ErrorPaths;
use crate::units::{GramsCo2e, GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

/// Default window for planning unknown work.
pub const WINDOW: Seconds = Seconds::new(86_400.0);

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Samples done.
    pub samples: Samples,
    /// Time so far: that of the samples at r(l_max), plus the time lost to lower limits and planned pauses.
    pub elapsed: Seconds,
    /// Fraction of the job's time left unspent because r(l_max) has an error (see [`crate::profile::reserve`]): 0.001
    /// is 0.1 percentage points of slowdown.
    pub reserve: f64,
    /// Emissions so far, which count against the carbon budget.
    pub carbon: GramsCo2e,
    /// Intensity and emissions so far, if known.
    pub past: Option<PastEmissions>,
}

/// Intensity and emissions of a job's time so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PastEmissions {
    /// Mean intensity over that time.
    pub intensity: GramsPerKwh,
    /// Emissions of training and planned pauses.
    pub carbon: GramsCo2e,
}

/// Electricity prices, with the scale that makes them comparable with carbon.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Known past and future prices.
    pub known: &'a TimeSeries<Quoted<PricePerMwh>>,
    /// π_ref: mean of the known prices, assumed for times without one.
    pub reference: PricePerMwh,
}

/// Input of planning for one job.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// The job's profile; its first point is the reference r(l_max).
    pub profile: &'a Profile,
    /// Contiguous forecast. Past slots are skipped, the present one is cut, and negative intensities count as
    /// zero. Time after its end uses its mean.
    pub horizon: &'a [PlanSlot],
    /// Objective.
    pub objective: &'a Objective,
    /// Total work.
    pub work: Work,
    /// Progress so far.
    pub progress: Progress,
    /// P_max: the highest limit, summed over the job's GPUs.
    pub max_power: Watts,
    /// c_ref: scales time cost against carbon; also replaces an empty forecast.
    pub reference_intensity: GramsPerKwh,
    /// Current prices, if available; used if the objective gives them weight.
    pub prices: Option<Prices<'a>>,
    /// Window for planning unknown work; [`WINDOW`] by default.
    pub window: Seconds,
    /// Maximum limit imposed now by an external cap. r(l_max) stays the reference.
    pub allowed: Option<PowerLimit>,
    /// Minimum time at one setting; at least a second.
    pub dwell: Seconds,
    /// Current activity, used if the job may pause. Absent: running for a long time.
    pub activity: Option<Activity>,
    /// Past forecast errors; without them the forecast is trusted fully.
    pub errors: Option<&'a ErrorPaths>,
}

/// Basis of the energy cost of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// Carbon.
    Carbon,
    /// Carbon and price.
    CarbonAndPrice,
    /// Carbon only, because no prices are known although the objective gives them weight.
    NoPrices,
}

impl Request<'_> {
    /// Returns the promises that apply: some have no meaning for unknown work.
    pub fn promises(&self) -> impl Iterator<Item = Promise> + use<> {
        let is_known = self.work != Work::Unknown;
        self.objective.promises().filter(move |promise| is_known || !promise.needs_known_work())
    }

    /// Returns the basis of this plan's energy cost.
    pub fn weighing(&self) -> Weighing {
        match self.prices {
            _ if self.objective.price_weight <= 0.0 => Weighing::Carbon,
            Some(prices) if prices.reference > PricePerMwh::ZERO && !prices.known.is_empty() => {
                Weighing::CarbonAndPrice
            }
            _ => Weighing::NoPrices,
        }
    }

    /// Returns the intensity to minimise in each slot, in g/kWh: (1−w)·c_t + w·c_ref·π_t/π_ref with the price weight w,
    /// which makes a mean price as expensive as mean carbon. Negative values become 0, since running faster than useful
    /// gains nothing. Equals c_t if prices have no weight or are unknown.
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

/// Reason why nothing can be planned.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unplannable {
    /// The job has no profile yet.
    #[error("the profile has no usable point")]
    NoUsablePoint,
    /// The cap is below all profiled limits.
    #[error("no profiled limit is at or below {0}")]
    NothingAllowed(PowerLimit),
    /// The horizon or the objective is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidProblem),
}
