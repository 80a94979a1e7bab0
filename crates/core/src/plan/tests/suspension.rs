//! Tests plans of jobs that offered to be stopped: pauses at 0 W, with a cost for each stop.

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use super::instances::{at, horizon};
use super::receding::{Job, profile, training};
use crate::domain::{Activity, Objective, StopCosts, Work};
use crate::forecast::ErrorPaths;
use crate::plan::{JobActivity, Plan, Request, keep_if_nearly_as_good, plan};
use crate::units::{Samples, Seconds, Watts};

const HOUR: f64 = 3600.0;

fn costs() -> StopCosts {
    StopCosts::new(Seconds::new(120.0), Seconds::new(180.0)).expect("valid")
}

/// Returns a job of `work` hours at full speed that must end after `latest` hours.
fn job(intensities: &[f64], work: f64, latest: f64) -> Job {
    let slots: Vec<_> = intensities.iter().map(|c| (HOUR, *c)).collect();
    Job {
        profile: profile(&[(300.0, 100.0), (200.0, 80.0), (150.0, 55.0)]),
        horizon: horizon(0.0, &slots),
        objective: Objective {
            deadline: Some(at(latest * HOUR)),
            pausable: Some(costs().pausing(Watts::ZERO)),
            ..Objective::UNBOUND
        },
        work: Work::TotalSamples(Samples::new(100.0 * HOUR * work)),
        ..training()
    }
}

fn without_stops(job: &Job) -> Job {
    Job { objective: Objective { pausable: None, ..job.objective }, ..job.clone() }
}

/// Returns eight days of errors: `error` of each lead in hours, with a sign that alternates from day to day.
fn errors(error: &[f64]) -> ErrorPaths {
    let sign = |day: usize| if day.is_multiple_of(2) { 1.0 } else { -1.0 };
    ErrorPaths::of(at(0.0), (0..8).map(|day| error.iter().map(|error| sign(day) * error).collect()))
}

fn planned(job: &Job, errors: &ErrorPaths) -> Plan {
    plan(&Request { errors: Some(errors), ..job.request() }).expect("plannable")
}

fn time(plan: &Plan, activity: JobActivity) -> f64 {
    plan.segments.iter().filter(|s| s.activity == activity).map(|s| s.slot.duration().get()).sum()
}

fn stops(plan: &Plan) -> f64 {
    let paused = |s: &crate::plan::Segment| s.activity == JobActivity::Paused;
    let begins = plan.segments.windows(2).filter(|pair| !paused(&pair[0]) && paused(&pair[1])).count();
    let first = plan.segments.first().is_some_and(paused);
    f64::from(u32::try_from(begins).expect("few")) + if first { 1.0 } else { 0.0 }
}

/// Returns the end of the pause with which a plan begins; `None` if the job is to run at once.
fn first_pause(plan: &Plan) -> Option<DateTime<Utc>> {
    plan.segments.iter().take_while(|s| s.activity == JobActivity::Paused).last().map(|s| s.slot.end())
}

/// Returns a forecast of two days of 24 h whose noons are clean.
fn sunny() -> Vec<f64> {
    (0..48).map(|h| 350.0 - 200.0 * (f64::from(h % 24 - 12) / 6.0).powi(2).mul_add(-1.0, 1.0).max(0.0)).collect()
}

#[test]
fn a_job_stops_for_the_dirty_hours_only_if_the_forecast_is_sure_enough() {
    let job = job(&sunny(), 16.0, 48.0);
    let sure = planned(&job, &errors(&[0.0; 48]));
    assert_eq!((stops(&sure), time(&sure, JobActivity::Resuming)), (2.0, 600.0), "one stop for each noon");
    let unsure: Vec<_> = (0..48).map(|lead| if lead < 6 { 0.0 } else { 3000.0 }).collect();
    let unsure = planned(&job, &errors(&unsure));
    assert_eq!((stops(&unsure), first_pause(&unsure)), (0.0, None));
}

#[test]
fn a_plan_with_a_stop_is_not_kept_once_the_stop_is_too_uncertain() {
    let job = job(&sunny(), 16.0, 48.0);
    let old = planned(&job, &errors(&[0.0; 48]));
    let unsure: Vec<_> = (0..48).map(|lead| if lead < 6 { 0.0 } else { 3000.0 }).collect();
    let unsure = errors(&unsure);
    let new = planned(&job, &unsure);
    assert!(stops(&old) > 0.0 && stops(&new) == 0.0);
    let request = Request { errors: Some(&unsure), ..job.request() };
    assert_eq!(keep_if_nearly_as_good(&old, new.clone(), &request, 0.05), new);
}

#[test]
fn a_pause_at_idle_power_needs_a_surer_forecast_than_a_stop() {
    let at_idle = |idle: f64, errors: &ErrorPaths| {
        let mut job = job(&sunny(), 16.0, 48.0);
        job.objective.pausable = Some(costs().pausing(Watts::new(idle)));
        time(&planned(&job, errors), JobActivity::Paused)
    };
    // The noons differ from the other hours by 200 g/kWh; the forecast of the later hours errs by this much.
    let unsure: Vec<_> = (0..48).map(|lead| if lead < 6 { 0.0 } else { 60.0 }).collect();
    assert!(at_idle(0.0, &errors(&unsure)) > 0.0);
    assert_eq!(at_idle(10.0, &errors(&unsure)), 0.0);
    assert!(at_idle(10.0, &errors(&[0.0; 48])) > 0.0);
    // The errors of three days say too little for a pause that costs energy for certain.
    let days = |count: usize| ErrorPaths::of(at(0.0), (0..count).map(|_| vec![0.0; 48]));
    assert!(at_idle(0.0, &days(3)) > 0.0);
    assert_eq!(at_idle(10.0, &days(3)), 0.0);
    assert!(at_idle(10.0, &days(0)) > 0.0, "a forecast without known errors is taken as it is");
}

#[test]
fn a_stopped_job_stays_planned_and_a_newer_forecast_moves_its_restart() {
    let mut job = job(&sunny(), 16.0, 48.0);
    (job.now, job.activity) = (at(2.0 * HOUR), Some(Activity::PausedSince(at(0.0))));
    let sure = errors(&[0.0; 48]);
    let before = first_pause(&planned(&job, &sure)).expect("it stays stopped");
    job.horizon[4..8].iter_mut().for_each(|s| s.intensity = s.intensity * 0.1);
    let after = first_pause(&planned(&job, &sure)).expect("it stays stopped");
    assert!(after < before && after >= at(3.0 * HOUR), "{before} to {after}");
    let unsure: Vec<_> = (0..48).map(|lead| 500.0 * f64::from(lead)).collect();
    assert_eq!(first_pause(&planned(&job, &errors(&unsure))), None, "nothing to wait for");
    // Little time: it is started again at once, in the dirty hours.
    job.objective.deadline = Some(at(18.1 * HOUR));
    assert_eq!(first_pause(&planned(&job, &sure)), None);
}

/// The optimum trains for a quarter of a second before a pause: the plan makes it a whole second, and ends earlier.
#[test]
fn a_run_prolonged_to_a_second_adds_no_work() {
    let intensities = [
        378.0, 262.0, 20.0, 223.0, 20.0, 164.0, 152.0, 115.0, 352.0, 20.0, 407.0, 385.0, 210.0, 171.0, 410.0, 275.0,
        353.0, 158.0, 523.0, 365.0, 400.0, 522.0, 185.0, 272.0, 276.0, 205.0, 449.0, 271.0, 20.0, 20.0,
    ];
    let samples = 2_118_020.0;
    let plan = job(&intensities, samples / (100.0 * HOUR), 28.0).plan();
    let second = |s: &&crate::plan::Segment| s.slot.duration() == Seconds::new(1.0);
    assert_eq!(plan.segments.iter().filter(second).count(), 1, "{:?}", plan.segments);
    assert!((plan.expected.samples.get() - samples).abs() < 0.1, "{}", plan.expected.samples);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plans_with_stops_are_expected_to_emit_no_more_and_end_in_time(
        intensities in proptest::collection::vec(20.0..600.0f64, 30),
        spread in proptest::collection::vec(0.0..200.0f64, 48),
        work in 4.0..14.0f64,
    ) {
        let job = job(&intensities, work, 28.0);
        let (with, without) = (planned(&job, &errors(&spread)), planned(&without_stops(&job), &errors(&spread)));
        prop_assert!(with.expected.carbon.get() <= without.expected.carbon.get() * (1.0 + 1e-6) + 1e-6);
        prop_assert!(with.verdict.broken().is_empty() && with.ends_at() <= at(28.0 * HOUR));
        prop_assert!((with.expected.samples.get() / (100.0 * HOUR * work) - 1.0).abs() < 1e-6);
        // A stop costs its five minutes once.
        prop_assert!((time(&with, JobActivity::Resuming) - 300.0 * stops(&with)).abs() < 1e-3, "{:?}", with.segments);
    }

    /// A stopping job has a longer horizon, whose errors must not change how a job trains that does not stop.
    #[test]
    fn a_job_that_is_not_to_stop_is_planned_like_one_that_may_not(
        intensities in prop_oneof![
            proptest::collection::vec(20.0..600.0f64, 30),
            proptest::collection::vec(280.0..320.0f64, 30),
        ],
        days in proptest::collection::vec((24..48_usize, proptest::collection::vec(-200.0..200.0f64, 48)), 5..12),
        work in 4.0..14.0f64,
        idle in prop_oneof![Just(0.0), Just(50.0)],
    ) {
        let mut job = job(&intensities, work, 28.0);
        job.objective.pausable = Some(costs().pausing(Watts::new(idle)));
        let errors = ErrorPaths::of(at(0.0), days.into_iter().map(|(known, day)| day[..known].to_vec()));
        let (with, without) = (planned(&job, &errors), planned(&without_stops(&job), &errors));
        prop_assert!(stops(&with) > 0.0 || with == without, "{with:?}, {without:?}");
    }

    #[test]
    fn nothing_stops_a_job_under_a_constant_signal(intensity in 1.0..900.0f64, work in 2.0..20.0f64) {
        let job = job(&[intensity; 30], work, 40.0);
        prop_assert_eq!(time(&planned(&job, &errors(&[10.0; 48])), JobActivity::Paused), 0.0);
        prop_assert_eq!(time(&job.plan(), JobActivity::Paused), 0.0);
    }

    /// Each hour brings another forecast, and the job follows the present of each plan.
    #[test]
    fn the_deadline_holds_whatever_forecasts_do(
        forecasts in proptest::collection::vec(proptest::collection::vec(20.0..600.0f64, 30), 30),
        work in 4.0..26.0f64,
    ) {
        let mut job = job(&forecasts[0], work, 28.0);
        let (total, mut log) = (100.0 * HOUR * work, Vec::new());
        for (hour, forecast) in (1..).zip(&forecasts) {
            job.horizon.iter_mut().zip(forecast).for_each(|(slot, c)| slot.intensity = crate::units::GramsPerKwh::new(*c));
            let made = job.plan();
            let now = job.now;
            let is_paused = |activity| matches!(activity, Some(Activity::PausedSince(_)));
            job.follow(&made, at(f64::from(hour) * HOUR), &mut log);
            if job.progress.samples.get() >= total * (1.0 - 1e-9) {
                break;
            }
            // The activity at the end of the hour, and the time since which it lasts.
            let ahead = made.segments.iter().filter(|s| s.slot.start() < job.now && s.slot.end() > now);
            for segment in ahead {
                let pauses = segment.activity == JobActivity::Paused;
                if pauses != is_paused(job.activity) {
                    let since = segment.slot.start();
                    let kind = if pauses { Activity::PausedSince } else { Activity::RunningSince };
                    job.activity = Some(kind(since));
                }
            }
        }
        let end = log.last().map_or(job.now, |(_, end, _)| *end);
        prop_assert!(job.progress.samples.get() >= total * (1.0 - 1e-6), "{} of {total}", job.progress.samples);
        prop_assert!(end <= at(28.0 * HOUR + 1.0), "{end}");
    }
}
