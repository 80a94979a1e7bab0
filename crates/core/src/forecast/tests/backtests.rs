//! Tests that backtests use only data known at the time of each forecast.

use super::*;
use crate::domain::{Issued, SignalKind, SignalScope, Zone};
use crate::forecast::{BacktestRow, PublishedForecasts, backtest};

#[expect(clippy::cast_precision_loss, reason = "hours of a month")]
fn wave(h: i64) -> f64 {
    let h = h as f64;
    300.0 + 100.0 * (h * 0.2618).sin() + 30.0 * (h * 0.071).cos()
}

fn day(actual: &CarbonSeries, published: PublishedForecasts<'_>, days: i64, horizons: &[u32]) -> Vec<BacktestRow> {
    let (from, to) = (at(0), at(days * 24 * 60));
    backtest(actual, published, from, to, horizons)
}

fn named(rows: &[BacktestRow]) -> Vec<(&str, u32)> {
    rows.iter().map(|row| (row.source, row.horizon_h)).collect()
}

#[test]
fn rows_cover_all_forecasters_with_data() {
    let actual = hourly(-72, 48, wave);
    let published = hourly(-72, 48, |h| wave(h) + 20.0);
    assert_eq!(
        named(&day(&actual, PublishedForecasts::Nothing, 1, &[24])),
        [("yesterday", 24), ("local", 24), ("feed", 24)]
    );
    let rows = day(&actual, PublishedForecasts::Rolling(&published), 2, &[1, 24]);
    let sources = ["yesterday", "local", "provider", "provider+bias", "feed"];
    let expected: Vec<_> = [1, 24].iter().flat_map(|h| sources.map(|s| (s, *h))).collect();
    assert_eq!(named(&rows), expected);
    assert!(rows.iter().all(|row| row.score.slots == 48), "{rows:?}");
    let bounded = |row: &BacktestRow| row.score.interval80_coverage.is_some();
    assert!(rows.iter().all(|row| bounded(row) != ["yesterday", "provider"].contains(&row.source)), "{rows:?}");
    assert_eq!(named(&day(&hourly(0, 24, wave), PublishedForecasts::Nothing, 1, &[24])), []);
    assert_eq!(named(&day(&CarbonSeries::default(), PublishedForecasts::Nothing, 1, &[24])), []);
}

#[test]
fn a_forecast_does_not_know_actual_values_of_its_day() {
    // The forecasts are the same, but the actual values of the day are higher by `shift`.
    let published = hourly(-72, 48, |h| wave(h) + 20.0);
    let bias = |shift: f64| -> Vec<f64> {
        let actual = hourly(-72, 48, |h| wave(h) + if h >= 0 { shift } else { 0.0 });
        let rows = day(&actual, PublishedForecasts::Rolling(&published), 1, &[24]);
        rows.iter().map(|row| row.score.bias_g_per_kwh.expect("scored")).collect()
    };
    for (plain, shifted) in bias(0.0).iter().zip(bias(50.0)) {
        assert!((plain - 50.0 - shifted).abs() < 1e-9, "{plain} and {shifted}");
    }
}

#[test]
fn forecasts_are_not_seen_before_they_are_issued() {
    let issue = |hour: i64, value: f64| issued(hour, hour + 48, |_| value);
    let actual = hourly(-24, 48, |_| 100.0);
    let all = [issue(12, 300.0), issue(0, 200.0), issue(36, 400.0)];
    let provider = |days: i64, horizon: u32| {
        let rows = day(&actual, PublishedForecasts::Issued(&all), days, &[horizon]);
        rows.iter().find(|row| row.source == "provider").and_then(|row| row.score.mape_pct).expect("scored")
    };
    assert_eq!(provider(1, 24), 100.0);
    assert_eq!(provider(1, 1), 150.0); // half the day 200, half 300
    assert_eq!(provider(2, 24), 150.0); // 200 on the first day, 300 on the second
}

fn issued(hour: i64, until: i64, value: impl Fn(i64) -> f64) -> Issued {
    Issued {
        source: "a".into(),
        zone: Zone::new("X").expect("a zone"),
        kind: SignalKind::Average,
        scope: SignalScope::Unspecified,
        issued_at: at(hour * 60),
        retrieved_at: at(hour * 60),
        series: hourly(hour, until, value),
    }
}

#[test]
fn rows_of_several_days_cover_the_same_hours() {
    let actual = hourly(-10 * 24, 8 * 24, wave);
    let rows = |off: f64| {
        // Forecasts issued up to day 0 are exact; those issued later are off by `off`.
        let issue = |day: i64| issued(day * 24, day * 24 + 24, |h| wave(h) + if day > 0 { off } else { 0.0 });
        let all: Vec<Issued> = (-10..8).map(issue).collect();
        backtest(&actual, PublishedForecasts::Issued(&all), at(0), at(4 * 24 * 60), &[96])
    };
    let right = rows(0.0);
    assert_eq!(right.len(), 5);
    assert!(right.iter().all(|row| row.score.hours == 96.0 + 72.0 + 48.0 + 24.0), "{right:?}");
    for row in &right {
        let hours: Vec<f64> = row.by_day.iter().map(|score| score.hours).collect();
        assert_eq!(hours, [96.0, 72.0, 48.0, 24.0], "{}", row.source);
    }
    // The fourth day ahead is forecast only on the first day, when no wrong issue was known.
    for (right, wrong) in right.iter().zip(rows(80.0)) {
        assert_eq!(right.by_day[3], wrong.by_day[3], "{}", right.source);
    }
    let feed = right.iter().find(|row| row.source == "feed").expect("a row");
    assert!(feed.by_day[0].mape_pct < Some(1.0) && feed.by_day[3].mape_pct > Some(1.0), "{feed:?}");
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "a few days")]
fn errors_at_longer_leads_are_corrected_there() {
    let actual = hourly(-30 * 24, 8 * 24, wave);
    // Each forecast is too high by 30 g/kWh per day since it was issued.
    let issue = |day: i64| issued(day * 24, day * 24 + 96, |h| wave(h) + 30.0 * (h - day * 24).div_euclid(24) as f64);
    let all: Vec<Issued> = (-30..8).map(issue).collect();
    let rows = backtest(&actual, PublishedForecasts::Issued(&all), at(0), at(4 * 24 * 60), &[96]);
    let bias = |source: &str, day: usize| {
        rows.iter().find(|row| row.source == source).and_then(|row| row.by_day[day].bias_g_per_kwh).expect("scored")
    };
    for day in 0..4 {
        assert!((bias("provider", day) - 30.0 * day as f64).abs() < 1e-6, "{}", bias("provider", day));
        assert!(bias("provider+bias", day).abs() < 3.0, "day {day}: {}", bias("provider+bias", day));
    }
}
