//! Tests of replays against figures that were worked out by hand, or second by second.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};

use super::*;
use crate::grid::{Foresight, PublishedForecasts, RecordedGrid, VisibleGrid};
use crate::policy::{POLICIES, named};
use crate::study::{CaseResult, Figures, Row, Study, StudyError, means};
use crate::traces::{TraceFile, power_profile};
use wattune_core::domain::{
    CarbonSeries, Estimate, Intensity, Issued, OperatingPoint, Origin, Pausing, PowerLimit, Profile, SignalKind,
    SignalScope, Slot, Zone,
};
use wattune_core::units::{GramsPerKwh, SamplesPerSecond, Seconds, Watts};

fn at(hours: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::hours(hours)
}

fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
    let point = |h| {
        let slot = Slot::new(at(h), at(h + 1)).expect("an hour");
        (slot, Intensity { value: GramsPerKwh::new(value(h)), origin: Origin::Measured })
    };
    CarbonSeries::from_points((from..to).map(point).collect()).0
}

#[expect(clippy::cast_precision_loss, reason = "hours of a month")]
fn wave(h: i64) -> f64 {
    300.0 + 90.0 * (h as f64 / 24.0 * std::f64::consts::TAU).sin() + 25.0 * (h as f64 / 7.3).cos()
}

/// Returns a job that takes `hours` at the largest of three limits; the middle limit is the most efficient.
fn job(hours: f64) -> Job {
    let point = |limit: f64, throughput, power| OperatingPoint {
        setting: vec![PowerLimit::from_watts(Watts::new(limit)).into()],
        throughput: Estimate { mean: SamplesPerSecond::new(throughput), relative_error: 0.0 },
        power: Estimate { mean: Watts::new(power), relative_error: 0.0 },
        measured: Seconds::ZERO,
    };
    let points = vec![point(300.0, 100.0, 290.0), point(200.0, 90.0, 195.0), point(100.0, 40.0, 100.0)];
    let workload = "d/n/8".parse().expect("a workload");
    Job::new("gpu".into(), workload, Profile { points }, Seconds::new(hours * 3600.0)).expect("points")
}

fn grid(forecasts: PublishedForecasts) -> RecordedGrid {
    RecordedGrid::new("grid".into(), hourly(-40 * 24, 200, wave), forecasts)
}

fn run(grid: &RecordedGrid, foresight: Foresight, policy: &str, budget: f64) -> Replayed {
    let job = job(30.5);
    let visible = VisibleGrid::new(grid, foresight, Seconds::new(60.0 * 3600.0));
    let decide = named(policy).expect("known").mode.within_budget().expect("keeps a budget");
    let setting =
        Setting { job: &job, believed: &job.profile, profile_error: 0.0, start: at(5), pausing: None, grid: &visible };
    replay(setting, Some(budget), Seconds::ZERO, decide).expect("fits into the trace")
}

#[test]
fn the_largest_limit_saves_nothing_and_takes_no_longer() {
    let max = run(&grid(PublishedForecasts::Nothing), Foresight::Nothing, "max", 0.1).against_max;
    assert!(max.carbon_reduction_pct.abs() < 1e-9 && max.time_increase_pct.abs() < 1e-9, "{max:?}");
    assert!(max.energy_effect_pct.abs() < 1e-9 && max.timing_effect_pct.abs() < 1e-9, "{max:?}");
}

#[test]
fn static_is_the_mix_that_a_hand_would_choose() {
    let grid = grid(PublishedForecasts::Nothing);
    // 3 % more time needs a throughput of 100/1.03: `share` of the time at 300 W (100/s), the rest at 200 W (90/s).
    let found = run(&grid, Foresight::Nothing, "static", 0.03);
    let share = (100.0 / 1.03 - 90.0) / 10.0;
    let power = share * 290.0 + (1.0 - share) * 195.0;
    assert!((found.energy.get() - power * 30.5 * 3600.0 * 1.03).abs() < 1.0, "{found:?}");
    assert!((found.against_max.time_increase_pct - 3.0).abs() < 1e-6);
    assert!(found.against_max.timing_effect_pct.abs() < 1e-6);
    // With a budget of 30 %, static stays at the most efficient limit, at which the job takes 11.1 % longer.
    let found = run(&grid, Foresight::Nothing, "static", 0.3);
    assert!((found.against_max.time_increase_pct - 100.0 / 9.0).abs() < 1e-6);
}

#[test]
fn zeus_takes_one_limit_and_keeps_the_budget() {
    let grid = grid(PublishedForecasts::Nothing);
    // Zeus's cost per sample (0.5·p + 0.5·300)/r is 2.95 at 300 W, 2.75 at 200 W, and 5 at 100 W.
    let time = |budget| run(&grid, Foresight::Nothing, "zeus", budget).against_max.time_increase_pct;
    assert!((time(0.2) - 100.0 / 9.0).abs() < 1e-6);
    assert!(time(0.1).abs() < 1e-6, "200 W is too slow for 10 %");
}

#[test]
fn zeus_keeps_the_budget_with_the_time_of_a_sweep() {
    let (grid, job) = (grid(PublishedForecasts::Nothing), job(30.0));
    let visible = VisibleGrid::new(&grid, Foresight::Nothing, Seconds::new(60.0 * 3600.0));
    let setting =
        Setting { job: &job, believed: &job.profile, profile_error: 0.0, start: at(5), pausing: None, grid: &visible };
    let decide = named("zeus").expect("known").mode.within_budget().expect("keeps a budget");
    let time = |budget, sweep| {
        let found = replay(setting, Some(budget), Seconds::new(sweep), decide).expect("fits into the trace");
        found.against_max.time_increase_pct
    };
    // 200 W takes 11.11 % longer, and a sweep of 10 minutes a limit costs 0.39 % at 300 W, 0.25 % more at 200 W.
    assert!((time(0.112, 0.0) - 100.0 / 9.0).abs() < 1e-6);
    assert!(time(0.112, 600.0) < 1.0, "200 W is too slow after the sweep: {}", time(0.112, 600.0));
    assert!((11.2..=11.5).contains(&time(0.115, 600.0)), "{}", time(0.115, 600.0));
    // The sweep alone costs more than this, so that no limit keeps the budget.
    assert!(time(0.001, 600.0) < 0.4, "{}", time(0.001, 600.0));
}

#[test]
fn short_jobs_end_although_plans_are_rounded_to_microseconds() {
    let grid = grid(PublishedForecasts::Nothing);
    let visible = VisibleGrid::new(&grid, Foresight::Nothing, Seconds::new(60.0 * 3600.0));
    for hours in [0.01, 0.017, 0.02, 0.03, 0.05, 0.1] {
        let job = job(hours);
        for (policy, budget) in ["wattune", "clairvoyant"].iter().flat_map(|p| [0.01, 0.03, 0.1, 0.3].map(|b| (p, b))) {
            let decide = named(policy).expect("known").mode.within_budget().expect("keeps a budget");
            let (believed, pausing) = (&job.profile, None);
            let setting = Setting { job: &job, believed, profile_error: 0.0, start: at(5), pausing, grid: &visible };
            let found = replay(setting, Some(budget), Seconds::ZERO, decide);
            assert!(found.is_ok(), "{policy}, {hours} h, {budget}: {found:?}");
        }
    }
}

#[test]
fn a_time_without_a_value_is_named_where_it_begins() {
    let mut actual = hourly(-40 * 24, 200, wave);
    actual.remove(Slot::new(at(20), at(22)).expect("two hours"));
    let job = job(30.5);
    let missing = |actual: CarbonSeries, start| {
        let grid = RecordedGrid::new("grid".into(), actual, PublishedForecasts::Nothing);
        let visible = VisibleGrid::new(&grid, Foresight::Nothing, Seconds::new(60.0 * 3600.0));
        let (believed, pausing) = (&job.profile, None);
        let setting = Setting { job: &job, believed, profile_error: 0.0, start, pausing, grid: &visible };
        let decide = named("static").expect("known").mode.within_budget().expect("keeps a budget");
        replay(setting, Some(0.1), Seconds::ZERO, decide).expect_err("no value")
    };
    assert_eq!(missing(actual.clone(), at(5)), ReplayError::BeyondTrace(at(20)));
    assert_eq!(missing(actual.clone(), at(180)), ReplayError::BeyondTrace(at(200)));
    assert_eq!(missing(actual, at(21)), ReplayError::BeyondTrace(at(21)));
}

/// From hour 5 on, the reference ends before the intensity rises, and slower jobs do not.
#[test]
fn a_start_without_emissions_has_rows_without_figures() {
    let actual = hourly(-40 * 24, 200, |h| if (0..36).contains(&h) { 0.0 } else { wave(h) });
    let grid = RecordedGrid::new("grid".into(), actual, PublishedForecasts::Nothing);
    let visible = VisibleGrid::new(&grid, Foresight::Perfect, Seconds::new(60.0 * 3600.0));
    for node_cap in [None, Some(Watts::new(400.0))] {
        let all: &[&str] =
            if node_cap.is_some() { &["wattune", "clairvoyant"] } else { &["max", "static", "carbon-zeus"] };
        let policies: Vec<_> = all.iter().map(|name| named(name).expect("known")).collect();
        let study = Study {
            jobs: &[job(30.5)],
            node_cap,
            grid: &visible,
            starts: &[at(5), at(60)],
            budgets: &[0.1, 0.25],
            policies: &policies,
            sweep: Seconds::ZERO,
            profile_error: 0.0,
            pausing: None,
            seeds: &[1],
        };
        let mut steps = 0;
        let found = study.run(|| steps += 1).expect("the other start is compared");
        assert_eq!(steps, study.steps());
        for row in found.iter().map(|f| &f.row) {
            assert_eq!(row.no_carbon, row.start == at(5), "{row:?}");
            assert_eq!(row.carbon_reduction_pct.is_none(), row.no_carbon, "{row:?}");
        }
        let rows: Vec<Row> = found.into_iter().map(|f| f.row).collect();
        let of_start = |start: DateTime<Utc>| -> Vec<_> {
            rows.iter().filter(|row| row.start == start).map(|row| (row.policy, row.budget_pct)).collect()
        };
        assert_eq!(of_start(at(5)), of_start(at(60)));
        assert!(means(&rows).iter().all(|mean| mean.rows == 1 && mean.carbon_reduction_pct.is_some()));
    }
}

#[test]
fn the_message_of_a_study_leaves_the_cause_to_its_source() {
    let source = ReplayError::NoCarbon;
    let (workload, budget) = ("d/n/8".to_owned(), "no budget".to_owned());
    let error = StudyError { policy: "static", workload, start: at(0), budget, source };
    assert!(!error.to_string().contains("zero"), "{error}");
    let source = std::error::Error::source(&error).expect("the cause").to_string();
    assert!(source.contains("zero"), "{source}");
}

#[test]
fn carbon_is_what_a_sum_over_seconds_gives() {
    let grid = grid(PublishedForecasts::Nothing);
    for policy in ["wattune", "clairvoyant", "static"] {
        let found = run(&grid, Foresight::Perfect, policy, 0.05);
        let job = job(30.5);
        let (mut grams, mut samples, mut seconds) = (0.0, 0.0, 0.0);
        for leg in &found.legs {
            let Action::Train(shares) = &leg.action else { panic!("no pause is allowed") };
            let mut t = leg.slot.start();
            while t < leg.slot.end() {
                let next = (t + TimeDelta::seconds(1)).min(leg.slot.end());
                let length = (next - t).as_seconds_f64();
                let (_, intensity) = grid.actual.at(t).expect("known");
                for (point, share) in shares {
                    let point = &job.profile.points[*point];
                    grams += point.power.mean.get() * share * length * intensity.value.get() / 3.6e6;
                    samples += point.throughput.mean.get() * share * length;
                }
                seconds += length;
                t = next;
            }
        }
        // The loop counts a second that crosses a full hour with the intensity at its beginning: at most a part in
        // 10,000.
        assert!((grams / found.carbon.get() - 1.0).abs() < 1e-4, "{policy}: {grams} {}", found.carbon);
        assert!((samples / job.work.get() - 1.0).abs() < 1e-6, "{policy}");
        assert!((seconds - found.time.get()).abs() < 1e-3, "{policy}");
        let effects = found.against_max.energy_effect_pct + found.against_max.timing_effect_pct;
        assert!((effects - found.against_max.carbon_reduction_pct).abs() < 1e-9, "{policy}");
    }
}

/// Returns the values of `series` as forecasts issued each day at 00:00 UTC for the slots that begin on that day.
fn day_ahead(series: &CarbonSeries) -> Vec<Issued> {
    let midnight = |slot: &Slot| slot.start().date_naive().and_time(chrono::NaiveTime::MIN).and_utc();
    let issued = |points: &[(Slot, Intensity)]| Issued {
        source: "file".into(),
        zone: Zone::new("file").expect("a zone"),
        kind: SignalKind::Unspecified,
        scope: SignalScope::Unspecified,
        issued_at: midnight(&points[0].0),
        retrieved_at: midnight(&points[0].0),
        series: CarbonSeries::from_points(points.to_vec()).0,
    };
    series.points().chunk_by(|a, b| midnight(&a.0) == midnight(&b.0)).map(issued).collect()
}

fn rows(grid: &RecordedGrid, foresight: Foresight, sweep: f64, pausing: Option<Pausing>) -> Vec<CaseResult> {
    let visible = VisibleGrid::new(grid, foresight, Seconds::new(60.0 * 3600.0));
    let study = Study {
        jobs: &[job(30.0)],
        node_cap: None,
        grid: &visible,
        starts: &[at(3), at(20)],
        budgets: &[0.0, 0.02, 0.05, 0.25],
        policies: POLICIES,
        sweep: Seconds::new(sweep),
        profile_error: 0.0,
        pausing,
        seeds: &[1],
    };
    study.run(|| ()).expect("fits into the trace")
}

/// Returns the budget in percent (first) and the figures (second) of each row of a policy that has a budget and
/// figures.
fn figures(found: &[CaseResult], policy: &str) -> Vec<(f64, Figures)> {
    let of_policy = found.iter().filter(|f| f.row.policy == policy);
    of_policy
        .filter_map(|f| {
            let (carbon_reduction_pct, time_increase_pct) = f.row.carbon_reduction_pct.zip(f.row.time_increase_pct)?;
            Some((f.row.budget_pct?, Figures { carbon_reduction_pct, time_increase_pct, ..Figures::default() }))
        })
        .collect()
}

#[test]
fn no_policy_beats_the_clairvoyant_and_budgets_are_kept() {
    let forecasts =
        PublishedForecasts::Issued(day_ahead(&hourly(-20 * 24, 200, |h| wave(h) + 40.0 * wave(h + 3).sin())));
    let found = rows(&grid(forecasts), Foresight::AsIssued, 0.0, None);
    let bound = figures(&found, "clairvoyant");
    for policy in ["max", "static", "zeus", "wattune"] {
        for ((budget, reached), (_, bound)) in figures(&found, policy).into_iter().zip(&bound) {
            assert!(reached.carbon_reduction_pct <= bound.carbon_reduction_pct + 1e-6, "{policy} {budget}");
            assert!(reached.time_increase_pct <= budget + 1e-6, "{policy} {budget}: {reached:?}");
        }
    }
    let captured = |policy: &str| -> Vec<f64> {
        let rows = found.iter().filter(|f| f.row.policy == policy);
        rows.filter_map(|f| f.row.captured_headroom).collect()
    };
    assert!(!captured("clairvoyant").is_empty());
    assert!(captured("clairvoyant").iter().all(|c| (c - 1.0).abs() < 1e-9));
    assert!(captured("static").iter().all(|c| c.abs() < 1e-9));
}

#[test]
fn with_perfect_forecasts_planning_anew_is_planning_once() {
    let found = rows(&grid(PublishedForecasts::Nothing), Foresight::Perfect, 0.0, None);
    for ((budget, reached), (_, bound)) in figures(&found, "wattune").iter().zip(figures(&found, "clairvoyant")) {
        let (reached, bound) = (reached.carbon_reduction_pct, bound.carbon_reduction_pct);
        assert!(reached >= 0.995 * bound - 1e-9, "{budget}: {reached} of {bound}");
    }
}

#[test]
fn a_replay_is_the_same_each_time() {
    let once = rows(&grid(PublishedForecasts::Nothing), Foresight::Nothing, 0.0, None);
    let again = rows(&grid(PublishedForecasts::Nothing), Foresight::Nothing, 0.0, None);
    assert!(once.iter().zip(&again).all(|(a, b)| a.row == b.row));
    assert_eq!(once.len(), again.len());
}

#[test]
fn a_sweep_is_charged_to_policies_that_learn() {
    let (plain, swept) = (
        rows(&grid(PublishedForecasts::Nothing), Foresight::Perfect, 0.0, None),
        rows(&grid(PublishedForecasts::Nothing), Foresight::Perfect, 600.0, None),
    );
    for (a, b) in plain.iter().zip(&swept) {
        let learns = ["zeus", "carbon-zeus", "wattune"].contains(&a.row.policy);
        let same = a.row.carbon_reduction_pct == b.row.carbon_reduction_pct;
        assert!(same != learns, "{} {:?}", a.row.policy, a.row.budget_pct);
    }
}

/// Returns the folder of the recorded traces; `None` if it does not exist.
fn traces() -> Option<PathBuf> {
    let named = std::env::var_os("WATTUNE_TRACES").map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
    // A relative path begins at the repository.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(named);
    if folder.join("carbon").is_dir() {
        return Some(folder);
    }
    let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
    assert!(!required, "the traces are required and not at {}", folder.display());
    eprintln!("skipped: no traces at {}; set WATTUNE_TRACES", folder.display());
    None
}

/// Reads a file of hourly values: a header, then lines of time and value.
fn recorded_values(path: &Path) -> CarbonSeries {
    let text = std::fs::read_to_string(path).expect("readable");
    let point = |line: &str| {
        let (time, value) = line.split_once(',').expect("two columns");
        let start: DateTime<Utc> = time.parse().expect("a time");
        let slot = Slot::new(start, start + TimeDelta::hours(1)).expect("an hour");
        let value = GramsPerKwh::new(value.trim().parse().expect("a number"));
        (slot, Intensity { value, origin: Origin::Measured })
    };
    CarbonSeries::from_points(text.lines().skip(1).map(point).collect()).0
}

/// No plan can make up for what a sweep cost, so that cost does not speak against following the forecast.
#[test]
fn after_a_sweep_the_forecast_is_followed_as_without_one() {
    let Some(traces) = traces() else { return };
    let file = TraceFile::read(&traces.join("zeus-traces/summary_power_a40.csv")).expect("readable");
    let workload = "imagenet/resnet50/128".parse().expect("a workload");
    let profile = power_profile(&file, &workload, None).expect("usable");
    let job = Job::new(file.gpu(), workload, profile, Seconds::new(24.0 * 3600.0)).expect("points");
    let actual = recorded_values(&traces.join("carbon/CISO_2021_hourly.csv"));
    let forecasts = day_ahead(&recorded_values(&traces.join("carbon/CISO_2021H2_carboncast_dayahead.csv")));
    let grid = RecordedGrid::new("CISO".into(), actual, PublishedForecasts::Issued(forecasts));
    let decide = named("wattune").expect("known").mode.within_budget().expect("keeps a budget");
    for start in ["2021-08-25T00:00:00Z", "2021-09-25T00:00:00Z"] {
        let reduction = |foresight| {
            let visible = VisibleGrid::new(&grid, foresight, Seconds::new(60.0 * 3600.0));
            let (believed, start) = (&job.profile, start.parse().expect("a time"));
            let setting = Setting { job: &job, believed, profile_error: 0.0, start, pausing: None, grid: &visible };
            let found = replay(setting, Some(0.03), Seconds::new(200.0), decide).expect("fits into the trace");
            found.against_max.carbon_reduction_pct
        };
        let (issued, perfect) = (reduction(Foresight::AsIssued), reduction(Foresight::Perfect));
        assert!(
            (perfect - issued).abs() < 0.2,
            "{start}: {issued} % of the carbon, {perfect} % with perfect foresight"
        );
    }
}

#[test]
fn pauses_count_with_idle_power_and_pay_where_there_is_time() {
    let costs = Pausing {
        idle_power: Watts::new(10.0),
        min_run: Seconds::new(3600.0),
        min_pause: Seconds::new(3600.0),
        checkpoint: Seconds::new(60.0),
    };
    let plain = rows(&grid(PublishedForecasts::Nothing), Foresight::Perfect, 0.0, None);
    let paused = rows(&grid(PublishedForecasts::Nothing), Foresight::Perfect, 0.0, Some(costs));
    let of = |found: &[CaseResult]| {
        let f = found.iter().find(|f| f.row.policy == "wattune" && f.row.budget_pct == Some(25.0));
        let f = f.expect("a row");
        let (carbon, time) = f.row.carbon_reduction_pct.zip(f.row.time_increase_pct).expect("figures");
        (carbon, time, f.replayed.clone().expect("one run"))
    };
    let ((without, _, ran), (with, time, rested)) = (of(&plain), of(&paused));
    assert!(with > without && time <= 25.0 + 1e-6, "{with} {without} {time}");
    let pauses: f64 = rested.legs.iter().filter(|l| l.action == Action::Pause).map(|l| l.slot.duration().get()).sum();
    assert!(pauses >= 3600.0 && ran.legs.iter().all(|l| l.action != Action::Pause), "{pauses}");
}

/// The actions before a time must not depend on actual values or forecasts that are published after this time.
#[test]
fn the_future_does_not_reach_the_past() {
    let forecast = hourly(-20 * 24, 200, |h| wave(h) + 30.0 * wave(h + 5).cos());
    let changed_at = at(24);
    let with = |actual: CarbonSeries, issued: Vec<Issued>| {
        let grid = RecordedGrid::new("grid".into(), actual, PublishedForecasts::Issued(issued));
        run(&grid, Foresight::AsIssued, "wattune", 0.05)
    };
    let actual = hourly(-40 * 24, 200, wave);
    let found = with(actual.clone(), day_ahead(&forecast));
    let mut other = actual;
    other.overwrite(&hourly(24, 200, |h| 500.0 - wave(h)));
    let mut issues = day_ahead(&forecast);
    // Days begin at hours 0 and 24 of `at`; the forecasts issued at hour 24 and later differ.
    for issued in issues.iter_mut().filter(|i| i.issued_at >= changed_at) {
        issued.series = hourly(24, 200, |h| 700.0 - 2.0 * wave(h))
            .within(&Slot::new(issued.issued_at, issued.issued_at + TimeDelta::days(1)).expect("a day"));
    }
    let changed = with(other, issues);
    let before = |run: &Replayed| -> Vec<(DateTime<Utc>, DateTime<Utc>, Action)> {
        let legs = run.legs.iter().filter(|l| l.slot.start() < changed_at);
        legs.map(|l| (l.slot.start(), l.slot.end().min(changed_at), l.action.clone())).collect()
    };
    assert!(before(&found).len() >= 2, "limits changed in between: {:?}", before(&found));
    assert_eq!(before(&found), before(&changed));
    assert_ne!(found.legs, changed.legs, "later it does matter");
}

/// Replays two jobs of different length under a cap in watts.
fn pair(cap: f64, foresight: bool) -> Result<Vec<Replayed>, ReplayError> {
    let (jobs, grid) = ([job(30.5), job(17.0)], grid(PublishedForecasts::Nothing));
    let visible = VisibleGrid::new(&grid, Foresight::Nothing, Seconds::new(60.0 * 3600.0));
    let settings = jobs.each_ref().map(|job| Setting {
        job,
        believed: &job.profile,
        profile_error: 0.0,
        start: at(5),
        pausing: None,
        grid: &visible,
    });
    replay_jointly(&settings, Some(0.05), UnderCap { cap: Watts::new(cap), foresight })
}

#[test]
fn jobs_on_a_node_never_add_up_to_more_than_its_cap() {
    for foresight in [false, true] {
        let pair = pair(430.0, foresight).expect("there is room");
        let limit = |done: &Replayed, t: DateTime<Utc>| {
            let leg = done.legs.iter().find(|leg| leg.slot.contains(t));
            match leg.map(|leg| &leg.action) {
                Some(Action::Train(shares)) => {
                    shares.iter().map(|(point, _)| [300.0, 200.0, 100.0][*point]).fold(0.0, f64::max)
                }
                _ => 100.0,
            }
        };
        let moments: Vec<DateTime<Utc>> = pair.iter().flat_map(|p| &p.legs).map(|leg| leg.slot.start()).collect();
        assert!(moments.iter().all(|&t| limit(&pair[0], t) + limit(&pair[1], t) <= 430.0), "{pair:?}");
        // Under 430 W, a job at 300 W leaves 100 W for the other; else both have at most 200 W. So one of them exceeds
        // its budget of 5 %.
        assert!(pair.iter().any(|p| p.against_max.time_increase_pct > 5.0), "{pair:?}");
        assert!(pair.iter().all(|p| p.against_max.carbon_reduction_pct > 0.0), "{pair:?}");
    }
}

#[test]
fn under_a_cap_with_room_for_all_each_job_runs_as_if_alone() {
    let grid = grid(PublishedForecasts::Nothing);
    let together = pair(600.0, false).expect("there is room");
    let alone = run(&grid, Foresight::Nothing, "wattune", 0.05);
    assert!((together[0].carbon / alone.carbon - 1.0).abs() < 1e-9);
    assert!((together[0].time / alone.time - 1.0).abs() < 1e-9);
    let low = pair(150.0, false).expect_err("two GPUs need 200 W");
    assert_eq!(low, ReplayError::NoRoom { lowest: Watts::new(200.0), cap: Watts::new(150.0) });
}

/// So few errors are known that no pause at idle power pays. Under a cap, they count as they do alone.
#[test]
fn under_a_cap_plans_count_the_errors_of_the_forecast() {
    // Steeper than the other grid, so that pauses pay with certain forecasts.
    let actual = hourly(-48, 200, |h| (3.0 * wave(h) - 550.0).max(20.0));
    let forecasts = PublishedForecasts::Issued(day_ahead(&actual));
    let grid = RecordedGrid::new("grid".into(), actual, forecasts);
    let visible = VisibleGrid::new(&grid, Foresight::AsIssued, Seconds::new(60.0 * 3600.0));
    let costs = Pausing {
        idle_power: Watts::new(10.0),
        min_run: Seconds::new(3600.0),
        min_pause: Seconds::new(3600.0),
        checkpoint: Seconds::new(60.0),
    };
    let job = job(30.0);
    let (believed, pausing) = (&job.profile, Some(costs));
    let setting = Setting { job: &job, believed, profile_error: 0.0, start: at(5), pausing, grid: &visible };
    let alone = |policy| {
        let decide = named(policy).expect("known").mode.within_budget().expect("keeps a budget");
        replay(setting, Some(0.5), Seconds::ZERO, decide).expect("fits into the trace")
    };
    let under = UnderCap { cap: Watts::new(10_000.0), foresight: false };
    let capped = replay_jointly(&[setting], Some(0.5), under).expect("there is room").remove(0);
    let pauses = |run: &Replayed| run.legs.iter().filter(|leg| leg.action == Action::Pause).count();
    assert!(pauses(&alone("clairvoyant")) > 0, "there is time for pauses");
    let alone = alone("wattune");
    assert_eq!((pauses(&alone), pauses(&capped)), (0, 0));
    assert!((capped.carbon / alone.carbon - 1.0).abs() < 1e-9, "{} {}", capped.carbon, alone.carbon);
    assert!((capped.time / alone.time - 1.0).abs() < 1e-9);
}
