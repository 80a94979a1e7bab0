//! Tests of the policies on made-up grids: an exhaustive search as oracle, and rules that can be followed by hand.

use chrono::{DateTime, TimeDelta, Utc};

use super::*;
use crate::grid::{Foresight, PublishedForecasts, RecordedGrid, VisibleGrid};
use wattune_core::domain::{CarbonSeries, Intensity, Issued, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::{GramsPerKwh, Seconds};

fn at(hours: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_006) + TimeDelta::hours(hours)
}

fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
    let point = |h| {
        let slot = Slot::new(at(h), at(h + 1)).expect("an hour");
        (slot, Intensity { value: GramsPerKwh::new(value(h)), origin: Origin::Measured })
    };
    CarbonSeries::from_points((from..to).map(point).collect()).0
}

/// Returns intensities with a clean noon, cleaner on even days, and some noise.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn sun(hour: i64) -> f64 {
    let (day, of_day) = (hour.div_euclid(24), hour.rem_euclid(24));
    let noon = if (10..15).contains(&of_day) { 150.0 + 40.0 * (day.rem_euclid(2)) as f64 } else { 300.0 };
    noon + (hour * 7919).rem_euclid(17) as f64
}

/// Makes a grid whose forecasts, issued daily for four days, have the error `error` at each hour.
fn grid(error: impl Fn(i64) -> f64) -> RecordedGrid {
    let issue = |day: i64| Issued {
        source: "made-up".into(),
        zone: Zone::new("XX").expect("a zone"),
        kind: SignalKind::Average,
        scope: SignalScope::Lifecycle,
        issued_at: at(24 * day),
        retrieved_at: at(24 * day),
        series: hourly(24 * day, 24 * day + 96, |h| sun(h) - error(h)),
    };
    let forecasts = PublishedForecasts::Issued((-10..20).map(issue).collect());
    RecordedGrid::new("made-up".into(), hourly(-40 * 24, 24 * 24, sun), forecasts)
}

fn study(grid: &RecordedGrid, foresight: Foresight, policies: &[&str]) -> Vec<WaitingRow> {
    let hours = |h: f64| Seconds::new(3600.0 * h);
    let visible = VisibleGrid::new(grid, foresight, hours(80.0));
    let submissions: Vec<DateTime<Utc>> = (0..16).map(|n| at(24 + 5 * n)).collect();
    let policies: Vec<StartPolicy> = policies.iter().map(|name| start_policy(name).expect("known")).collect();
    let study = WaitingStudy {
        grid: &visible,
        durations: &[hours(1.0), hours(4.5)],
        freedoms: &[hours(6.0), hours(30.0)],
        submissions: &submissions,
        policies: &policies,
    };
    let mut steps = 0;
    let rows = study.run(|| steps += 1);
    assert_eq!(steps, study.steps());
    rows
}

#[test]
fn clairvoyant_is_the_best_of_all_minutes() {
    for row in study(&grid(|_| 0.0), Foresight::AsIssued, &["clairvoyant"]) {
        let hour = |minute: i64| sun((row.submitted_at - at(0)).num_hours() + minute.div_euclid(60));
        let (length, within) = ((row.duration_h * 60.0) as i64, (row.within_h * 60.0) as i64);
        let mean = |start: i64| (start..start + length).map(hour).sum::<f64>() / length as f64;
        let least = (0..=within).map(mean).fold(f64::INFINITY, f64::min);
        let best = 100.0 * (1.0 - least / mean(0));
        assert!((row.carbon_reduction_pct - best.max(0.0)).abs() < 1e-9, "{best} {row:?}");
    }
}

#[test]
fn no_policy_beats_clairvoyant_or_starts_out_of_bounds() {
    let names = START_POLICIES.map(|policy| policy.name);
    let noise = |h: i64| f64::from(u8::try_from((h * 31).rem_euclid(50)).expect("small")) - 25.0;
    let rows = study(&grid(noise), Foresight::AsIssued, &names);
    assert_eq!(rows.len(), 7 * 16 * 4);
    for row in &rows {
        assert!(row.carbon_reduction_pct <= row.best_reduction_pct + 1e-9, "{row:?}");
        assert!((0.0..=row.within_h).contains(&row.waited_h), "{row:?}");
        assert_eq!(row.loss_probability.is_some(), row.policy == "when", "{row:?}");
        assert_eq!(row.loss_probability.is_some(), row.stated_window_reduction_pct.is_some(), "{row:?}");
    }
    // Also jobs that start at once have a stated risk: that of the window for which they did not wait.
    let at_once = |r: &&WaitingRow| r.policy == "when" && r.waited_h == 0.0;
    assert!(rows.iter().filter(at_once).any(|r| r.loss_probability.is_some_and(|p| p > 0.5)));
    let mean = |name| {
        let own: Vec<f64> = rows.iter().filter(|r| r.policy == name).map(|r| r.carbon_reduction_pct).collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    assert_eq!(mean("now"), 0.0);
    assert!(mean("when") > mean("two-oclock") && mean("when") >= mean("quantile"), "{}", mean("when"));
}

#[test]
fn with_perfect_forecasts_when_comes_close_to_the_bound() {
    let rows = study(&grid(|_| 0.0), Foresight::Perfect, &["when"]);
    for row in rows {
        // Gains below the minimum gain are not waited for.
        assert!(row.carbon_reduction_pct >= row.best_reduction_pct - 2.0, "{row:?}");
        assert!(row.carbon_reduction_pct >= -1e-9, "{row:?}");
    }
}

#[test]
fn rules_without_forecasts_do_what_they_say() {
    let rows = study(&grid(|_| 0.0), Foresight::Nothing, &["two-oclock", "cleanest-hour", "cats", "quantile"]);
    for row in rows {
        let hour = (row.start - at(0)).num_hours().rem_euclid(24);
        match row.policy {
            "two-oclock" => assert!(hour == 2 || row.waited_h == 0.0, "{row:?}"),
            "cleanest-hour" if row.within_h > 24.0 => assert!((9..=14).contains(&hour), "{row:?}"),
            "cats" | "quantile" => assert_eq!(row.waited_h, 0.0, "no forecast: {row:?}"),
            _ => {}
        }
    }
}

fn row(reduction: f64, stated: Option<f64>) -> WaitingRow {
    WaitingRow {
        policy: "when",
        grid: "XX".into(),
        duration_h: 1.0,
        within_h: 24.0,
        submitted_at: at(0),
        start: at(3),
        waited_h: 3.0,
        at_once_g_per_kwh: 300.0,
        carbon_reduction_pct: reduction,
        best_reduction_pct: 10.0,
        loss_probability: stated,
        stated_window_reduction_pct: stated.map(|_| reduction - 1.0),
    }
}

#[test]
fn means_and_bins_count_losses() {
    let rows = [row(8.0, Some(0.1)), row(-1.0, Some(0.1)), row(-3.0, Some(0.35)), row(0.0, None)];
    let means = waiting_means(&rows);
    assert_eq!(means.len(), 1);
    assert_eq!((means[0].submissions, means[0].carbon_reduction_pct, means[0].captured), (4, 1.0, Some(0.1)));
    assert_eq!((means[0].losing_pct, means[0].losing_over_2_pct, means[0].worst_loss_pct), (50.0, 25.0, 3.0));
    let bins = calibration(&rows);
    assert_eq!(bins.iter().map(|bin| bin.submissions).collect::<Vec<_>>(), [2, 1, 0, 0, 0]);
    assert_eq!((bins[0].stated, bins[0].observed), (Some(0.1), Some(0.5)));
    assert_eq!((bins[4].observed, bins[4].lost_waiting), (None, None));
    // A job that starts at once loses nothing itself; the window for which it did not wait may.
    let at_once = WaitingRow { waited_h: 0.0, start: at(0), ..row(0.0, Some(0.7)) };
    let bins = calibration(&[at_once, row(0.5, Some(0.7))]);
    assert_eq!((bins[3].submissions, bins[3].observed), (2, Some(1.0)));
    assert_eq!((bins[3].waited, bins[3].lost_waiting), (1, Some(0.0)));
}
