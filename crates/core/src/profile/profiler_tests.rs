//! Tests the profiler with a simulated job whose curve is known.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::*;
use crate::domain::PowerLimit;
use crate::profile::{Dip, LatestPauses, Slack};
use crate::units::{Joules, Samples};

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

/// Power limit in watts, throughput in samples/s and power in watts, roughly ResNet-50 on an A40.
const CURVE: [(u32, f64, f64); 6] = [
    (300, 100.0, 244.0),
    (250, 98.3, 216.0),
    (200, 93.7, 179.0),
    (150, 60.8, 144.0),
    (100, 34.0, 114.0),
    (50, 15.0, 90.0),
];

struct Job {
    profiler: Profiler,
    noise: f64,
    rng: ChaCha8Rng,
    now: Seconds,
    samples: f64,
    energy: f64,
    scale: f64,
    unusable: bool,
    /// Limit in force while the wanted one is not to be.
    forced: Option<u32>,
    client_clock: bool,
    /// Seconds between two reports.
    spacing: f64,
    visited: Vec<u32>,
}

impl Job {
    fn new(noise: f64, record: Record) -> Self {
        let settings = Settings { step_w: Watts::new(50.0), ..Settings::default() };
        let group = GroupRange::of_limits(w(300), w(50));
        let rng = ChaCha8Rng::seed_from_u64(3);
        let profiler = Profiler::new(settings, &[group], record);
        let (now, samples, energy) = (Seconds::ZERO, 0.0, 0.0);
        let (unusable, forced, client_clock) = (false, None, true);
        let (spacing, visited) = (1.0, Vec::new());
        Self {
            profiler,
            noise,
            rng,
            now,
            samples,
            energy,
            scale: 1.0,
            unusable,
            forced,
            client_clock,
            spacing,
            visited,
        }
    }

    /// Simulates one second at the profiler's wanted limit, or at `otherwise`. A `speed` of 0 is a stall.
    fn second(&mut self, otherwise: u32, speed: f64) {
        let wanted = self.profiler.wanted().map_or(otherwise, |s| s[0].limit.milliwatts() / 1000);
        let limit = self.forced.unwrap_or(wanted);
        if self.profiler.wanted().is_some() && self.visited.last() != Some(&limit) {
            self.visited.push(limit);
        }
        let (_, rate, power) = *CURVE.iter().find(|c| c.0 == limit).expect("a step");
        let z: f64 = StandardNormal.sample(&mut self.rng);
        self.now += Seconds::new(1.0);
        self.samples += rate * self.scale * speed * (1.0 + self.noise * z);
        self.energy += power;
        let at = Monotonic::default().after(self.now);
        let energy = vec![Joules::new(self.energy)];
        self.profiler.observe(GpuSnapshot {
            at,
            setting: Some(vec![w(limit).into()]),
            steered: self.forced.is_none(),
            unusable: self.unusable,
            capped: true,
            energy,
        });
        if self.now.get() % self.spacing == 0.0 {
            let (clock, samples) = (self.client_clock.then_some(self.now), Samples::new(self.samples));
            self.profiler.report(Report { received: at, at: clock, samples });
        }
        if self.now < Seconds::new(5_000.0) {
            assert_eq!(*self.profiler.profile(), self.profiler.measured_profile(), "kept at {:?}", self.now);
        }
    }

    fn sweep(&mut self) -> u32 {
        (1..20_000)
            .find(|_| {
                self.second(200, 1.0);
                self.profiler.stage() == Stage::Done
            })
            .expect("the sweep ends")
    }
}

#[test]
fn the_sweep_stops_where_nothing_is_gained_and_returns_to_the_ceiling() {
    let mut job = Job::new(0.0, Record::default());
    job.sweep();
    // 150 and 100 W are each worse in energy and time than the next higher limit, so 50 W is never tried.
    assert_eq!(job.visited, [300, 250, 200, 150, 100, 300]);
    for point in &job.profiler.profile().points {
        let (_, rate, power) =
            *CURVE.iter().find(|c| c.0 * 1000 == point.setting[0].limit.milliwatts()).expect("a step");
        assert!((point.throughput.mean.get() / rate - 1.0).abs() < 1e-9, "{point:?}");
        assert!((point.power.mean.get() / power - 1.0).abs() < 1e-9, "{point:?}");
    }
}

#[test]
fn points_are_measured_to_the_stated_error_and_refined_afterwards() {
    let mut job = Job::new(0.01, Record::default());
    job.sweep();
    let profile = job.profiler.profile().clone();
    assert!(profile.points.iter().all(|p| p.throughput.relative_error <= 0.004 && p.measured >= Seconds::new(5.0)));
    let before = profile.at(&[w(200).into()]).expect("measured").throughput;
    (0..3000).for_each(|_| job.second(200, 1.0));
    let after = job.profiler.profile().at(&[w(200).into()]).expect("measured").throughput;
    assert!(after.relative_error < before.relative_error / 3.0, "{before:?} {after:?}");
}

#[test]
fn inaccurate_points_are_remeasured_within_the_time_share() {
    let mut job = Job::new(0.01, Record::default());
    let sweep = job.sweep();
    let seconds = 100_000;
    let (mut remeasuring, mut visited) = (0, std::collections::BTreeSet::new());
    for _ in sweep..seconds {
        job.second(200, 1.0);
        if job.profiler.stage() == Stage::Remeasuring {
            remeasuring += 1;
            visited.extend(job.profiler.wanted().cloned());
        }
    }
    assert!((1_500..=2_100).contains(&remeasuring), "{remeasuring}");
    // 200 W is in force most of the time, so its point has the smallest error; no plan uses lower limits.
    assert_eq!(visited, [250, 300].map(|limit| vec![w(limit).into()]).into());
    let ceiling = job.profiler.profile().ceiling().expect("measured").throughput;
    assert!(ceiling.relative_error < 0.0004, "{ceiling:?}");
    assert!((ceiling.mean.get() / 100.0 - 1.0).abs() < 4.0 * ceiling.relative_error, "{ceiling:?}");
    let mut exact = Job::new(0.0, Record::default());
    exact.sweep();
    (0..20_000).for_each(|_| exact.second(200, 1.0));
    assert_eq!(exact.profiler.stage(), Stage::Done, "what is known exactly is not measured again");
}

#[test]
fn a_neighbours_profile_makes_the_sweep_shorter() {
    let mut alone = Job::new(0.0, Record::default());
    let in_full = alone.sweep();
    assert_eq!(alone.visited, [300, 250, 200, 150, 100, 300]);
    assert_eq!(alone.profiler.record().most_efficient(), Some(w(200)));
    assert_eq!(Record::default().most_efficient(), None);
    let expecting = |limit| {
        let mut job = Job::new(0.0, Record::default());
        job.profiler = job.profiler.with_expected_limit(Some(w(limit)));
        let took = job.sweep();
        (job.visited, took)
    };
    let (visited, took) = expecting(200);
    assert_eq!(visited, [300, 250, 200, 150, 300]);
    assert!(took < in_full, "{took} {in_full}");
    assert_eq!(expecting(100).0, alone.visited, "a neighbour that is best lower down saves nothing");
    assert_eq!(expecting(300).0, visited, "one that is best higher up ends nothing too early");
}

#[test]
fn stalls_do_not_count() {
    let mut job = Job::new(0.005, Record::default());
    for second in 0..3000 {
        let stalled = second % 100 >= 80;
        job.second(200, if stalled { 0.0 } else { 1.0 });
    }
    assert_eq!(job.profiler.stage(), Stage::Done);
    let ceiling = job.profiler.profile().ceiling().expect("measured").throughput.mean;
    assert!((ceiling.get() / 100.0 - 1.0).abs() < 0.005, "{ceiling}");
}

#[test]
fn a_sweep_resumes_from_its_record_and_is_not_repeated() {
    let mut job = Job::new(0.01, Record::default());
    while job.profiler.stage() != (Stage::Sweep { group: 0, index: 2 }) {
        job.second(200, 1.0);
    }
    let text = serde_json::to_string(job.profiler.record()).expect("serialises");
    let mut resumed = Job::new(0.01, serde_json::from_str(&text).expect("reads back"));
    assert_eq!(resumed.profiler.stage(), Stage::Sweep { group: 0, index: 2 });
    resumed.sweep();
    let again = Job::new(0.01, resumed.profiler.record().clone());
    assert_eq!(again.profiler.stage(), Stage::Done);
    assert_eq!(again.profiler.profile(), resumed.profiler.profile());
}

#[test]
fn a_record_without_clocks_is_read() {
    let sums = r#"{"n":6.0,"t":6.0,"y":600.0,"tt":6.0,"ty":600.0,"yy":60000.0}"#;
    let stored = format!(
        r#"{{"points":[{{"setting":[300000],"throughput":{sums},"power":[{sums}]}}],"closed_at":[300000],"thermal_trend":0.001}}"#
    );
    let record: Record = serde_json::from_str(&stored).expect("an older version wrote it");
    assert_eq!(serde_json::to_string(&record).expect("serialises"), stored, "and would read it still");
    let job = Job::new(0.0, record);
    assert_eq!(job.profiler.stage(), Stage::Sweep { group: 0, index: 1 });
    assert_eq!(job.profiler.profile().ceiling().map(|p| p.setting.clone()), Some(vec![w(300).into()]));
}

#[test]
fn measurements_during_throttling_do_not_count() {
    let mut job = Job::new(0.0, Record::default());
    job.unusable = true;
    job.scale = 0.8;
    (0..500).for_each(|_| job.second(200, 1.0));
    assert_eq!(job.profiler.stage(), Stage::Sweep { group: 0, index: 0 });
    assert!(job.profiler.profile().points.is_empty());
    job.unusable = false;
    job.scale = 1.0;
    job.sweep();
    let ceiling = job.profiler.profile().ceiling().expect("measured").throughput.mean;
    assert_eq!(ceiling.get(), 100.0);
}

#[test]
fn hours_below_a_cap_cost_a_sweep_neither_limits_nor_budget() {
    let an_hour = Seconds::new(3600.0);
    let slack = Slack { allowed: an_hour * 0.03, lost: Seconds::ZERO, full_duration: Some(an_hour), part: 0.03 };
    for slack in [None, Some(slack)] {
        let mut job = Job::new(0.0, Record::default());
        job.profiler.allow(slack);
        while job.profiler.wanted() != Some(&vec![w(250).into()]) && job.now < an_hour {
            job.second(200, 1.0);
        }
        job.forced = Some(100);
        (0..4 * 3600).for_each(|_| job.second(200, 1.0));
        assert_eq!(job.profiler.wanted(), Some(&vec![w(250).into()]), "{slack:?}");
        job.forced = None;
        job.sweep();
        for limit in [250, 200] {
            assert!(job.profiler.evidence(&vec![w(limit).into()]).is_some(), "{limit} W, {slack:?}");
        }
    }
}

#[test]
fn drift_starts_a_new_sweep_after_a_minute() {
    let mut job = Job::new(0.002, Record::default());
    let sweep = job.sweep();
    (0..sweep * 11).for_each(|_| job.second(200, 1.0));
    assert_eq!(job.profiler.stage(), Stage::Done);
    job.scale = 0.9;
    (0..45).for_each(|_| job.second(200, 1.0));
    assert_eq!(job.profiler.stage(), Stage::Done, "less than a minute is not enough");
    let more = (0..60).find(|_| {
        job.second(200, 1.0);
        job.profiler.stage() != Stage::Done
    });
    assert!(more.is_some() && job.profiler.wanted() == Some(&vec![w(300).into()]), "{more:?}");
    let notes = job.profiler.take_notes().join("\n");
    assert!(notes.contains("profiling again: throughput differs from the profile by -"), "{notes}");
    job.sweep();
    let ceiling = job.profiler.profile().ceiling().expect("measured").throughput.mean;
    assert!((ceiling.get() - 90.0).abs() < 1.0, "{ceiling}");
}

#[test]
fn drift_is_noticed_while_the_setting_changes() {
    let mut job = Job::new(0.002, Record::default());
    let sweep = job.sweep();
    (0..sweep * 11).for_each(|_| job.second(200, 1.0));
    assert_eq!(job.profiler.stage(), Stage::Done);
    // A plan that follows the throughput as it is measured leaves each setting before a minute has passed.
    let seconds = |job: &mut Job| {
        [200, 250, 300].iter().cycle().flat_map(|limit| [*limit; 30]).take(120).position(|limit| {
            job.second(limit, 1.0);
            job.profiler.restarts() > 0
        })
    };
    assert_eq!(seconds(&mut job), None);
    job.scale = 0.9;
    assert!(seconds(&mut job).is_some());
}

#[test]
fn a_job_that_became_slower_waits_at_the_ceiling_until_a_sweep_is_due() {
    let mut job = Job::new(0.002, Record::default());
    let slack = Slack { allowed: Seconds::new(1e6), lost: Seconds::ZERO, full_duration: None, part: 0.1 };
    job.profiler.allow(Some(slack));
    let sweep = job.sweep();
    let stage_after = |job: &mut Job, scale: f64, seconds: u32| {
        job.scale = scale;
        (0..seconds).for_each(|_| job.second(200, 1.0));
        job.profiler.stage()
    };
    stage_after(&mut job, 1.0, sweep * 5);
    assert_eq!(stage_after(&mut job, 0.9, 100), Stage::Drifting);
    assert_eq!(job.profiler.wanted(), Some(&vec![w(300).into()]));
    // It trains as in its profile again.
    assert!(matches!(stage_after(&mut job, 1.0, 100), Stage::Done | Stage::Remeasuring));
    assert_eq!(job.profiler.restarts(), 0);
    stage_after(&mut job, 0.9, sweep * 11);
    assert_eq!(job.profiler.restarts(), 1);
    // A faster job is profiled again at once; a second change so soon afterwards makes it wait.
    stage_after(&mut job, 1.1, 100);
    assert_eq!(job.profiler.restarts(), 2);
    assert_eq!(stage_after(&mut job, 1.3, sweep + 100), Stage::Drifting);
    assert_eq!(job.profiler.restarts(), 2);
}

#[test]
fn a_job_that_is_slow_for_minutes_again_and_again_is_not_profiled_each_time() {
    let mut job = Job::new(0.002, Record::default());
    job.spacing = 5.0;
    let slack = Slack { allowed: Seconds::new(1e6), lost: Seconds::ZERO, full_duration: None, part: 0.1 };
    job.profiler.allow(Some(slack));
    let sweep = job.sweep();
    let seconds = |job: &mut Job, seconds: u32, speed: f64| {
        (0..seconds).for_each(|_| job.second(200, speed));
        (job.profiler.stage(), job.profiler.restarts())
    };
    seconds(&mut job, 100, 1.0);
    assert_eq!(seconds(&mut job, 150, 0.15).1, 1);
    // The job returns to its first speed, and the profile of the slow phase is replaced.
    let replaced = (0..sweep * 15).find(|_| seconds(&mut job, 1, 1.0) == (Stage::Done, 2));
    assert!(replaced.is_some());
    seconds(&mut job, 100, 1.0);
    for _ in 0..3 {
        assert_eq!(seconds(&mut job, 150, 0.15), (Stage::Drifting, 2));
        assert_eq!(seconds(&mut job, 100, 1.0), (Stage::Done, 2));
    }
    // Other ceilings do not change what is known of the job's changes.
    let again = Profiler::new(Settings::default(), &[GroupRange::of_limits(w(250), w(50))], Record::default());
    let again = again.continuing(&job.profiler);
    assert_eq!((again.restarts(), again.changed_at()), (2, job.profiler.changed_at()));
    assert_eq!(again.learning.time_lost, job.profiler.learning.time_lost);
    assert!(again.learning.time_lost > Seconds::ZERO);
    assert_eq!((again.spacing(), job.profiler.spacing()), (Some(Seconds::new(5.0)), Some(Seconds::new(5.0))));
}

#[test]
fn a_job_that_waits_for_a_new_profile_waits_under_the_next_daemon_too() {
    let slack = Slack { allowed: Seconds::new(1e6), lost: Seconds::ZERO, full_duration: None, part: 0.1 };
    let mut job = Job::new(0.002, Record::default());
    job.profiler.allow(Some(slack));
    job.sweep();
    assert_eq!(job.profiler.waits_since(), None);
    job.scale = 0.9;
    (0..200).for_each(|_| job.second(200, 1.0));
    assert!(job.profiler.stage() == Stage::Drifting && job.profiler.waits_since().is_some());
    // The job still differs from its profile, or has returned to it meanwhile.
    for (scale, restarts) in [(0.9, 1), (1.0, 0)] {
        let mut next = Job::new(0.002, job.profiler.record().clone());
        let hour = Seconds::new(3600.0);
        next.profiler = next.profiler.with_slack_budget().with_spacing(Some(hour)).waiting();
        assert_eq!(next.profiler.spacing(), Some(hour));
        next.profiler.allow(Some(slack));
        next.scale = scale;
        (0..20).for_each(|_| next.second(200, 1.0));
        assert_eq!(next.profiler.wanted(), Some(&vec![w(300).into()]));
        assert_eq!(next.profiler.waits_since(), Some(Monotonic::default()));
        // At 200 W, the reports before the change was detected have a part in the profile.
        (0..100).for_each(|_| next.second(300, 1.0));
        assert_eq!((next.profiler.restarts(), next.profiler.waits_since()), (restarts, None));
        // The work before the change is that before the first daemon's end.
        assert_eq!(next.profiler.changed_at(), (restarts > 0).then(Monotonic::default));
    }
}

#[test]
fn a_second_change_during_a_sweep_makes_the_job_wait() {
    let mut job = Job::new(0.002, Record::default());
    let slack = Slack { allowed: Seconds::new(1e6), lost: Seconds::ZERO, full_duration: None, part: 0.1 };
    job.profiler.allow(Some(slack));
    job.sweep();
    let until = |job: &mut Job, is_there: &dyn Fn(&Profiler) -> bool| {
        let found = (0..5000).find(|_| {
            job.second(200, 1.0);
            is_there(&job.profiler)
        });
        assert!(found.is_some(), "{:?} {}", job.profiler.stage(), job.profiler.restarts());
    };
    job.scale = 1.2;
    until(&mut job, &|p| p.restarts() == 1);
    until(&mut job, &|p| p.stage() == Stage::Sweep { group: 0, index: 2 });
    job.scale = 0.9;
    until(&mut job, &|p| p.is_complete());
    assert_eq!((job.profiler.stage(), job.profiler.restarts()), (Stage::Drifting, 1));
    assert_eq!(job.profiler.wanted(), Some(&vec![w(300).into()]));
    // With other ceilings, the profile of the work before the change is of no use.
    let group = GroupRange::of_limits(w(250), w(50));
    let again = Profiler::new(Settings::default(), &[group], job.profiler.record().clone()).continuing(&job.profiler);
    assert_eq!((again.stage(), again.restarts()), (Stage::Sweep { group: 0, index: 0 }, 2));
    assert!(again.record().points.is_empty() && again.changed_at() == job.profiler.drifting_since);
    // Once the job trains as at the sweep's start again, the sweep goes on with the limits that it must measure anew.
    job.scale = 1.2;
    assert_eq!(job.profiler.profile().points.len(), 1);
    until(&mut job, &|p| p.stage() == Stage::Done);
    let points = &job.profiler.profile().points;
    let lower = &points[1];
    assert!((lower.throughput.mean / points[0].throughput.mean - CURVE[1].1 / CURVE[0].1).abs() < 0.01, "{points:?}");
    assert_eq!(job.profiler.restarts(), 1);
}

#[test]
fn drift_is_noticed_at_a_setting_that_never_changes() {
    let mut job = Job::new(0.002, Record::default());
    job.profiler.allow(Some(Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, full_duration: None, part: 0.0 }));
    let restarts = |job: &mut Job, seconds: u32| {
        (0..seconds).for_each(|_| job.second(300, 1.0));
        job.profiler.restarts()
    };
    assert_eq!(restarts(&mut job, 1000), 0);
    job.scale = 0.9;
    assert_eq!(restarts(&mut job, 200), 1);
}

#[test]
fn a_report_without_the_clients_clock_is_timed_by_the_daemons() {
    let mut job = Job::new(0.0, Record::default());
    for second in 0..400 {
        job.client_clock = second % 7 != 3;
        job.second(200, 1.0);
    }
    assert!(job.profiler.is_complete(), "{:?}", job.profiler.stage());
    assert_eq!(job.profiler.profile().ceiling().expect("measured").throughput.mean.get().round(), 100.0);
}

#[test]
fn an_occasionally_late_counter_does_not_bias_power() {
    let mut job = Job::new(0.0, Record::default());
    let top = vec![w(300).into()];
    for second in 1..=100 {
        let at = Monotonic::default().after(Seconds::new(f64::from(second)));
        // Every seventh reading lacks 30 of 244 J and the next one contains them, which looks like the start of a
        // pause.
        let is_late = second % 7 == 0;
        let energy = vec![Joules::new(244.0 * f64::from(second) - if is_late { 30.0 } else { 0.0 })];
        job.profiler.observe(GpuSnapshot {
            at,
            setting: Some(top.clone()),
            steered: true,
            unusable: false,
            capped: true,
            energy,
        });
        job.profiler.exclude_pauses(LatestPauses { paused: Dip::default(), ends_low: is_late });
        let samples = Samples::new(100.0 * f64::from(second));
        job.profiler.report(Report { received: at, at: None, samples });
    }
    let evidence = job.profiler.evidence(&top).expect("measured");
    assert!((evidence.power.get() / 244.0 - 1.0).abs() < 1e-6, "{}", evidence.power);
}
