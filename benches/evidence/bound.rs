//! How little a job that may pause can emit at all: a bound that shares nothing with the planner's search.
//!
//! The work is priced: each sample is worth λ, and what has to be done is no constraint any more (Lagrange). For a given
//! λ the cheapest pattern of runs and pauses is found exactly by a dynamic programme over short steps of time: what a
//! pattern costs is a sum of piecewise linear functions of single moments, whose kinks are the slots' boundaries and one
//! checkpoint before these, under differences that are at least the shortest lengths. So there is a cheapest pattern whose
//! moments are all multiples of the greatest common divisor of these. Its cost plus λ times the work is a lower bound for
//! every λ, and the best λ is found by ternary search, since the bound is concave in it.

use wattune_core::domain::{CarbonSeries, Pausing, Slot};
use wattune_core::units::{GramsCo2e, Seconds};
use wattune_lab::replay::Job;

/// Steps of time, in seconds: slots of hours, half hours and checkpoints of two minutes are multiples of it.
const STEP: f64 = 120.0;
/// Thirds that are cut off the interval in which the best λ lies.
const CUTS: u32 = 60;

/// No plan for `job` that is done within `span`, with the pauses that `costs` allow, emits less on this grid. `None` if
/// the grid is not known for so long, or if some length is no multiple of a step.
pub(super) fn least_carbon(job: &Job, costs: &Pausing, actual: &CarbonSeries, span: Slot) -> Option<GramsCo2e> {
    let priced = Priced::new(job, costs, actual, span)?;
    let work = job.work.get();
    let dearest = priced.intensity.iter().copied().fold(0.0, f64::max);
    let per_sample = priced.points.iter().map(|(power, throughput)| power / throughput).fold(0.0, f64::max);
    let highest = 4.0 * dearest * per_sample;
    // Ends are looked at slot by slot: what a price says of all of them together is too low, since an end between two days
    // is no mixture of an end before and an end after it.
    let mut least = f64::INFINITY;
    let mut first = 0;
    while first < priced.intensity.len() {
        let same = |i: &usize| *i < priced.intensity.len() && priced.slots[*i] == priced.slots[first];
        let last = (first..).take_while(same).count() + first;
        let bound = |price: f64| priced.cheapest(price, first..=last) + price * work;
        let (mut low, mut high, mut found) = (0.0, highest, f64::NEG_INFINITY);
        for _ in 0..CUTS {
            let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            let (at_left, at_right) = (bound(left), bound(right));
            found = found.max(at_left).max(at_right);
            // Another end may be better than this: no need to know by how much.
            if found >= least {
                break;
            }
            if at_left < at_right { low = left } else { high = right }
        }
        least = least.min(found);
        first = last;
    }
    // From g·W·s/kWh.
    Some(GramsCo2e::new(least / 3.6e6))
}

struct Priced {
    /// In each step, g/kWh.
    intensity: Vec<f64>,
    /// Which slot each step lies in.
    slots: Vec<Slot>,
    /// Watts and samples per second.
    points: Vec<(f64, f64)>,
    idle: f64,
    /// Watts while a checkpoint is saved or loaded: those of the fastest point.
    checkpoint: f64,
    /// Steps of a shortest run, a shortest pause and a checkpoint.
    steps: [usize; 3],
}

impl Priced {
    fn new(job: &Job, costs: &Pausing, actual: &CarbonSeries, span: Slot) -> Option<Self> {
        let count = steps(span.duration())?;
        let step = Seconds::new(STEP).to_delta();
        let at = |i: usize| span.start() + step * i32::try_from(i).unwrap_or(i32::MAX);
        let known = |i| actual.at(at(i)).filter(|(slot, _)| slot.end() >= at(i + 1));
        let slots: Vec<_> = (0..count).map(known).collect::<Option<_>>()?;
        let (slots, intensity) = slots.into_iter().map(|(slot, i)| (*slot, i.value.get())).unzip();
        let points: Vec<(f64, f64)> =
            job.profile.points.iter().map(|p| (p.power.mean.get(), p.throughput.mean.get())).collect();
        let fastest = points.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let lengths = [steps(costs.min_run)?, steps(costs.min_pause)?, steps(costs.checkpoint)?];
        Some(Self { checkpoint: fastest.0, intensity, slots, idle: costs.idle_power.get(), steps: lengths, points })
    }

    /// What the cheapest pattern that ends there costs, less what its samples are worth, in g·W·s/kWh.
    fn cheapest(&self, price: f64, ends: std::ops::RangeInclusive<usize>) -> f64 {
        let n = self.intensity.len();
        let [min_run, min_pause, checkpoint] = self.steps;
        let sums = |rate: &dyn Fn(f64) -> f64| {
            let mut sums = vec![0.0; n + 1];
            for (i, intensity) in self.intensity.iter().enumerate() {
                sums[i + 1] = sums[i] + STEP * rate(*intensity);
            }
            sums
        };
        let net = |c: f64| self.points.iter().map(|(p, r)| c * p - price * r).fold(f64::INFINITY, f64::min);
        let running = sums(&net);
        let pausing = sums(&|c| c * self.idle);
        let loading = sums(&|c| c * self.checkpoint);
        let mut may_pause = vec![f64::INFINITY; n + 1];
        let mut may_resume = vec![f64::INFINITY; n + 1];
        // Having resumed at a step, less what running up to the end of the checkpoint would have cost.
        let mut resumed = vec![f64::INFINITY; n + 1];
        let (mut begun, mut ran, mut last) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        let mut cheapest = f64::INFINITY;
        for at in 0..=*ends.end() {
            if let Some(i) = at.checked_sub(min_run.max(checkpoint)) {
                ran = ran.min(resumed[i]);
            }
            // Before its first pause it has been running for long.
            may_pause[at] = running[at] + ran.min(0.0);
            if let Some(i) = at.checked_sub(min_pause) {
                begun = begun.min(may_pause[i] - pausing[i]);
                may_resume[at] = pausing[at] + begun;
            }
            if at + checkpoint <= n {
                let loaded = at + checkpoint;
                resumed[at] = may_resume[at] + loading[loaded] - loading[at] - running[loaded];
            }
            if let Some(i) = at.checked_sub(checkpoint) {
                last = last.min(resumed[i]);
            }
            if ends.contains(&at) {
                cheapest = cheapest.min(running[at] + last.min(0.0));
            }
        }
        cheapest
    }
}

/// So many steps, if it is a whole number of them.
fn steps(length: Seconds) -> Option<usize> {
    let steps = length.get() / STEP;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of steps")]
    let whole = steps.round() as usize;
    ((steps - steps.round()).abs() < 1e-9).then_some(whole)
}
