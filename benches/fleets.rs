//! Fleets as nodes have them, for measuring the planner: curves that saturate, with measurement noise; an intensity with
//! the shape of a day; a cap that changes every hour; deadlines with 3 to 15 % of slack.

use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::domain::Slot;
use wattune_core::plan::PlanSlot;
use wattune_core::plan::fleet::{FleetJob, FleetPoint, FleetProblem};
use wattune_core::units::{GramsPerKwh, Samples, SamplesPerSecond, Watts};

/// A repeatable stream of numbers in 0..1 (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

const SLOT_S: usize = 300;

/// So many jobs over so many slots of five minutes with so many limits each; in every slot a cap of 90 % and 110 % of
/// this part of the sum of all highest limits, in turns of an hour.
pub(crate) fn fleet(jobs: usize, slots: usize, limits: usize, cap: Option<f64>) -> FleetProblem {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15 ^ (jobs * 1000 + slots) as u64);
    let slot = |t: usize| {
        let start = DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds((t * SLOT_S) as i64);
        Slot::new(start, start + TimeDelta::seconds(SLOT_S as i64)).expect("not empty")
    };
    let horizon: Vec<PlanSlot> = (0..slots)
        .map(|t| {
            let days = (t * SLOT_S) as f64 / 86_400.0 * std::f64::consts::TAU;
            let intensity = 350.0 + 120.0 * days.sin() + 40.0 * (2.0 * days).cos() + 15.0 * noise.next();
            PlanSlot { slot: slot(t), intensity: GramsPerKwh::new(intensity) }
        })
        .collect();
    let jobs: Vec<FleetJob> = (0..jobs).map(|place| job(place, slots, limits, &mut noise)).collect();
    let total: f64 = jobs.iter().map(|job| job.max_power.get()).sum();
    let hourly = |t: usize| 0.9 + 0.2 * ((t * SLOT_S / 3600) % 2) as f64;
    let caps = (0..slots).map(|t| cap.map(|part| Watts::new(total * part * hourly(t)))).collect();
    FleetProblem::new(horizon, caps, jobs, None).expect("a fleet")
}

fn job(place: usize, slots: usize, limits: usize, noise: &mut Noise) -> FleetJob {
    let (saturated, pace) = (180.0 + 220.0 * noise.next(), 200.0 + 1800.0 * noise.next());
    let gpus = 1.0 + (place % 4) as f64;
    let mut point = |i: usize| {
        let limit = 100.0 + 300.0 * i as f64 / (limits - 1) as f64;
        let load = (limit / saturated).min(1.0 + 0.05 * (limit / saturated - 1.0).max(0.0));
        let mut measured = |value: f64| value * (1.0 + 0.01 * (noise.next() - 0.5));
        FleetPoint {
            power: Watts::new(measured(limit.min(saturated * 1.02) * 0.97) * gpus),
            throughput: SamplesPerSecond::new(measured(pace * load.powf(0.45)) * gpus),
            limit: Watts::new(limit * gpus),
        }
    };
    let points: Vec<FleetPoint> = (0..limits).map(&mut point).collect();
    let fastest = points.iter().map(|p| p.throughput.get()).fold(0.0, f64::max);
    let until = (slots * SLOT_S) as f64 * (0.7 + 0.28 * noise.next());
    let slack = 1.03 + 0.12 * noise.next();
    FleetJob {
        points,
        work: Samples::new(fastest * until / slack),
        latest_end: Some(DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(until as i64)),
        eta: 1.0,
        reference_intensity: GramsPerKwh::new(350.0),
        max_power: Watts::new(400.0 * gpus),
        carbon_budget: None,
        priority: 0,
        at_rest: Watts::ZERO,
        weighed: None,
        pauses: Vec::new(),
    }
}
