//! Input of planning: a job's state, profile and objective, and the forecast.

use chrono::{DateTime, Utc};

use super::job::{InvalidProblem, PlanSlot};
use crate::domain::{Activity, Objective, PowerLimit, Profile, Promise, Quoted, Slot, TimeSeries, Work};
use crate::forecast::ErrorPaths;
use crate::units::{GramsCo2e, GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

/// Default length of the window over which a job with unknown work is planned.
pub const WINDOW: Seconds = Seconds::new(86_400.0);

/// Progress of a job since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Samples done so far.
    pub samples: Samples,
    /// Time that counts as used so far: the time that the samples take at the maximum usable limit, plus the time lost to
    /// lower limits and planned pauses.
    pub elapsed: Seconds,
    /// Time that the work from before the last change of the job, or of its maximum usable limits, took at these limits,
    /// as measured then, less the time that as many samples take at r(l_max), the throughput at the present ones; zero
    /// without such a change.
    pub excess_before: Seconds,
    /// Part of the maximum slowdown that plans leave unused because r(l_max) has an error (see
    /// [`crate::profile::reserve`]), or because a temporary cap may end: 0.001 is 0.1 percentage points.
    pub reserve: f64,
    /// Expected time of the job's own pauses (evaluations, checkpoints) in its remaining work. Plans leave this time free
    /// before a deadline, and its emissions free in a carbon budget. A slowdown does not include these pauses.
    pub pauses_ahead: Seconds,
    /// Mean power of the job in its own pauses so far; zero if it is unknown.
    pub pause_power: Watts,
    /// Expected time until a job that was started again after a stop makes progress; zero for other jobs. The restart of
    /// a job that is still paused is part of [`crate::domain::Pausing::checkpoint`] instead.
    pub restart_left: Seconds,
    /// Emissions so far that count against the carbon budget.
    pub carbon: GramsCo2e,
    /// Progress at the job's first plan after its last profiling; zero for a job that was planned from its start.
    pub first_plan: FirstPlan,
    /// Mean carbon intensity and emissions since that plan; `None` if unknown, and at that plan.
    pub past_emissions: Option<PastEmissions>,
}

/// Progress of a job at its first plan after its last profiling. What it lost before is not a loss of its plans.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FirstPlan {
    /// [`Progress::elapsed`] at that time.
    pub elapsed: Seconds,
    /// Time that the samples done by then take at the maximum usable limit.
    pub reference_time: Seconds,
}

/// Mean carbon intensity and emissions of a job since its first plan after its last profiling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PastEmissions {
    /// Mean carbon intensity since that plan.
    pub intensity: GramsPerKwh,
    /// Emissions of training and planned pauses since that plan.
    pub carbon: GramsCo2e,
}

/// Electricity prices, and the reference price by which they are scaled to be comparable with carbon.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Known past and future prices.
    pub known_prices: &'a TimeSeries<Quoted<PricePerMwh>>,
    /// π_ref: mean of the known prices, of negative ones without their sign. Of prices around zero, the plain mean would
    /// be no measure.
    pub reference: PricePerMwh,
}

impl Prices<'_> {
    /// Returns the price in a slot divided by π_ref; the mean of all known prices where the price is unknown.
    pub(super) fn relative(&self) -> impl Fn(&Slot) -> f64 {
        let Self { known_prices, reference } = *self;
        let mean = |slot: &Slot| known_prices.mean_over(slot, |price| price.value.get()).map(|(mean, _)| mean);
        let all = known_prices.start().zip(known_prices.end()).and_then(|(from, to)| Slot::new(from, to));
        let usual = all.and_then(|all| mean(&all)).unwrap_or_else(|| reference.get());
        move |slot: &Slot| mean(slot).unwrap_or(usual) / reference.get()
    }
}

/// Input of planning for one job.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Time of planning.
    pub now: DateTime<Utc>,
    /// The job's profile; its first point, at the maximum usable limit, gives the reference throughput r(l_max).
    pub profile: &'a Profile,
    /// Contiguous forecast of carbon intensity. Past slots are skipped, the present one is cut at `now`, and negative
    /// intensities count as zero. Time after the forecast's end has the forecast's mean intensity.
    pub horizon: &'a [PlanSlot],
    /// The job's objective.
    pub objective: &'a Objective,
    /// The job's total work.
    pub work: Work,
    /// The job's progress so far.
    pub progress: Progress,
    /// P_max: the maximum usable limit, summed over the job's GPUs.
    pub max_power: Watts,
    /// c_ref: carbon intensity that converts the cost of time to grams; also assumed if the forecast is empty.
    pub reference_intensity: GramsPerKwh,
    /// Electricity prices, used if the objective gives price a weight; `None` if unknown.
    pub prices: Option<Prices<'a>>,
    /// Length of the window over which a job with unknown work is planned; [`WINDOW`] by default.
    pub window: Seconds,
    /// Maximum power limit that the out-of-band cap (set from outside the host) allows now; `None` without a cap.
    /// Slowdowns refer to r(l_max) in either case.
    pub allowed: Option<PowerLimit>,
    /// Minimum time at one setting. Values below a second count as a second.
    pub dwell: Seconds,
    /// The job's current activity, used if the job may pause. `None` counts as running since long ago.
    pub activity: Option<Activity>,
    /// Past forecast errors; `None` if unknown: plans then follow the forecast as if it were certain.
    pub errors: Option<&'a ErrorPaths>,
}

/// Quantities that make up the cost of energy in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// Plans minimise carbon only.
    Carbon,
    /// Plans minimise carbon and the cost of electricity, weighed against each other.
    CarbonAndPrice,
    /// Plans minimise carbon only, because no prices are known although the objective gives them weight.
    NoPrices,
}

impl Request<'_> {
    /// Returns the objective's promises (deadline, maximum slowdown, carbon budget) that apply: if the job's total work
    /// is unknown, only those that can be checked without knowing the total work.
    pub fn promises(&self) -> impl Iterator<Item = Promise> + use<> {
        let is_known = self.work != Work::Unknown;
        self.objective.promises().filter(move |promise| is_known || !promise.needs_known_work())
    }

    /// Returns the quantities that make up the cost of energy.
    pub fn weighing(&self) -> Weighing {
        match self.prices {
            _ if self.objective.price_weight <= 0.0 => Weighing::Carbon,
            Some(prices) if prices.reference > PricePerMwh::ZERO && !prices.known_prices.is_empty() => {
                Weighing::CarbonAndPrice
            }
            _ => Weighing::NoPrices,
        }
    }

    /// Returns the intensity to minimise in each slot, in g/kWh: (1−w)·c_t + w·c_ref·π_t/π_ref with the price weight w,
    /// so that energy at the price π_ref costs as much as energy at c_ref. Negative results become 0, so that no plan
    /// gains by using more energy than the work needs. The result is c_t if price has no weight or prices are unknown.
    pub fn weighed_intensities(&self, slots: &[PlanSlot]) -> Vec<GramsPerKwh> {
        let weight = self.objective.price_weight;
        let carbon = |s: &PlanSlot| s.intensity.max(GramsPerKwh::ZERO);
        let prices = self.prices.filter(|_| self.weighing() == Weighing::CarbonAndPrice);
        let Some(prices) = prices else { return slots.iter().map(carbon).collect() };
        let (c_ref, price) = (self.reference_intensity.max(GramsPerKwh::ZERO), prices.relative());
        let weighed =
            |s: &PlanSlot| (carbon(s) * (1.0 - weight) + c_ref * (weight * price(&s.slot))).max(GramsPerKwh::ZERO);
        slots.iter().map(weighed).collect()
    }
}

/// Reason why nothing can be planned.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Unplannable {
    /// The job's profile has no usable point.
    #[error("the job's profile has no usable operating point yet")]
    NoUsablePoint,
    /// The out-of-band cap is below all profiled limits.
    #[error("no profiled power limit is at or below the out-of-band cap of {0}")]
    NothingAllowed(PowerLimit),
    /// The horizon or the objective is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidProblem),
}
