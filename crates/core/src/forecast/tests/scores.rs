//! Scores computed by hand.

use super::*;
use crate::domain::{Issued, SignalKind, SignalScope, Zone};
use crate::forecast::{Pair, Score, score, score_issued};
use crate::units::Seconds;

fn pairs(step: i64, values: &[(f64, f64)]) -> Vec<Pair> {
    let pair = |(i, (published, outcome)): (i64, &(f64, f64))| Pair {
        slot: slot(i * step, (i + 1) * step),
        forecast: GramsPerKwh::new(*published),
        interval: None,
        actual: GramsPerKwh::new(*outcome),
    };
    (0..).zip(values).map(pair).collect()
}

fn close(found: Option<f64>, expected: f64) {
    assert!(found.is_some_and(|f| (f - expected).abs() < 1e-9), "{found:?} is not {expected}");
}

/// Returns (forecast, actual) for each hour of a day.
fn day(values: impl Fn(u8) -> (f64, f64)) -> Vec<(f64, f64)> {
    (0..24).map(values).collect()
}

#[test]
fn errors_are_means_over_time() {
    let mut all = pairs(60, &[(110.0, 100.0), (150.0, 200.0)]);
    let found = score(&all, at(0));
    close(found.mape_pct, 17.5); // (10 % + 25 %) / 2
    close(found.bias_g_per_kwh, -20.0); // (10 − 50) / 2
    assert_eq!((found.slots, found.hours), (2, 2.0));
    assert_eq!((found.rank_correlation, found.caught_gain, found.interval80_coverage), (None, None, None));
    // The second slot is now three hours long; only the first actual value lies in its interval.
    all[1].slot = slot(60, 240);
    all[0].interval = Some((GramsPerKwh::new(100.0), GramsPerKwh::new(120.0)));
    all[1].interval = Some((GramsPerKwh::new(100.0), GramsPerKwh::new(199.0)));
    let found = score(&all, at(0));
    close(found.mape_pct, 21.25); // (10 % + 3 · 25 %) / 4
    close(found.bias_g_per_kwh, -35.0); // (10 − 3 · 50) / 4
    close(found.interval80_coverage, 0.25);
}

#[test]
fn outcomes_of_zero_have_no_relative_error() {
    let found = score(&pairs(60, &[(10.0, 0.0), (110.0, 100.0)]), at(0));
    close(found.mape_pct, 10.0);
    close(found.bias_g_per_kwh, 10.0);
    assert_eq!(score(&pairs(60, &[(10.0, 0.0)]), at(0)).mape_pct, None);
    assert_eq!(score(&[], at(0)), Score::default());
}

#[test]
fn caught_gain_is_the_share_of_the_possible_saving() {
    // Actual: 100 for six hours, 200 for six, 300 for twelve; mean 225, so 125 can be saved.
    let outcome = |h: u8| {
        if h < 6 {
            100.0
        } else if h < 12 {
            200.0
        } else {
            300.0
        }
    };
    close(score(&pairs(60, &day(|h| (outcome(h), outcome(h)))), at(0)).caught_gain, 1.0);
    // The forecast is lowest from 6 to 11 h: it saves 25 of 125.
    let second = |h: u8| if (6..12).contains(&h) { 1.0 } else { 2.0 };
    close(score(&pairs(60, &day(|h| (second(h), outcome(h)))), at(0)).caught_gain, 0.2);
    // The forecast is lowest at the dirtiest hours: it saves −75 of 125.
    close(score(&pairs(60, &day(|h| (500.0 - outcome(h), outcome(h)))), at(0)).caught_gain, -0.6);
    // Gains are summed over days before they are divided: (125 + 25) / 250, here in half hours.
    let halves: Vec<_> = (0..96_u8).map(|i| (i / 48, (i % 48) / 2)).collect();
    let both: Vec<_> =
        halves.iter().map(|(d, h)| (if *d == 0 { outcome(*h) } else { second(*h) }, outcome(*h))).collect();
    close(score(&pairs(30, &both), at(0)).caught_gain, 0.6);
}

#[test]
fn six_hours_are_hours_of_time_and_not_slots() {
    // Slots of 4 hours at 100, 200, … 600: the cleanest six hours are 4 at 100 and 2 at 200.
    let found = score(
        &pairs(240, &[(1.0, 100.0), (2.0, 200.0), (3.0, 300.0), (4.0, 400.0), (6.0, 500.0), (5.0, 600.0)]),
        at(0),
    );
    close(found.caught_gain, 1.0);
    // The forecast has the order of 500 and 600 wrong: ranks differ by 1 twice, ρ = 1 − 6 · 2 / (6 · 35).
    close(found.rank_correlation, 1.0 - 12.0 / 210.0);
}

#[test]
fn equal_values_share_their_ranks() {
    // Eight hours each; forecast ranks 0.5, 0.5, 2 and actual ranks 0, 1, 2: ρ = 1.5 / √(1.5 · 2).
    let found = score(&pairs(480, &[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)]), at(0));
    close(found.rank_correlation, 1.5 / 3.0_f64.sqrt());
    let flat = score(&pairs(480, &[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), at(0));
    assert_eq!(flat.rank_correlation, None);
}

#[test]
fn days_that_are_mostly_unknown_do_not_count_as_days() {
    let values = day(|h| (f64::from(h), f64::from(h)));
    assert!(score(&pairs(60, &values[..20]), at(0)).caught_gain.is_some());
    let found = score(&pairs(60, &values[..19]), at(0));
    assert_eq!((found.caught_gain, found.rank_correlation, found.slots), (None, None, 19));
    // If days begin at noon, the same 24 hours are two half days.
    assert_eq!(score(&pairs(60, &values), at(12 * 60)).caught_gain, None);
}

fn issued(source: &str, at_minute: i64, values: CarbonSeries) -> Issued {
    Issued {
        source: source.into(),
        zone: Zone::new("X").expect("a zone"),
        kind: SignalKind::Average,
        scope: SignalScope::Unspecified,
        issued_at: at(at_minute),
        retrieved_at: at(at_minute),
        series: values,
    }
}

#[test]
fn issued_forecasts_count_as_they_stood_when_their_block_began() {
    let actual = hourly(0, 24, |_| 100.0);
    // Every half hour a forecast is issued; its error is its issue time in half hours since midnight.
    let off = |i: i64| hourly(i / 2 - 1, 48, move |_| 100.0 + i as f64);
    let mut all: Vec<_> = (0..48).map(|i| issued("a", i * 30, off(i))).collect();
    // One hour ahead, the forecast of the full hour counts: 0, 2, 4, … 46, on average 23 %.
    let found = score_issued(&all, &actual, at(24 * 60), Seconds::new(3600.0));
    close(found.mape_pct, 23.0);
    assert_eq!(found.slots, 24);
    // One day ahead, the forecast of midnight counts, in any input order.
    all.reverse();
    close(score_issued(&all, &actual, at(24 * 60), Seconds::new(86_400.0)).mape_pct, 0.0);
    // Excluded: actual values not known yet, hours without an earlier forecast, and other sources.
    assert_eq!(score_issued(&all, &actual, at(90), Seconds::new(3600.0)).slots, 1);
    all.retain(|i| i.issued_at > at(0));
    assert_eq!(score_issued(&all, &actual, at(24 * 60), Seconds::new(86_400.0)).slots, 0);
    assert_eq!(score_issued(&all, &actual, at(24 * 60), Seconds::new(3600.0)).slots, 23);
    all.push(issued("b", 0, off(0)));
    assert_eq!(score_issued(&all, &actual, at(24 * 60), Seconds::new(86_400.0)).slots, 0);
    assert_eq!(score_issued(&[], &actual, at(24 * 60), Seconds::new(3600.0)), Score::default());
}
