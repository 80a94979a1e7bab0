//! Tests the profiler with a memory-bound job, which high power limits do not slow but locked clocks do.

use super::steps::GroupRange;
use super::{GpuSnapshot, Profiler, Record, Report, Settings, Slack, Stage};
use crate::domain::{ClockLimit, ClockRange, PowerLimit, SetPoint};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds, Watts};

const HIGHEST: f64 = 1500.0;

fn group(gpus: u32) -> GroupRange {
    let clocks = ClockRange::new((0..=86).map(|i| ClockLimit::from_megahertz(210 + 15 * i)).collect());
    let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
    GroupRange { gpus, clocks, ..GroupRange::of_limits(watts(300), watts(100)) }
}

/// Returns samples per second (first) and watts (second) of one GPU at a clock in MHz: memory bounds the throughput,
/// the clock determines most of the power.
fn at_clock(clock: f64) -> (f64, f64) {
    let part = clock / HIGHEST;
    (100.0 / (0.9 + 0.1 / part), 60.0 + 90.0 * part.powi(2))
}

/// Returns samples per second (first) and watts (second) at a set point. A power limit acts by lowering the clock.
fn at(set: SetPoint) -> (f64, f64) {
    let locked = set.clock.map_or(HIGHEST, |c| f64::from(c.megahertz()));
    let afforded = ((set.limit.watts().get() - 60.0) / 90.0).max(0.0).sqrt() * HIGHEST;
    at_clock(locked.min(afforded))
}

struct Job {
    profiler: Profiler,
    gpus: f64,
    /// Ratio of the power at which a limit binds to the mean power.
    peaks: f64,
    now: Seconds,
    samples: f64,
    energy: f64,
    visited: Vec<SetPoint>,
}

impl Job {
    fn new(gpus: u32, record: Record) -> Self {
        let profiler = Profiler::new(Settings::default(), &[group(gpus)], record);
        let gpus = f64::from(gpus);
        Self { profiler, gpus, peaks: 1.0, now: Seconds::ZERO, samples: 0.0, energy: 0.0, visited: Vec::new() }
    }

    fn second(&mut self) {
        let set = self.profiler.wanted().map_or(PowerLimit::from_milliwatts(300_000).into(), |s| s[0]);
        if self.visited.last() != Some(&set) {
            self.visited.push(set);
        }
        let peaks = Watts::new(set.limit.watts().get() / self.peaks);
        let (rate, power) = at(SetPoint { limit: PowerLimit::from_watts(peaks), ..set });
        self.now += Seconds::new(1.0);
        self.samples += rate * self.gpus;
        self.energy += power * self.gpus;
        let at = Monotonic::default().after(self.now);
        let capped = power >= peaks.get() * 0.999;
        let energy = vec![Joules::new(self.energy)];
        self.profiler.observe(GpuSnapshot {
            at,
            setting: Some(vec![set]),
            steered: true,
            unusable: false,
            capped,
            energy,
        });
        self.profiler.report(Report { received: at, at: Some(self.now), samples: Samples::new(self.samples) });
        assert_eq!(*self.profiler.profile(), self.profiler.measured_profile(), "kept at {:?}", self.now);
    }

    fn sweep(&mut self) {
        let mut seconds = 0;
        while self.profiler.stage() != Stage::Done {
            self.second();
            seconds += 1;
            assert!(seconds < 2_000, "the sweep ends: {:?}", self.profiler.stage());
        }
    }
}

fn joules_per_sample((rate, power): (f64, f64)) -> f64 {
    power / rate
}

#[test]
fn where_no_limit_binds_clocks_are_swept_and_loose_limits_are_not() {
    for gpus in [1, 4] {
        let mut job = Job::new(gpus, Record::default());
        job.sweep();
        let limits: Vec<f64> =
            job.visited.iter().filter(|s| s.clock.is_none()).map(|s| s.limit.watts().get()).collect();
        // The job draws 150 W per GPU, so limits of 175 W and above do not bind. The ceiling closes the sweep.
        assert_eq!(limits[..3], [300.0, 175.0, 150.0]);
        assert_eq!(limits.last(), Some(&300.0));
        let clocks: Vec<u32> = job.visited.iter().filter_map(|s| s.clock).map(ClockLimit::megahertz).collect();
        assert_eq!(clocks[..3], [1410, 1320, 1230]);
        assert!(*clocks.last().expect("swept") > 210, "it stops where nothing is gained: {clocks:?}");
        let profile = job.profiler.profile();
        let best = profile.points.iter().map(|p| p.power.mean.get() / p.throughput.mean.get()).fold(f64::MAX, f64::min);
        let optimum = (210..=1500).map(|c| joules_per_sample(at_clock(f64::from(c)))).fold(f64::MAX, f64::min);
        assert!(best < optimum * 1.002, "{best} {optimum}");
        let copy = |limit: u32, clock: Option<u32>| {
            let clock = clock.map(ClockLimit::from_megahertz);
            let set = SetPoint { limit: PowerLimit::from_milliwatts(limit * 1000), clock };
            let point = profile.at(&[set]).unwrap_or_else(|| panic!("no point at {set}"));
            (point.throughput.mean, point.measured)
        };
        let top = profile.ceiling().expect("measured").throughput.mean;
        assert_eq!((copy(275, None), copy(250, None)), ((top, Seconds::ZERO), (top, Seconds::ZERO)));
        assert_eq!(copy(175, Some(1320)), (copy(300, Some(1320)).0, Seconds::ZERO), "for caps that count limits");
    }
}

#[test]
fn a_record_with_clocks_resumes_and_omits_clocks_that_may_not_be_locked() {
    let mut job = Job::new(1, Record::default());
    while job.profiler.stage() != (Stage::Clocks { index: 4 }) {
        job.second();
    }
    let text = serde_json::to_string(job.profiler.record()).expect("serialises");
    let mut resumed = Job::new(1, serde_json::from_str(&text).expect("reads back"));
    assert_eq!(resumed.profiler.stage(), Stage::Clocks { index: 4 });
    resumed.sweep();
    let record = resumed.profiler.record().clone();
    assert_eq!(Job::new(1, record.clone()).profiler.stage(), Stage::Done);

    let limits_only = GroupRange { clocks: None, ..group(1) };
    let profiler = Profiler::new(Settings::default(), &[limits_only], record);
    assert!(profiler.is_complete() && !profiler.profile().points.is_empty());
    assert!(profiler.profile().points.iter().all(|p| p.setting[0].clock.is_none()));
}

#[test]
fn a_sweep_of_clocks_goes_on_once_there_is_slack_again() {
    let mut job = Job::new(1, Record::default());
    let slack = |allowed: f64| {
        Some(Slack { allowed: Seconds::new(allowed), lost: Seconds::ZERO, full_duration: None, part: 0.1 })
    };
    job.profiler.allow(slack(1e6));
    while job.profiler.stage() != (Stage::Clocks { index: 2 }) {
        job.second();
    }
    job.profiler.allow(slack(0.1));
    job.sweep();
    let measured = job.profiler.profile().points.len();
    (0..100).for_each(|_| job.second());
    assert_eq!(job.profiler.profile().points.len(), measured);
    job.profiler.allow(slack(1e6));
    assert!(matches!(job.profiler.stage(), Stage::Clocks { .. }), "{:?}", job.profiler.stage());
    job.sweep();
    assert!(job.profiler.profile().points.len() > measured && job.profiler.record().closed_at.is_some());
}

#[test]
fn disabling_clocks_ends_their_sweep() {
    let mut job = Job::new(1, Record::default());
    while !matches!(job.profiler.stage(), Stage::Clocks { .. }) {
        job.second();
    }
    job.profiler.disable_clocks();
    assert_eq!(*job.profiler.profile(), job.profiler.measured_profile());
    assert_eq!(job.profiler.stage(), Stage::Closing);
    job.sweep();
    assert!(job.profiler.profile().points.iter().all(|p| p.setting[0].clock.is_none()));
}

#[test]
fn limits_that_bind_at_peaks_only_are_measured() {
    let mut job = Job::new(1, Record::default());
    job.peaks = 1.4;
    job.sweep();
    let limits: Vec<f64> = job.visited.iter().filter(|s| s.clock.is_none()).map(|s| s.limit.watts().get()).collect();
    // 175 W is tried first and binds, as does 200 W. 225 W and all limits above do not.
    assert_eq!(limits[..5], [300.0, 175.0, 200.0, 225.0, 150.0], "{limits:?}");
}

#[test]
fn clocks_are_not_swept_where_the_limit_binds() {
    let mut job = Job::new(1, Record::default());
    let tight = GroupRange { ceiling: PowerLimit::from_watts(Watts::new(140.0)), ..group(1) };
    job.profiler = Profiler::new(Settings::default(), &[tight], Record::default());
    job.sweep();
    assert!(job.visited.iter().all(|s| s.clock.is_none()), "{:?}", job.visited);
}
