//! Tests how far plans follow uncertain forecasts.

use std::ops::Not;

use super::instances::at;
use super::receding::{Job, training};
use crate::domain::Work;
use crate::forecast::ErrorPaths;
use crate::plan::{FirstPlan, PastEmissions, Plan, Reason, Request, Verdict, plan};
use crate::units::{GramsCo2e, GramsPerKwh, Samples, Seconds};

/// Returns the forecast errors of eight days: `error` gives the error in g/kWh by lead in hours; its sign alternates
/// from day to day.
fn errors(job: &Job, error: impl Fn(usize) -> f64) -> ErrorPaths {
    let sign = |day: usize| if day.is_multiple_of(2) { 1.0 } else { -1.0 };
    let day = |day| (0..48).map(|lead| sign(day) * error(lead)).collect();
    ErrorPaths::of(job.horizon[0].slot.start(), (0..8).map(day))
}

fn planned(job: &Job, errors: &ErrorPaths) -> Plan {
    plan(&Request { errors: Some(errors), ..job.request() }).expect("plannable")
}

/// Returns the samples that a plan does in the first hour.
fn present(job: &Job, plan: &Plan) -> f64 {
    let end = job.horizon[0].slot.end();
    plan.segments.iter().filter(|s| s.slot.end() <= end).map(|s| s.samples().get()).sum()
}

/// Returns the samples per hour of the best constant mix of two limits, which uses the whole slowdown budget of this
/// job.
fn constant(job: &Job) -> f64 {
    let Work::TotalSamples(total) = job.work else { unreachable!("its work is known") };
    let pace = job.profile.points[0].throughput.mean.get() / 1.1;
    assert!(pace * 3600.0 < total.get());
    pace * 3600.0
}

#[test]
fn a_forecast_without_errors_is_followed_fully() {
    let job = training();
    let plan = planned(&job, &errors(&job, |_| 0.0));
    assert_eq!(plan, job.plan());
    assert!(plan.is_restrained().not());
    assert!(present(&job, &plan) > constant(&job) * 1.02, "the first hour is the cleanest");
}

#[test]
fn uncertain_differences_are_not_exploited() {
    let job = training();
    let doubtful = planned(&job, &errors(&job, |lead| if lead == 0 { 1200.0 } else { -1200.0 }));
    assert!(doubtful.is_restrained(), "{:?}", doubtful.segments[0].reason);
    assert_eq!(doubtful.verdict, Verdict::Optimal);
    let (is, constant, best) = (present(&job, &doubtful), constant(&job), present(&job, &job.plan()));
    assert!(is < constant + 0.2 * (best - constant), "{is} is nearer to {constant} than to {best}");
    assert!((doubtful.expected.samples - job.plan().expected.samples).abs().get() < 200.0, "the work is done");
}

#[test]
fn errors_shared_by_all_hours_do_not_count() {
    let job = training();
    let of_level = planned(&job, &errors(&job, |_| 1200.0));
    let of_difference = planned(&job, &errors(&job, |lead| if lead == 0 { 1200.0 } else { -1200.0 }));
    let (level, difference) = (present(&job, &of_level), present(&job, &of_difference));
    assert!(level > difference, "{level} and {difference}");
}

#[test]
fn losses_against_the_baseline_are_not_risked_again() {
    let mut job = training();
    let known = errors(&job, |lead| if lead == 0 { 26.0 } else { -26.0 });
    assert!(planned(&job, &known).is_restrained().not());
    let lost = |grams| PastEmissions { intensity: GramsPerKwh::new(400.0), carbon: GramsCo2e::new(grams) };
    job.progress.elapsed = Seconds::new(360.0);
    job.progress.samples = Samples::new(360.0 * 100.0 / 1.1);
    // The constant mix draws about 205 W.
    job.progress.past_emissions = Some(lost(205.0 * 0.1 / 1000.0 * 400.0));
    assert!(planned(&job, &known).is_restrained().not());
    job.progress.past_emissions = Some(lost(5.0 * 205.0 * 0.1 / 1000.0 * 400.0));
    assert!(planned(&job, &known).is_restrained());
}

#[test]
fn losses_of_profiling_do_not_count() {
    let mut job = training();
    let known = errors(&job, |lead| if lead == 0 { 26.0 } else { -26.0 });
    // The job was profiled for 600 s, in which it did 30,000 samples at 300 W. Then it ran for 360 s at the best constant
    // mix of the rest, 93.1 samples/s, which draws about 231 W.
    let rest = (1_080_000.0 - 30_000.0) / (11_880.0 - 600.0);
    job.progress.elapsed = Seconds::new(960.0);
    job.progress.samples = Samples::new(30_000.0 + 360.0 * rest);
    let grams = |watts: f64, seconds: f64| watts * seconds / 3.6e6 * 400.0;
    let past = |grams| Some(PastEmissions { intensity: GramsPerKwh::new(400.0), carbon: GramsCo2e::new(grams) });
    let since = grams(231.0, 360.0);
    job.progress.past_emissions = past(since + grams(300.0, 600.0));
    assert!(
        planned(&job, &known).is_restrained(),
        "counted from the job's start, profiling cost more than may be lost"
    );
    job.progress.first_plan = FirstPlan { elapsed: Seconds::new(600.0), reference_time: Seconds::new(300.0) };
    job.progress.past_emissions = past(since);
    assert!(planned(&job, &known).is_restrained().not());
    // Losses since the first plan count.
    job.progress.past_emissions = past(5.0 * since);
    assert!(planned(&job, &known).is_restrained());
    // Without known emissions, the baseline begins now.
    job.progress.past_emissions = None;
    assert!(planned(&job, &known).is_restrained().not());
}

#[test]
fn a_constant_forecast_without_errors_is_no_risk() {
    let mut job = training();
    job.horizon.iter_mut().for_each(|slot| slot.intensity = GramsPerKwh::new(500.0));
    // Half of the job is done at the constant mix, which draws 209 W, and has emitted 1.5 % more than expected.
    job.now = at(5940.0);
    job.progress.elapsed = Seconds::new(5940.0);
    job.progress.samples = Samples::new(540_000.0);
    let carbon = GramsCo2e::new(1.015 * 209.1 * 5940.0 / 3.6e6 * 500.0);
    job.progress.past_emissions = Some(PastEmissions { intensity: GramsPerKwh::new(500.0), carbon });
    let plan = planned(&job, &errors(&job, |_| 0.0));
    assert!(matches!(plan.segments[0].reason, Reason::Flat { .. }), "{:?}", plan.segments[0].reason);
    assert!(plan.is_restrained().not());
}

#[test]
fn a_carbon_budget_takes_precedence() {
    let mut job = training();
    let doubtful = errors(&job, |lead| if lead == 0 { 1200.0 } else { -1200.0 });
    let (best, restrained) = (job.plan().expected.carbon, planned(&job, &doubtful).expected.carbon);
    assert!(best < restrained);
    job.objective.carbon_budget = Some(restrained * 1.01);
    assert!(planned(&job, &doubtful).is_restrained());
    job.objective.carbon_budget = Some(best + (restrained - best) * 0.1);
    let plan = planned(&job, &doubtful);
    assert!(plan.is_restrained().not() && plan.verdict == Verdict::Optimal, "{:?}", plan.verdict);
}
