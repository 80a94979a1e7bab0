//! Reported savings of simulated jobs that pause, compared with ground truth: random patterns, powers, noise, reporting
//! intervals, and limits.

use rand::{RngExt as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::domain::{CarbonSeries, Intensity, Origin, PowerLimit, Slot, TimeSeries};
use crate::ledger::CompletedWork;
use crate::ledger::savings::{ReferencePeriod, Saving, SavingBasis, SavingInput, saving};
use crate::ledger::waiting_times::WaitingTimes;
use crate::profile::steps::{GroupRange, Setting};
use crate::profile::{GpuSnapshot, Profiler, Record, Report, Settings, StallDetector};
use crate::time::Monotonic;
use crate::units::{GramsPerKwh, Samples};

/// Power limit in watts, with the samples per second and the power in watts at this limit.
const CURVE: [(u32, f64, f64); 5] =
    [(300, 400.0, 244.0), (250, 393.0, 225.0), (200, 366.0, 187.0), (150, 254.0, 145.0), (100, 134.0, 99.0)];
const GRID: f64 = 400.0;

#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    hours: f64,
    /// Seconds between reports.
    every: f64,
    /// True if the job does not report in pauses; otherwise it repeats the sample count.
    silent: bool,
    /// Half the width of the relative fluctuation of the job's speed, drawn anew every half second of work.
    noise: f64,
    after: (f64, f64),
    lasting: (f64, f64),
    power: f64,
    /// Samples per step; 0 where each sample is reported.
    step: f64,
    /// True if the job's power limit changes.
    steered: bool,
}

struct Job {
    case: Case,
    rng: ChaCha8Rng,
    speeds: Vec<f64>,
    total: f64,
    limit: u32,
    now: f64,
    done: f64,
    energy: f64,
    /// Time, in seconds, that the work so far would have taken at a limit of 300 W.
    at_reference: f64,
    paused: f64,
    /// Energy, in joules, that the pauses so far would have used at a limit of 300 W.
    paused_energy: f64,
    next_pause: f64,
    left: f64,
}

impl Job {
    fn new(case: Case) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
        let speeds = 0..(case.hours * 7200.0) as usize + 2;
        let speeds = speeds.map(|_| 1.0 + case.noise * rng.random_range(-1.0..1.0)).collect();
        let mut job = Self {
            case,
            rng,
            speeds,
            total: case.hours * 3600.0 * CURVE[0].1,
            limit: CURVE[0].0,
            now: 0.0,
            done: 0.0,
            energy: 0.0,
            at_reference: 0.0,
            paused: 0.0,
            paused_energy: 0.0,
            next_pause: 0.0,
            left: 0.0,
        };
        job.next_pause = job.draw(case.after) * CURVE[0].1;
        job
    }

    fn draw(&mut self, (least, most): (f64, f64)) -> f64 {
        self.rng.random_range(least..=most)
    }

    /// Simulates up to `most` seconds.
    fn pass(&mut self, most: f64) {
        if self.left > 0.0 {
            let span = most.min(self.left);
            self.energy += self.case.power.min(f64::from(self.limit)) * span;
            self.paused_energy += self.case.power * span;
            self.paused += span;
            self.now += span;
            self.left -= span;
            return;
        }
        let (_, rate, power) = *CURVE.iter().find(|c| c.0 == self.limit).expect("a limit of the curve");
        let block = CURVE[0].1 * 0.5;
        let place = (self.done / block) as usize;
        let speed = self.speeds[place.min(self.speeds.len() - 1)];
        let until = ((place + 1) as f64 * block + 1e-6).min(self.next_pause).min(self.total);
        let span = most.min((until - self.done).max(1e-6) / (rate * speed));
        self.done += rate * speed * span;
        self.at_reference += rate / CURVE[0].1 * span;
        self.energy += power * span;
        self.now += span;
        if self.done >= self.next_pause - 1e-6 && !self.is_done() {
            self.left = self.draw(self.case.lasting);
            self.next_pause = self.done + self.draw(self.case.after) * CURVE[0].1;
        }
    }

    fn is_done(&self) -> bool {
        self.done >= self.total - 1e-3
    }

    fn shown(&self) -> f64 {
        match self.case.step > 0.0 && !self.is_done() {
            true => (self.done / self.case.step).floor() * self.case.step,
            false => self.done,
        }
    }
}

fn grid(span: f64) -> CarbonSeries {
    let end = chrono::DateTime::UNIX_EPOCH + Seconds::new(span).to_delta();
    let slot = Slot::new(chrono::DateTime::UNIX_EPOCH, end).expect("not empty");
    let intensity = Intensity { value: GramsPerKwh::new(GRID), origin: Origin::Measured };
    TimeSeries::from_points(vec![(slot, intensity)]).0
}

/// Returns the reported saving, the true reduction of energy in percent, and the true increase of time in percent.
fn run(case: Case) -> (Result<Saving, String>, f64, f64) {
    let limit = |l: u32| PowerLimit::from_milliwatts(l * 1000);
    let groups = [GroupRange::of_limits(limit(300), limit(100))];
    let mut job = Job::new(case);
    let settings = Settings { step_w: Watts::new(50.0), ..Settings::default() };
    let mut profiler = Profiler::new(settings, &groups, Record::default());
    let mut stalls = StallDetector::new(ProgressAccount::default());
    stalls.set_groups(&groups);
    let mut account = ProgressAccount::default();
    let (mut tick, mut due, mut change) = (1.0, 0.0, 0.0);
    let mut last: Option<(f64, f64)> = None;
    loop {
        let silent = case.silent && job.left > 0.0;
        let is_tick = job.now >= tick - 1e-9;
        let reports = (job.now >= due - 1e-9 && !silent) || job.is_done();
        if is_tick || reports {
            let at = Monotonic::default().after(Seconds::new(job.now));
            let (setting, energy) = (vec![limit(job.limit).into()], Joules::new(job.energy));
            stalls.observe(at, Some(&setting), Some(energy), false);
            profiler.observe(GpuSnapshot {
                at,
                setting: Some(setting),
                steered: true,
                unusable: false,
                capped: true,
                energy: vec![energy],
            });
            tick = if is_tick { tick + 1.0 } else { tick };
        }
        if reports {
            due = job.now + case.every;
            let shown = job.shown();
            match last {
                None => stalls.begin(),
                Some((then, before)) => {
                    let known = profiler.setting_estimates();
                    let known = |setting: &Setting| known.iter().find(|(of, _)| of == setting).map(|(_, known)| *known);
                    account = stalls.report(Seconds::new(job.now - then), Samples::new(shown - before), &known);
                    stalls.latest_pauses().into_iter().for_each(|pauses| profiler.exclude_pauses(pauses));
                }
            }
            last = Some((job.now, shown));
            let received = Monotonic::default().after(Seconds::new(job.now));
            profiler.report(Report { received, at: Some(Seconds::new(job.now)), samples: Samples::new(shown) });
            match profiler.wanted().map(|setting| setting[0].limit.milliwatts() / 1000) {
                Some(wanted) if case.steered => job.limit = wanted,
                None if case.steered && job.now >= change => {
                    job.limit = CURVE[job.rng.random_range(0..3_usize)].0;
                    change = job.now + job.draw((60.0, 600.0));
                }
                _ => {}
            }
        }
        if job.is_done() {
            break;
        }
        let next = if silent { tick } else { tick.min(due) };
        job.pass((next - job.now).max(1e-6));
    }
    let completed = CompletedWork {
        started: chrono::DateTime::UNIX_EPOCH,
        active: account.active,
        stalled: account.stalled,
        stalled_energy: account.stalled_energy,
        samples: account.samples,
        energy: Joules::new(job.energy),
        carbon: Joules::new(job.energy) * GramsPerKwh::new(GRID),
    };
    let reported = profiler.evidence(profiler.ceiling()).ok_or_else(|| "nothing was measured".to_owned());
    let reported = reported.and_then(|point| {
        let basis = SavingBasis {
            points: vec![point],
            epochs: vec![ReferencePeriod { from: Samples::ZERO, point: 0 }],
            mix: Vec::new(),
            mix_at_least: None,
            limit: Some(Watts::new(300.0)),
            same_sensors: true,
            noise: None,
            at_ceiling: true,
            uncertain_work: Samples::ZERO,
        };
        saving(
            &SavingInput {
                completed,
                account,
                series: grid(job.now * 2.0),
                with_larger_forecasts: Vec::new(),
                waits: WaitingTimes::default(),
            },
            &basis,
        )
    });
    let reference = CURVE[0].2 * job.at_reference + job.paused_energy;
    let reduction = 100.0 * (1.0 - job.energy / reference);
    (reported, reduction, 100.0 * (job.now / (job.at_reference + job.paused) - 1.0))
}

/// Returns a random pattern with at least `reports` progress reports between pauses.
fn any_case(seed: u64, reports: f64) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xA5);
    let mut pick = |of: &[f64]| of[rng.random_range(0..of.len())];
    let every = pick(&[1.0, 2.0, 5.0, 10.0]);
    let least = pick(&[20.0, 60.0, 300.0]).max(reports * every);
    let after = (least, least * pick(&[1.0, 3.0]));
    let shortest = pick(&[5.0, 20.0, 60.0]);
    let lasting = (shortest, shortest * pick(&[1.0, 5.0]));
    let (silent, steered) = (pick(&[0.0, 1.0]) > 0.0, pick(&[0.0, 1.0]) > 0.0);
    let (noise, step) = (pick(&[0.0, 0.02, 0.05, 0.1]), pick(&[0.0, 0.0, 300.0]));
    let power = pick(&[25.0, 60.0, 120.0, 190.0, 240.0, 290.0]);
    Case { seed, hours: pick(&[0.5, 1.0]), every, silent, noise, after, lasting, power, step, steered }
}

#[test]
fn reported_savings_of_jobs_that_pause_are_true_or_unknown() {
    let (mut known, cases, mut wrong) = (0, 18, Vec::new());
    for seed in 0..cases {
        let case = any_case(seed, 5.0);
        let (reported, reduction, time) = run(case);
        let Ok(saving) = reported else { continue };
        known += 1;
        let (off, late) = (saving.carbon_reduction_pct.mean - reduction, saving.time_increase_pct.mean - time);
        // In half an hour with pauses every 20 s, the job spends little time at the reference, so that the reference's
        // error is up to 0.4 percentage points.
        if off.abs() > 0.5 || late.abs() > 0.5 {
            wrong.push(format!("{case:?}: {off:+.2} off {reduction:.2}, {late:+.2} off {time:.2}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(known * 10 >= cases * 7, "only {known} of {cases} are known");
}

#[test]
fn evaluation_at_60_w_is_no_saving() {
    for (every, silent) in [(1.0, false), (1.0, true), (10.0, false), (10.0, true)] {
        let (after, lasting) = ((60.0, 60.0), (40.0, 40.0));
        let case = Case {
            seed: 1,
            hours: 0.5,
            every,
            silent,
            noise: 0.02,
            after,
            lasting,
            power: 60.0,
            step: 0.0,
            steered: false,
        };
        let (reported, reduction, time) = run(case);
        let saving = reported.expect("known");
        assert!(reduction.abs() < 1e-6 && time.abs() < 1e-6, "{reduction} {time}");
        assert!(saving.carbon_reduction_pct.mean.abs() < 0.1, "{:?}", saving.carbon_reduction_pct);
        assert!(saving.time_increase_pct.mean.abs() < 0.1, "{:?}", saving.time_increase_pct);
    }
}

#[test]
fn reports_too_far_apart_for_the_pauses_need_their_power() {
    let case = |power| Case {
        seed: 2,
        hours: 1.0,
        every: 30.0,
        silent: false,
        noise: 0.02,
        after: (20.0, 20.0),
        lasting: (60.0, 300.0),
        power,
        step: 0.0,
        steered: false,
    };
    let (saving, reduction, time) = run(case(60.0));
    let saving = saving.expect("the power shows the pauses");
    assert!((saving.carbon_reduction_pct.mean - reduction).abs() < 0.1, "{saving:?}");
    assert!((saving.time_increase_pct.mean - time).abs() < 0.1, "{saving:?}");
    let why = run(case(242.0)).0.expect_err("unknown");
    assert!(why.contains("too far apart") || why.contains("nothing was measured"), "{why}");
}
