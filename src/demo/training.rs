//! A training job on simulated GPUs: acts as a client of the daemon, and knows its own ground truth.

use chrono::{DateTime, Utc};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::pauses::{Pauses, Pausing};
use crate::gpu::simulated::{LoadCurve, SimulatedGpu};
use wattune_core::domain::{CarbonSeries, JobId, Slot};
use wattune_core::ledger::{self, Comparison, CompletedWork};
use wattune_core::profile::Curve;
use wattune_core::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// A simulated synchronous training job: all its GPUs follow the same curve, and the slowest sets the throughput.
pub struct Training {
    /// The job's name.
    pub name: String,
    /// The daemon's id of the job while it is registered; `None` before and afterwards.
    pub id: Option<JobId>,
    /// The daemon's id of the job after its end; `None` before.
    pub ended: Option<JobId>,
    /// The job's GPUs.
    pub gpus: Vec<SimulatedGpu>,
    /// The job's total work.
    pub total: Samples,
    /// The work done so far.
    pub samples_done: Samples,
    curve: LoadCurve,
    original_limit: Watts,
    noise: f64,
    rng: ChaCha8Rng,
    pausing: Option<Pausing>,
    work_before: Samples,
    energy_before: Joules,
    /// The time from which the job waits or waited for its start; `None` for a job that starts at once.
    asked: Option<DateTime<Utc>>,
    started: Option<DateTime<Utc>>,
    truth: Truth,
}

/// A job's ground truth: the GPUs' true energy and the grid's actual carbon intensity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Truth {
    /// The energy drawn.
    pub energy: Joules,
    /// The emissions of that energy.
    pub carbon: GramsCo2e,
    /// The time from the start of the job to the end of its work.
    pub time: Seconds,
    /// The part of `time` spent in pauses.
    pub paused: Seconds,
    /// The energy drawn in pauses.
    pub paused_energy: Joules,
    /// The work without the random fluctuations of throughput, on which comparisons with other limits are based.
    pub work: Samples,
}

impl Training {
    /// Creates a job whose work takes the time `duration_at_original` at the GPUs' present power limit, which becomes
    /// the job's original limit. The job's throughput fluctuates by `noise` (relative standard deviation) from one
    /// progress reading to the next.
    pub fn new(
        name: String,
        gpus: Vec<SimulatedGpu>,
        curve: LoadCurve,
        duration_at_original: Seconds,
        noise: f64,
        seed: u64,
    ) -> Self {
        let limit = gpus.first().map_or(Watts::ZERO, |b| b.limit().watts());
        let total = curve.at(limit).throughput * (gpus.len() as f64) * duration_at_original;
        Self {
            name,
            id: None,
            ended: None,
            gpus,
            total,
            samples_done: Samples::ZERO,
            curve,
            original_limit: limit,
            noise,
            rng: ChaCha8Rng::seed_from_u64(seed),
            pausing: None,
            work_before: Samples::ZERO,
            energy_before: Joules::ZERO,
            asked: None,
            started: None,
            truth: Truth::default(),
        }
    }

    /// Adds pauses to the job.
    #[must_use]
    pub fn pausing(mut self, pauses: Option<&Pauses>) -> Self {
        let rate = self.curve.at(self.original_limit).throughput * (self.gpus.len() as f64);
        self.pausing = pauses.map(|pauses| Pausing::new(pauses, &self.curve, rate, &mut self.rng));
        self
    }

    /// Returns true if the job sends no reports now, as some jobs do during a pause.
    pub fn is_silent(&self) -> bool {
        self.pausing.as_ref().is_some_and(Pausing::is_silent)
    }

    /// Lets the job wait for its start from now on.
    pub fn wait(&mut self, now: DateTime<Utc>) {
        self.asked = Some(now);
    }

    /// Returns true while the job waits for its start.
    pub fn is_held(&self) -> bool {
        self.asked.is_some() && self.started.is_none()
    }

    /// Returns the time for which the job waited; `None` for a job that started at once, or waits still.
    pub fn waited(&self) -> Option<Seconds> {
        Some(Seconds::from_delta(self.started? - self.asked?))
    }

    /// Starts the job's load on its GPUs.
    pub fn start(&mut self, now: DateTime<Utc>) {
        for gpu in &self.gpus {
            gpu.run(Some(self.curve.clone()));
        }
        self.work_before = self.work();
        self.energy_before = self.energy();
        self.started = Some(now);
    }

    /// Adds the work, energy and emissions of the last `span`, up to `now`.
    pub fn step(&mut self, now: DateTime<Utc>, span: Seconds, actual: &CarbonSeries) {
        if self.started.is_none() || self.is_done() {
            return;
        }
        let deviation: f64 = StandardNormal.sample(&mut self.rng);
        let (work, energy) = (self.work(), self.energy());
        self.samples_done += (work - self.work_before) * (1.0 + self.noise * deviation).max(0.0);
        self.truth.work += work - self.work_before;
        let used = energy - self.energy_before;
        (self.work_before, self.energy_before) = (work, energy);
        self.truth.energy += used;
        self.truth.time += span;
        let intensity = Slot::new(now - span.to_delta(), now).and_then(|s| ledger::mean_intensity(actual, &s));
        if let Some(intensity) = intensity {
            self.truth.carbon += used * intensity;
        }
        if let Some(pausing) = &mut self.pausing {
            if pausing.is_paused() {
                self.truth.paused += span;
                self.truth.paused_energy += used;
            }
            if pausing.step(self.samples_done, self.truth.work, span, &mut self.rng) {
                let load = pausing.load().unwrap_or(&self.curve);
                self.gpus.iter().for_each(|gpu| gpu.run(Some(load.clone())));
            }
        }
        if self.is_done() {
            for gpu in &self.gpus {
                gpu.run(None);
            }
        }
    }

    /// Returns true if all work is done.
    pub fn is_done(&self) -> bool {
        self.samples_done >= self.total
    }

    /// Returns the time until the work is done or a pause begins or ends, at the present limits and without
    /// fluctuations.
    pub fn time_left(&self) -> Seconds {
        if let Some(left) = self.pausing.as_ref().and_then(Pausing::left) {
            return left;
        }
        let until = self.pausing.as_ref().map_or(self.total, |pausing| pausing.next_at().min(self.total));
        let rates = self.gpus.iter().map(|b| self.curve.at_lock(b.limit().watts(), b.clock_lock()).throughput);
        let rate = rates.reduce(SamplesPerSecond::min).unwrap_or(SamplesPerSecond::ZERO) * (self.gpus.len() as f64);
        if rate > SamplesPerSecond::ZERO {
            (until - self.samples_done).max(Samples::ZERO) / rate
        } else {
            Seconds::ZERO
        }
    }

    /// Returns the job's ground truth so far.
    pub fn truth(&self) -> Truth {
        self.truth
    }

    /// Compares the ground truth with the same work at the maximum usable limit, with the same fluctuations and pauses.
    /// Throughput and power there are those of the job's curve, not estimates. `None` if the job has not started or a
    /// carbon intensity is unknown.
    pub fn against_ceiling(&self, actual: &CarbonSeries) -> Option<Comparison> {
        self.against(self.curve.points().last()?.limit, self.started?, actual)
    }

    /// Returns the mean carbon intensity of the time that the same work takes at the maximum usable limit, from the
    /// same start. `None` if the job has not started or a carbon intensity is unknown.
    pub fn intensity_at_ceiling(&self, actual: &CarbonSeries) -> Option<GramsPerKwh> {
        let rate = self.curve.at(self.curve.points().last()?.limit).throughput * (self.gpus.len() as f64);
        let training = (rate > SamplesPerSecond::ZERO).then(|| self.truth.work / rate)?;
        let start = self.started?;
        let end = start.checked_add_signed((training + self.truth.paused).to_delta())?;
        ledger::mean_intensity(actual, &Slot::new(start, end)?)
    }

    /// Compares the ground truth with the same work at the maximum usable limit, started when the job began to wait.
    /// `None` if the job did not wait.
    pub fn against_at_once(&self, actual: &CarbonSeries) -> Option<Comparison> {
        self.against(self.curve.points().last()?.limit, self.asked?, actual)
    }

    /// Does the same as [`Self::against_ceiling`] for the original limit.
    pub fn against_original(&self, actual: &CarbonSeries) -> Option<Comparison> {
        self.against(self.original_limit, self.started?, actual)
    }

    /// Compares the ground truth with the same work at a limit, begun at `started`.
    fn against(&self, limit: Watts, started: DateTime<Utc>, actual: &CarbonSeries) -> Option<Comparison> {
        self.started?;
        let gpus = self.gpus.len() as f64;
        let (curve, reference) = (Curve::from_profile(&self.curve.profile(gpus))?, self.curve.at(limit));
        let stalled_energy = self.pausing.as_ref().map_or(Joules::ZERO, |pausing| pausing.energy_at(limit) * gpus);
        let completed = CompletedWork {
            started,
            active: self.truth.time - self.truth.paused,
            stalled: self.truth.paused,
            stalled_energy,
            samples: self.truth.work,
            energy: self.truth.energy,
            carbon: self.truth.carbon,
        };
        let reference = (reference.throughput * gpus, reference.power * gpus);
        // A throughput below that of the lowest limit occurs only while the GPUs' draw still follows a change.
        let slowest = curve.hull().first().map(|p| (p.throughput, p.power))?;
        let constant = |rate| curve.power_at(rate).or((rate < slowest.0).then_some(slowest.1));
        let compared = ledger::compare(&completed, reference, constant, actual)?;
        let Some(pausing) = &self.pausing else { return Some(compared) };
        // In the reference run, each pause comes after the same amount of work as in the real run, at the time when the
        // reference run has done that work.
        let (rate, power) = reference;
        let carbon = pausing.replay(completed.started, completed.samples / rate, rate, (power, limit), gpus, actual)?;
        let reduction = 100.0 * (1.0 - completed.carbon / carbon);
        let timing_effect_pct = reduction - compared.energy_effect_pct;
        Some(Comparison { carbon_at_reference: carbon, carbon_reduction_pct: reduction, timing_effect_pct, ..compared })
    }

    /// Returns the work of the slowest GPU times the number of GPUs, because the training is synchronous.
    fn work(&self) -> Samples {
        let slowest = self.gpus.iter().map(SimulatedGpu::work_done).reduce(Samples::min);
        slowest.unwrap_or(Samples::ZERO) * (self.gpus.len() as f64)
    }

    fn energy(&self) -> Joules {
        self.gpus.iter().map(SimulatedGpu::true_energy).sum()
    }
}
