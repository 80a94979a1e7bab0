//! The quality on recorded grids: CISO, PJM, DE and SE in the second half of 2021, and 83 hours of MISO.

use super::{issues, trace};
use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::domain::{CarbonSeries, Intensity, Slot};
use wattune_core::forecast::{BacktestRow, FALLBACK, Model, Pair, PublishedForecasts, Score, backtest, score};

fn before(series: &CarbonSeries, t: DateTime<Utc>) -> CarbonSeries {
    series.within(&Slot::new(DateTime::UNIX_EPOCH, t).expect("after the epoch"))
}

#[expect(clippy::print_stdout, reason = "`--nocapture` shows the scores")]
fn half_year(zone: &str) -> Option<Vec<BacktestRow>> {
    let said = trace(&format!("{zone}_2021H2_carboncast_dayahead.csv"))?.expected;
    let actual = trace(&format!("{zone}_2021_hourly.csv"))?.actual;
    let (from, to) = (said.start()?, said.end()?);
    assert_eq!(to - from, TimeDelta::days(181));
    let rows = backtest(&actual, PublishedForecasts::Rolling(&said), from, to, &[24]);
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row.score.slots == 4344), "{rows:?}");
    println!("{zone}");
    for BacktestRow { source, score, .. } in &rows {
        println!("  {source:14} {score:?}");
    }
    Some(rows)
}

struct Found {
    mape: f64,
    caught: f64,
    coverage: Option<f64>,
}

fn found(rows: &[BacktestRow], source: &str) -> Found {
    let score = rows.iter().find(|row| row.source == source).expect("a row for each source").score;
    Found {
        mape: score.mape_pct.expect("scored"),
        caught: score.caught_gain.expect("whole days"),
        coverage: score.interval80_coverage,
    }
}

#[test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
fn a_day_ahead_on_four_grids() {
    for (zone, mape, caught) in [("CISO", 8.2, 0.98), ("PJM", 3.0, 0.86), ("DE", 13.6, 0.77), ("SE", 4.2, 0.71)] {
        let Some(rows) = half_year(zone) else { return };
        let local = found(&rows, "local");
        assert!(local.mape <= mape && local.caught >= caught, "{zone}: {:.2} {:.3}", local.mape, local.caught);
        let (raw, corrected, feed) = (found(&rows, "provider"), found(&rows, "provider+bias"), found(&rows, "feed"));
        assert!(corrected.mape <= raw.mape && corrected.caught >= raw.caught - 0.001, "{zone}");
        assert!(feed.mape <= raw.mape && feed.caught >= raw.caught - 0.002, "{zone}");
        for (name, row) in [("local", local), ("provider+bias", corrected), ("feed", feed)] {
            let coverage = row.coverage.expect("with intervals");
            assert!((0.74..=0.86).contains(&coverage), "{zone} {name}: {coverage:.3}");
        }
        assert_eq!(raw.coverage, None);
    }
}

/// Half a year of forecasts four days ahead, from this time of day on.
fn four_days_ahead(zone: &str, hour: i64) -> Option<Vec<BacktestRow>> {
    let said = issues(&format!("{zone}_2021H2_carboncast_96h.csv"))?;
    let came = trace(&format!("{zone}_2021_hourly.csv"))?;
    let from = said[0].issued_at + TimeDelta::hours(hour);
    let to = said[0].issued_at + TimeDelta::days(181);
    Some(backtest(&came.actual, PublishedForecasts::Issued(&said), from, to, &[96]))
}

#[test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
fn four_days_ahead_each_day_is_learnt_by_itself() {
    // In the middle of the day what is left of an issue's first day is better than what follows it.
    for (zone, hour) in [("CISO", 0), ("PJM", 0), ("DE", 0), ("SE", 0), ("PJM", 6), ("SE", 15)] {
        let Some(rows) = four_days_ahead(zone, hour) else { return };
        let of = |source: &str| rows.iter().find(|row| row.source == source).expect("a row for each source");
        let caught = |score: &Score| score.caught_gain.expect("whole days");
        let (provider, local, feed) = (of("provider"), of("local"), of("feed"));
        for (day, feed) in feed.by_day.iter().enumerate() {
            let coverage = feed.interval80_coverage.expect("with intervals");
            let better = caught(&provider.by_day[day]).max(caught(&local.by_day[day]));
            let named = format!("{zone} from {hour}:00, day {}", day + 1);
            println!("{named}: {coverage:.3} covered, {:.3} caught of {better:.3}", caught(feed));
            assert!((0.76..=0.84).contains(&coverage), "{named}: {coverage:.3}");
            assert!(caught(feed) >= better - 0.01, "{named}: {:.3}, {better:.3}", caught(feed));
            let (ours, theirs) = (feed.mape_pct.expect("scored"), provider.by_day[day].mape_pct.expect("scored"));
            assert!(ours <= 1.02 * theirs, "{named}: {ours:.2} and {theirs:.2} %");
        }
    }
}

#[test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
fn an_hour_ahead_the_feed_is_no_worse_than_the_local_forecaster() {
    // On SE the local forecaster is the better one there, on DE the source.
    for (zone, day) in [("CISO", 40), ("PJM", 40), ("DE", 40), ("SE", 30), ("SE", 40)] {
        let said = issues(&format!("{zone}_2021H2_carboncast_96h.csv"));
        let (Some(said), Some(came)) = (said, trace(&format!("{zone}_2021_hourly.csv"))) else { return };
        let from = said[day].issued_at;
        let rows = backtest(&came.actual, PublishedForecasts::Issued(&said), from, from + TimeDelta::days(8), &[1]);
        let (local, feed) = (found(&rows, "local").mape, found(&rows, "feed").mape);
        println!("{zone}, day {day}: {feed:.3} and {local:.3} %");
        assert!(feed <= local + 0.01, "{zone}, day {day}: {feed:.3} and {local:.3}");
    }
}

#[test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
fn an_hour_ahead_intervals_are_narrower_and_hold_as_much() {
    let said = trace("DE_2021H2_carboncast_dayahead.csv");
    let (Some(said), Some(came)) = (said, trace("DE_2021_hourly.csv")) else { return };
    let from = said.expected.start().expect("not empty") + TimeDelta::days(40);
    let to = from + TimeDelta::days(10);
    let rows = backtest(&came.actual, PublishedForecasts::Rolling(&said.expected), from, to, &[1]);
    let raw = found(&rows, "provider");
    for source in ["local", "provider+bias", "feed"] {
        let row = found(&rows, source);
        let coverage = row.coverage.expect("with intervals");
        assert!(row.mape < raw.mape && (0.74..=0.86).contains(&coverage), "{source}: {:.2} {coverage:.3}", row.mape);
    }
}

#[test]
fn bias_correction_saves_the_miso_forecast() {
    let Some(file) = trace("miso_mason_city_2022-10.csv") else { return };
    let (said, actual) = (&file.expected, &file.actual);
    let start = said.start().expect("not empty") + TimeDelta::hours(24);
    let end = said.end().expect("not empty");
    let rows = backtest(actual, PublishedForecasts::Rolling(said), start, end, &[1, 24]);
    for (horizon_h, most) in [(1, 3.5), (24, 4.5)] {
        let rows: Vec<_> = rows.iter().filter(|row| row.horizon_h == horizon_h).cloned().collect();
        for source in ["provider+bias", "feed"] {
            let mape = found(&rows, source).mape;
            println!("{source} {horizon_h} h: {mape:.2} %");
            assert!(mape < most, "{source} {horizon_h} h: {mape:.2} %");
        }
    }
    // The stricter reading: outcomes are known up to the full lead before each slot begins.
    for (lead, most) in [(1, 3.5), (24, 4.5)] {
        let pair = |(slot, came): &(Slot, Intensity)| {
            let now = slot.start() - TimeDelta::hours(lead);
            let model = Model::fit(&before(said, now), &[], &before(actual, now), now);
            let horizon = model.outlook(said, now, slot.end(), FALLBACK);
            let ahead = horizon.slots.iter().find(|ahead| ahead.slot.end() > slot.start()).expect("no gaps");
            Pair { slot: *slot, forecast: ahead.intensity, interval: None, actual: came.value }
        };
        let pairs: Vec<_> = actual.points().iter().filter(|p| p.0.start() >= start).map(pair).collect();
        let mape = score(&pairs, start).mape_pct.expect("scored");
        println!("{lead} h before each slot: {mape:.2} %");
        assert!(mape < most, "{lead} h before: {mape:.2} %");
    }
}

#[test]
fn outlooks_of_the_miso_trace_are_followed_with_caution() {
    let Some(file) = trace("miso_mason_city_2022-10.csv") else { return };
    for hours in [24, 36, 48] {
        let now = file.expected.start().expect("not empty") + TimeDelta::hours(hours);
        let model = Model::fit(&file.expected, &[], &before(&file.actual, now), now);
        let skill = model.skill();
        println!("after {hours} h: {skill:?}");
        assert!(skill.factor < 0.6, "after {hours} h: {skill:?}");
        assert!(skill.bias_g_per_kwh.expect("evidence") > 40.0, "{skill:?}");
        let horizon = model.outlook(&file.expected, now, now + TimeDelta::hours(8), FALLBACK);
        assert_eq!(horizon.summary().corrected, horizon.slots.len());
        assert_eq!(model.shrink_by_skill(&horizon).slots.len(), horizon.slots.len());
    }
}

#[test]
fn day_ahead_forecasts_are_followed() {
    for (zone, after_a_day, after_a_fortnight) in [("CISO", 0.8, 0.85), ("DE", 0.75, 0.85), ("PJM", 0.5, 0.6)] {
        let said = trace(&format!("{zone}_2021H2_carboncast_dayahead.csv"));
        let (Some(said), Some(came)) = (said, trace(&format!("{zone}_2021_hourly.csv"))) else { return };
        let skill = |days: i64| {
            let now = said.expected.start().expect("not empty") + TimeDelta::days(days);
            Model::fit(&said.expected, &[], &before(&came.actual, now), now).skill()
        };
        println!("{zone} after a day: {:?}", skill(1));
        assert!(skill(1).factor > after_a_day, "{zone}: {:?}", skill(1));
        for days in (14..180).step_by(14) {
            assert!(skill(days).factor > after_a_fortnight, "{zone} after {days} days: {:?}", skill(days));
        }
    }
}
