//! Pauses that a simulated job makes on its own, as real jobs do for evaluation, checkpoints or input.

use chrono::{DateTime, Utc};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::gpu::simulated::{CurvePoint, LoadCurve};
use wattune_core::domain::{CarbonSeries, Slot};
use wattune_core::ledger;
use wattune_core::units::{GramsCo2e, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// The distribution of a simulated job's pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pauses {
    /// The training time between two pauses, as time at the original limit: first the minimum, second the maximum.
    pub after: (Seconds, Seconds),
    /// The duration of a pause: first the minimum, second the maximum.
    pub lasting: (Seconds, Seconds),
    /// The power of each GPU during a pause, unless the GPU's power limit is lower.
    pub power: Watts,
    /// True if the job sends no reports during a pause.
    pub silent: bool,
}

/// A pause that is running or over.
#[derive(Clone, Copy, Debug)]
struct PauseRecord {
    /// The job's total work before the pause.
    after: Samples,
    lasted: Seconds,
}

#[derive(Clone, Debug)]
pub(super) struct Pausing {
    pauses: Pauses,
    load: Option<LoadCurve>,
    rate: SamplesPerSecond,
    next_at: Samples,
    left: Option<Seconds>,
    ended: Vec<PauseRecord>,
}

impl Pausing {
    pub(super) fn new(pauses: &Pauses, curve: &LoadCurve, rate: SamplesPerSecond, rng: &mut ChaCha8Rng) -> Self {
        let limits = curve.points().iter().map(|p| p.limit).chain([pauses.power]);
        let point =
            |limit: Watts| CurvePoint { limit, throughput: SamplesPerSecond::ZERO, power: pauses.power.min(limit) };
        let load = LoadCurve::new(limits.map(point).collect());
        let mut pausing = Self { pauses: *pauses, load, rate, next_at: Samples::ZERO, left: None, ended: Vec::new() };
        pausing.next_at = pausing.work(rng);
        pausing
    }

    fn work(&self, rng: &mut ChaCha8Rng) -> Samples {
        self.rate * between(self.pauses.after, rng)
    }

    /// Returns the job's total work at which the next pause begins.
    pub(super) fn next_at(&self) -> Samples {
        self.next_at
    }

    /// Returns the remaining time of the current pause, if there is one.
    pub(super) fn left(&self) -> Option<Seconds> {
        self.left
    }

    pub(super) fn is_paused(&self) -> bool {
        self.left.is_some()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_paused() && self.pauses.silent
    }

    /// Returns the load curve of each GPU during a pause; `None` if the job is not paused.
    pub(super) fn load(&self) -> Option<&LoadCurve> {
        self.load.as_ref().filter(|_| self.is_paused())
    }

    /// Advances by `span`. Returns true if a pause began or ended.
    pub(super) fn step(&mut self, samples_done: Samples, work: Samples, span: Seconds, rng: &mut ChaCha8Rng) -> bool {
        match self.left {
            Some(left) if left > span => {
                self.left = Some(left - span);
                if let Some(pause) = self.ended.last_mut() {
                    pause.lasted += span;
                }
                false
            }
            Some(_) => {
                if let Some(pause) = self.ended.last_mut() {
                    pause.lasted += span;
                }
                self.left = None;
                self.next_at = samples_done + self.work(rng);
                true
            }
            None if samples_done >= self.next_at => {
                self.left = Some(between(self.pauses.lasting, rng));
                self.ended.push(PauseRecord { after: work, lasted: Seconds::ZERO });
                true
            }
            None => false,
        }
    }

    /// Returns the energy that one GPU would have used at a power limit in all pauses so far.
    pub(super) fn energy_at(&self, limit: Watts) -> Joules {
        self.pauses.power.min(limit) * self.ended.iter().map(|pause| pause.lasted).sum::<Seconds>()
    }

    /// Returns the emissions of the same work and pauses in a reference run that trains for the time `training` with
    /// throughput `rate` and total power `power`, at the power limit `limit`; `None` if a carbon intensity is unknown.
    pub(super) fn replay(
        &self,
        started: DateTime<Utc>,
        training: Seconds,
        rate: SamplesPerSecond,
        (power, limit): (Watts, Watts),
        gpus: f64,
        actual: &CarbonSeries,
    ) -> Option<GramsCo2e> {
        let (mut at, mut trained, mut carbon) = (started, Seconds::ZERO, GramsCo2e::ZERO);
        let mut pass = |span: Seconds, power: Watts| {
            let end = at.checked_add_signed(span.to_delta())?;
            if let Some(slot) = Slot::new(at, end) {
                carbon += power * span * ledger::mean_intensity(actual, &slot)?;
            }
            at = end;
            Some(())
        };
        for pause in &self.ended {
            let until = (pause.after / rate).min(training);
            pass(until - trained, power)?;
            trained = until;
            pass(pause.lasted, self.pauses.power.min(limit) * gpus)?;
        }
        pass(training - trained, power)?;
        Some(carbon)
    }
}

fn between((least, most): (Seconds, Seconds), rng: &mut ChaCha8Rng) -> Seconds {
    if most > least { Seconds::new(rng.random_range(least.get()..most.get())) } else { least }
}
