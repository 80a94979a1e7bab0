//! Random planning problems with edge cases: ties, constant and zero intensities, cut first slots, non-monotone
//! profiles, one slot, one point.

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use crate::domain::Slot;
use crate::plan::{PlanSlot, Point, Problem};
use crate::units::{GramsPerKwh, Samples, SamplesPerSecond, Seconds, Watts};

pub(in crate::plan) fn at(seconds: f64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + Seconds::new(seconds).to_delta()
}

/// Returns contiguous slots, each given by its duration in seconds and its intensity; the first starts at `start`
/// seconds.
pub(in crate::plan) fn horizon(start: f64, slots: &[(f64, f64)]) -> Vec<PlanSlot> {
    let mut from = start;
    let mut slot = |&(seconds, intensity): &(f64, f64)| {
        let slot = Slot::new(at(from), at(from + seconds)).expect("not empty");
        from += seconds;
        PlanSlot { slot, intensity: GramsPerKwh::new(intensity) }
    };
    slots.iter().map(&mut slot).collect()
}

pub(super) fn points(points: &[(f64, f64)]) -> Vec<Point> {
    let point = |&(p, r)| Point { power: Watts::new(p), throughput: SamplesPerSecond::new(r) };
    points.iter().map(point).collect()
}

pub(super) const MAX_POWER: Watts = Watts::new(400.0);
pub(super) const REFERENCE: GramsPerKwh = GramsPerKwh::new(350.0);

/// Parts of a planning problem, so that tests can change one of them.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// For each slot, first its duration in seconds, second its carbon intensity in g/kWh.
    pub(super) slots: Vec<(f64, f64)>,
    /// For each point, first its power in watts, second its throughput in samples/s.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) eta: f64,
    /// Work relative to what can be done at the fastest point before the latest end.
    pub(super) load: f64,
    /// Latest end as a fraction of the horizon's length.
    pub(super) latest_end: Option<f64>,
}

impl Instance {
    pub(super) fn seconds(&self) -> f64 {
        self.slots.iter().map(|s| s.0).sum()
    }

    pub(super) fn fastest(&self) -> f64 {
        self.points.iter().fold(0.0, |fastest, p| p.1.max(fastest))
    }

    pub(super) fn work(&self) -> f64 {
        self.load * self.latest_end().unwrap_or(self.seconds()) * self.fastest()
    }

    /// Latest end in whole seconds from the start, because times are rounded to the microsecond.
    pub(super) fn latest_end(&self) -> Option<f64> {
        self.latest_end.map(|part| (part * self.seconds()).ceil())
    }

    pub(super) fn problem(&self) -> Problem {
        Problem::new(
            horizon(1800.0, &self.slots),
            points(&self.points),
            Samples::new(self.work()),
            self.eta,
            REFERENCE,
            MAX_POWER,
            self.latest_end().map(|seconds| at(1800.0 + seconds)),
        )
        .expect("valid")
    }
}

fn intensity() -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 3 => (0u8..4).prop_map(|c| f64::from(c) * 150.0 + 100.0), 6 => 0.0..900.0]
}

fn slots(longest: usize) -> impl Strategy<Value = Vec<(f64, f64)>> {
    let slot = (prop_oneof![Just(1800.0), Just(3600.0), 60.0..7200.0], intensity());
    let varied = prop::collection::vec(slot, 1..=longest);
    let flat = (1..=longest, intensity()).prop_map(|(n, c)| vec![(3600.0, c); n]);
    (prop_oneof![4 => varied, 1 => flat], 0.05..=1.0f64).prop_map(|(mut slots, cut)| {
        slots[0].0 *= cut;
        slots.iter_mut().for_each(|slot| slot.0 = slot.0.ceil());
        slots
    })
}

fn point() -> impl Strategy<Value = (f64, f64)> {
    let coarse = ((2u8..8), (1u8..8)).prop_map(|(p, r)| (f64::from(p) * 50.0, f64::from(r) * 100.0));
    prop_oneof![1 => coarse, 2 => (50.0..400.0, 5.0..1000.0)]
}

/// Generates operating points like those of GPUs: diminishing returns with noise.
fn realistic(most: usize) -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec(0.97..1.03f64, 1..=most).prop_map(|noise| {
        let point = |(i, noise): (usize, f64)| {
            let power = 300.0 - 35.0 * i as f64;
            (power, 500.0 * (power / 300.0).powf(0.4) * noise)
        };
        noise.into_iter().enumerate().map(point).collect()
    })
}

pub(super) fn instance(longest: usize, most: usize) -> impl Strategy<Value = Instance> {
    let points = prop_oneof![prop::collection::vec(point(), 1..=most), realistic(most)];
    let eta = prop_oneof![3 => Just(1.0), 1 => Just(0.0), 4 => 0.0..=1.0f64];
    let load = prop_oneof![8 => 0.01..1.0f64, 1 => Just(1.0), 1 => 1.001..1.2f64];
    let latest_end = prop::option::of(prop_oneof![3 => 0.1..=1.0f64, 1 => Just(1.0), 1 => 1.0..1.5f64]);
    (slots(longest), points, eta, load, latest_end).prop_map(|(slots, points, eta, load, latest_end)| Instance {
        slots,
        points,
        eta,
        load,
        latest_end,
    })
}
