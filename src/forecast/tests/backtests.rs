//! Backtests see nothing that was not known.

use super::*;
use crate::domain::{Issued, SignalKind, SignalScope, Zone};
use crate::forecast::{BacktestRow, ModelPolicy, Said, backtest};

#[expect(clippy::cast_precision_loss, reason = "hours of a month")]
fn wave(h: i64) -> f64 {
    let h = h as f64;
    300.0 + 100.0 * (h * 0.2618).sin() + 30.0 * (h * 0.071).cos()
}

fn day(actual: &CarbonSeries, said: Said<'_>, days: i64, horizons: &[u32]) -> Vec<BacktestRow> {
    let (from, to) = (at(0), at(days * 24 * 60));
    backtest(actual, said, from, to, horizons, &ModelPolicy::default())
}

fn named(rows: &[BacktestRow]) -> Vec<(&str, u32)> {
    rows.iter().map(|row| (row.source, row.horizon_h)).collect()
}

#[test]
fn rows_are_there_for_what_can_be_said() {
    let actual = hourly(-72, 48, wave);
    let said = hourly(-72, 48, |h| wave(h) + 20.0);
    assert_eq!(named(&day(&actual, Said::Nothing, 1, &[24])), [("yesterday", 24), ("local", 24), ("feed", 24)]);
    let rows = day(&actual, Said::Rolling(&said), 2, &[1, 24]);
    let sources = ["yesterday", "local", "provider", "provider+bias", "feed"];
    let expected: Vec<_> = [1, 24].iter().flat_map(|h| sources.map(|s| (s, *h))).collect();
    assert_eq!(named(&rows), expected);
    assert!(rows.iter().all(|row| row.score.slots == 48), "{rows:?}");
    let bounded = |row: &BacktestRow| row.score.interval80_coverage.is_some();
    assert!(rows.iter().all(|row| bounded(row) != ["yesterday", "provider"].contains(&row.source)), "{rows:?}");
    assert_eq!(named(&day(&hourly(0, 24, wave), Said::Nothing, 1, &[24])), []);
    assert_eq!(named(&day(&CarbonSeries::default(), Said::Nothing, 1, &[24])), []);
}

#[test]
fn a_day_ahead_its_own_outcomes_are_not_known() {
    // The same forecasts against outcomes of the day that are higher by 50.
    let said = hourly(-72, 48, |h| wave(h) + 20.0);
    let bias = |shift: f64| -> Vec<f64> {
        let actual = hourly(-72, 48, |h| wave(h) + if h >= 0 { shift } else { 0.0 });
        let rows = day(&actual, Said::Rolling(&said), 1, &[24]);
        rows.iter().map(|row| row.score.bias_g_per_kwh.expect("scored")).collect()
    };
    for (plain, shifted) in bias(0.0).iter().zip(bias(50.0)) {
        assert!((plain - 50.0 - shifted).abs() < 1e-9, "{plain} and {shifted}");
    }
}

#[test]
fn forecasts_are_not_seen_before_they_are_issued() {
    let issue = |hour: i64, value: f64| Issued {
        source: "a".into(),
        zone: Zone::new("X").expect("a zone"),
        kind: SignalKind::Average,
        scope: SignalScope::Unspecified,
        issued_at: at(hour * 60),
        retrieved_at: at(hour * 60),
        series: hourly(hour, hour + 48, |_| value),
    };
    let actual = hourly(-24, 48, |_| 100.0);
    let all = [issue(12, 300.0), issue(0, 200.0), issue(36, 400.0)];
    let provider = |days: i64, horizon: u32| {
        let rows = day(&actual, Said::Issued(&all), days, &[horizon]);
        rows.iter().find(|row| row.source == "provider").and_then(|row| row.score.mape_pct).expect("scored")
    };
    assert_eq!(provider(1, 24), 100.0);
    assert_eq!(provider(1, 1), 150.0); // half the day 200, half 300
    assert_eq!(provider(2, 24), 150.0); // 200 on the first day, 300 on the second
}
