//! A training job whose speed fluctuates with its work and that pauses for evaluations; it knows its true slowdown.

use rand::{RngExt as _, SeedableRng};
use rand_chacha::ChaCha8Rng;
use wattune::gpu::simulated::{CurvePoint, LoadCurve, SimulatedGpu};
use wattune_core::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Work at the original limit after which the speed is drawn again.
const REDRAWN: Seconds = Seconds::new(0.5);

/// Pauses for evaluation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// Work between two, in seconds at the original limit.
    pub(crate) every: Seconds,
    /// Length of each.
    pub(crate) length: Seconds,
    /// Power of the GPU in them.
    pub(crate) power: Watts,
}

/// The job.
pub(crate) struct Job {
    gpu: SimulatedGpu,
    curve: LoadCurve,
    /// What the GPU takes to get to its speed after standing still costs this much time at any limit.
    settling: Seconds,
    rate: SamplesPerSecond,
    total: Samples,
    noise: f64,
    rng: ChaCha8Rng,
    /// The speed of the present piece of work, and how much of the piece is left.
    speed: f64,
    piece: Samples,
    done: Samples,
    work_seen: Samples,
    energy_from: Joules,
    pauses: Option<Pauses>,
    until_pause: Samples,
    pause_left: Seconds,
    /// Time so far, and that of the same work with the same draws at the original limit.
    time: Seconds,
    base: Seconds,
    paused: Seconds,
}

impl Job {
    /// A job that takes about `duration` at the limit that its GPU has now. Its speed is drawn uniformly within ±`noise`.
    pub(crate) fn start(
        gpu: SimulatedGpu,
        curve: LoadCurve,
        settling: Seconds,
        duration: Seconds,
        noise: f64,
        pauses: Option<Pauses>,
        seed: u64,
    ) -> Self {
        let rate = curve.at(gpu.limit().watts()).throughput;
        gpu.run(Some(curve.clone()));
        let (work_seen, energy_from) = (gpu.work_done(), gpu.true_energy());
        let until_pause = pauses.map_or(Samples::ZERO, |p| rate * p.every);
        Self {
            gpu,
            curve,
            settling,
            rate,
            total: rate * duration,
            noise,
            rng: ChaCha8Rng::seed_from_u64(seed),
            speed: 1.0,
            piece: Samples::ZERO,
            done: Samples::ZERO,
            work_seen,
            energy_from,
            pauses,
            until_pause,
            pause_left: Seconds::ZERO,
            time: Seconds::ZERO,
            base: settling,
            paused: Seconds::ZERO,
        }
    }

    /// Takes in what the GPU did in the last `span`.
    pub(crate) fn step(&mut self, span: Seconds) {
        let work = self.gpu.work_done();
        let mut able = work - self.work_seen;
        self.work_seen = work;
        if self.pause_left > Seconds::ZERO {
            // Pauses end with the step in which they are over.
            (self.time, self.base, self.paused) = (self.time + span, self.base + span, self.paused + span);
            self.pause_left -= span;
            if self.pause_left <= Seconds::ZERO {
                self.base += self.settling;
                self.gpu.run(Some(self.curve.clone()));
            }
            return;
        }
        let whole = able;
        while able > Samples::ZERO && !self.is_done() {
            if self.piece <= Samples::ZERO {
                self.piece = self.rate * REDRAWN;
                self.speed = 1.0 + self.noise * self.rng.random_range(-1.0..=1.0);
            }
            let left = self.total - self.done;
            let part = (able * self.speed).min(self.piece).min(left);
            self.done += part;
            self.piece -= part;
            self.until_pause -= part;
            able -= part / self.speed;
            self.base += part / (self.rate * self.speed);
            // What rounding leaves of a piece is no work.
            if self.piece < self.rate * Seconds::new(1e-9) {
                self.piece = Samples::ZERO;
            }
        }
        let used = if whole > Samples::ZERO { 1.0 - able / whole } else { 1.0 };
        self.time += if self.is_done() { span * used } else { span };
        if let Some(pauses) = self.pauses.filter(|_| self.until_pause <= Samples::ZERO && !self.is_done()) {
            self.until_pause = self.rate * pauses.every;
            self.pause_left = pauses.length;
            let idle = |p: &CurvePoint| CurvePoint { throughput: SamplesPerSecond::ZERO, power: pauses.power, ..*p };
            self.gpu.run(LoadCurve::new(self.curve.points().iter().map(idle).collect()));
        }
        if self.is_done() {
            self.gpu.run(None);
        }
    }

    /// The work that it does in this time at the original limit.
    pub(crate) fn work_in(&self, span: Seconds) -> Samples {
        self.rate * span
    }

    /// The work that it has to do.
    pub(crate) fn total(&self) -> Samples {
        self.total
    }

    /// The work that it has done.
    pub(crate) fn done(&self) -> Samples {
        self.done
    }

    /// Whether all of it is done.
    pub(crate) fn is_done(&self) -> bool {
        self.done >= self.total * (1.0 - 1e-12)
    }

    /// Whether it stands still now.
    pub(crate) fn is_pausing(&self) -> bool {
        self.pause_left > Seconds::ZERO
    }

    /// The longest step that does not pass the end of its pause, or much of its work.
    pub(crate) fn longest_step(&self) -> Seconds {
        let rate = self.curve.at(self.gpu.limit().watts()).throughput;
        let left = (self.total - self.done) / rate;
        let until_pause = self.pauses.map_or(left, |_| self.until_pause / rate);
        let most = if self.is_pausing() { self.pause_left } else { left.min(until_pause) };
        most.max(Seconds::new(0.05))
    }

    /// Its slowdown against the same draws at the original limit, pauses in both: 0.03 is 3 %.
    pub(crate) fn slowdown(&self) -> f64 {
        self.time / self.base - 1.0
    }

    /// The part of its energy that it saved against the original limit.
    pub(crate) fn energy_saved(&self, original: Watts) -> f64 {
        let power = self.curve.at(original).power;
        let in_pauses = self.pauses.map_or(Watts::ZERO, |p| p.power) * self.paused;
        let at_original = power * (self.base - self.paused) + in_pauses;
        1.0 - (self.gpu.true_energy() - self.energy_from) / at_original
    }
}
