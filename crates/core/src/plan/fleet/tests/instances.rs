//! Random joint planning problems (fleets) with edge cases: ties, equal jobs, caps at the sum of limits, caps below the
//! lowest limits, zero intensities, one slot, one point, pauses, budgets.

use proptest::prelude::*;

use crate::domain::{Slot, TimeSeries};
use crate::plan::fleet::{FleetJob, FleetPoint, FleetProblem};
pub(super) use crate::plan::tests::instances::at;
use crate::plan::tests::instances::horizon;
use crate::units::{GramsCo2e, GramsPerKwh, Samples, SamplesPerSecond, Watts};

/// Returns operating points, each given by its limit, power and throughput.
pub(super) fn points(points: &[(f64, f64, f64)]) -> Vec<FleetPoint> {
    let point = |&(limit, power, rate): &(f64, f64, f64)| FleetPoint {
        power: Watts::new(power),
        throughput: SamplesPerSecond::new(rate),
        limit: Watts::new(limit),
    };
    points.iter().map(point).collect()
}

/// Returns a job whose objective is carbon alone.
pub(super) fn job(of: &[(f64, f64, f64)], work: f64, latest_end: Option<f64>) -> FleetJob {
    FleetJob {
        points: points(of),
        work: Samples::new(work),
        latest_end: latest_end.map(at),
        eta: 1.0,
        reference_intensity: GramsPerKwh::new(350.0),
        max_power: Watts::new(400.0),
        carbon_budget: None,
        priority: 0,
        at_rest: Watts::ZERO,
        weighed: None,
        pauses: Vec::new(),
    }
}

/// Returns a problem with the same cap, if any, in every slot.
pub(super) fn problem(slots: &[(f64, f64)], cap: Option<f64>, jobs: Vec<FleetJob>) -> FleetProblem {
    FleetProblem::new(horizon(0.0, slots), vec![cap.map(Watts::new); slots.len()], jobs, None).expect("valid")
}

fn a_point() -> impl Strategy<Value = (f64, f64, f64)> {
    let coarse = ((2u8..8), (2u8..8), (1u8..8))
        .prop_map(|(l, p, r)| (f64::from(l) * 50.0, f64::from(p) * 45.0, f64::from(r) * 100.0));
    prop_oneof![1 => coarse, 1 => (50.0..400.0, 50.0..400.0, 5.0..1000.0f64)]
}

/// Generates operating points like those of GPUs: diminishing returns with noise.
fn realistic(most: usize) -> impl Strategy<Value = Vec<(f64, f64, f64)>> {
    (prop::collection::vec((0.98..1.02f64, 0.98..1.02f64), 1..=most), 0.3..0.9f64).prop_map(|(noise, bend)| {
        let point = |(i, (p, r)): (usize, (f64, f64))| {
            let limit = 100.0 + 40.0 * i as f64;
            (limit, limit * 0.95 * p, 500.0 * (limit / 300.0).powf(bend) * r)
        };
        noise.into_iter().enumerate().map(point).collect()
    })
}

/// A job relative to its horizon: `load` is the work as a fraction of what fits before the latest end, `latest_end` a
/// fraction of the horizon, and `budget` a fraction of the most that the job could emit.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    points: Vec<(f64, f64, f64)>,
    load: f64,
    latest_end: Option<f64>,
    eta: f64,
    priority: i32,
    at_rest: f64,
    idle: Option<f64>,
    budget: Option<f64>,
}

fn sketch(most: usize) -> impl Strategy<Value = Sketch> {
    let of = prop_oneof![1 => prop::collection::vec(a_point(), 1..=most), 3 => realistic(most)];
    let eta = prop_oneof![3 => Just(1.0), 1 => Just(0.0), 1 => 0.0..=1.0f64];
    let latest_end = prop::option::weighted(0.7, 0.3..=1.0f64);
    let idle = prop::option::weighted(0.15, 5.0..60.0f64);
    let budget = prop::option::weighted(0.15, 0.2..1.0f64);
    (of, 0.3..1.02f64, latest_end, eta, 0i32..3, prop_oneof![Just(0.0), 20.0..150.0f64], idle, budget).prop_map(
        |(points, load, latest_end, eta, priority, at_rest, idle, budget)| Sketch {
            points,
            load,
            latest_end,
            eta,
            priority,
            at_rest,
            idle,
            budget,
        },
    )
}

impl Sketch {
    fn job(&self, slots: &[(f64, f64)]) -> FleetJob {
        let seconds: f64 = slots.iter().map(|s| s.0).sum();
        let latest_end = self.latest_end.map(|part| (part * seconds).ceil());
        let fastest = self.points.iter().fold(0.0, |a: f64, p| a.max(p.2));
        let mut of = self.points.clone();
        let lowest = of.iter().fold(f64::INFINITY, |a, p| a.min(p.0));
        of.extend(self.idle.map(|power| (lowest, power, 0.0)));
        let mut job = job(&of, self.load * latest_end.unwrap_or(seconds) * fastest, latest_end);
        let draw = of.iter().fold(0.0, |a: f64, p| a.max(p.1));
        let grams: f64 = slots.iter().map(|s| s.0 * s.1 * draw / 3.6e6).sum();
        job.eta = self.eta;
        job.priority = self.priority;
        job.at_rest = Watts::new(self.at_rest);
        job.carbon_budget = self.budget.map(|part| GramsCo2e::new(part * grams));
        job
    }
}

fn intensity() -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 3 => (0u8..4).prop_map(|c| f64::from(c) * 150.0 + 100.0), 6 => 0.0..900.0f64]
}

/// Generates problems with up to `jobs` jobs, `slots` slots and `most` points per job.
pub(super) fn fleet(jobs: usize, slots: usize, most: usize) -> impl Strategy<Value = FleetProblem> {
    let slot = (prop_oneof![Just(1800.0), Just(3600.0), 60.0..7200.0f64], intensity());
    let sketches = prop_oneof![
        4 => prop::collection::vec(sketch(most), 1..=jobs),
        1 => (sketch(most), 1..=jobs).prop_map(|(sketch, n)| vec![sketch; n]),
    ];
    let cap = prop::option::weighted(0.9, prop_oneof![8 => 0.4..1.0f64, 1 => Just(1.0), 1 => 0.05..0.4f64]);
    // One shared carbon budget, or two; the second one begins with one of the slots.
    let shared = prop::option::weighted(0.2, (0.2..1.0f64, prop::option::of((0usize..6, 0.2..1.0f64))));
    (prop::collection::vec((slot, cap), 1..=slots), sketches, shared).prop_map(|(slots, sketches, shared)| {
        let spans: Vec<(f64, f64)> = slots.iter().map(|((seconds, c), _)| (seconds.ceil(), *c)).collect();
        let jobs: Vec<FleetJob> = sketches.iter().map(|sketch| sketch.job(&spans)).collect();
        let most: Watts = jobs.iter().map(|j| j.points.iter().fold(Watts::ZERO, |a, p| a.max(p.limit))).sum();
        let caps = slots.iter().map(|(_, cap)| cap.map(|part| most * part)).collect();
        let draw: f64 = jobs.iter().map(|j| j.points.iter().fold(0.0, |a: f64, p| a.max(p.power.get()))).sum();
        let grams: f64 = spans.iter().map(|s| s.0 * s.1 * draw / 3.6e6).sum();
        let shared = shared.map(|(part, second)| {
            let begins = |slot: usize| spans[..slot.min(spans.len())].iter().map(|s| s.0).sum::<f64>();
            let (cut, rest) = second.map_or((1e9, part), |(slot, rest)| (begins(slot), rest));
            let budget = |from: f64, to: f64, part: f64| {
                Some((Slot::new(at(from), at(to))?, GramsCo2e::new(part * grams * if to < 1e9 { 0.5 } else { 1.0 })))
            };
            let both = [budget(0.0, cut, part), budget(cut, 2e9, rest)];
            TimeSeries::from_points(both.into_iter().flatten().collect()).0
        });
        FleetProblem::new(horizon(0.0, &spans), caps, jobs, shared).expect("valid")
    })
}
