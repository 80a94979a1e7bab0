//! The recorded traces, where they are at hand: `WATTUNE_TRACES` names the folder (default: `../shared/data` beside
//! the repository). With `WATTUNE_REQUIRE_TRACES=1` their absence is a failure.

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};

use super::FileSettings;
use super::file::{ParsedFile, parse};
use crate::domain::{CarbonSeries, Slot};
use crate::forecast::{Basis, HorizonPolicy, SkillPolicy, measure_skill, plan_horizon, shrink};

fn trace(name: &str) -> Option<ParsedFile> {
    let folder = std::env::var_os("WATTUNE_TRACES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"));
    let path = folder.join("carbon").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(parse(&bytes, &FileSettings::default(), None).expect("a recorded trace")),
        Err(error) => {
            let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
            assert!(!required, "{} is required: {error}", path.display());
            println!("skipped: {} cannot be read ({error}); set WATTUNE_TRACES", path.display());
            None
        }
    }
}

fn hours_after(start: Option<DateTime<Utc>>, hours: i64) -> DateTime<Utc> {
    start.expect("not empty") + TimeDelta::hours(hours)
}

fn before(series: &CarbonSeries, t: DateTime<Utc>) -> CarbonSeries {
    series.within(&Slot::new(DateTime::UNIX_EPOCH, t).expect("after the epoch"))
}

#[test]
fn the_miso_trace_is_read_whole() {
    let Some(file) = trace("miso_mason_city_2022-10.csv") else { return };
    assert_eq!((file.expected.points().len(), file.actual.points().len()), (167, 167));
    assert_eq!(file.zone.map(String::from).as_deref(), Some("MISO_MASON_CITY"));
    assert!(file.notes.is_empty(), "{:?}", file.notes);
    assert_eq!(file.expected.end(), Some(hours_after(file.expected.start(), 83) + TimeDelta::minutes(30)));
}

#[test]
fn yearly_traces_have_no_gaps() {
    for zone in ["CISO", "PJM", "DE", "SE"] {
        let Some(file) = trace(&format!("{zone}_2021_hourly.csv")) else { return };
        assert_eq!((file.actual.points().len(), file.notes.len()), (8760, 0), "{zone}: {:?}", file.notes);
    }
}

#[test]
fn the_miso_forecast_is_not_followed_after_a_day() {
    let Some(file) = trace("miso_mason_city_2022-10.csv") else { return };
    for hours in [24, 36, 48, 72] {
        let now = hours_after(file.expected.start(), hours);
        let skill = measure_skill(&file.expected, &before(&file.actual, now), now, &SkillPolicy::default());
        assert!(skill.factor < 0.15, "after {hours} h: {skill:?}");
        assert!(skill.bias_g_per_kwh.expect("evidence") > 40.0, "{skill:?}");
        let horizon =
            plan_horizon(&file.expected, now, now + TimeDelta::hours(8), &file.actual, &HorizonPolicy::default());
        let spread = |horizon: &crate::forecast::Horizon| {
            let values: Vec<_> = horizon.slots.iter().map(|s| s.intensity.get()).collect();
            values.iter().copied().fold(f64::MIN, f64::max) - values.iter().copied().fold(f64::MAX, f64::min)
        };
        assert!(spread(&shrink(&horizon, skill.factor)) < 0.15 * spread(&horizon) + 1e-9);
    }
}

#[test]
fn day_ahead_forecasts_are_followed() {
    for (zone, after_a_day, after_a_fortnight) in [("CISO", 0.8, 0.85), ("DE", 0.8, 0.9), ("PJM", 0.5, 0.6)] {
        let said = trace(&format!("{zone}_2021H2_carboncast_dayahead.csv"));
        let (Some(said), Some(came)) = (said, trace(&format!("{zone}_2021_hourly.csv"))) else { return };
        assert!(said.actual.is_empty(), "its column says forecast");
        let factor = |days: i64| {
            let now = hours_after(said.expected.start(), 24 * days);
            measure_skill(&said.expected, &before(&came.actual, now), now, &SkillPolicy::default()).factor
        };
        assert!(factor(1) > after_a_day, "{zone}: {}", factor(1));
        for days in (14..180).step_by(7) {
            assert!(factor(days) > after_a_fortnight, "{zone} after {days} days: {}", factor(days));
        }
    }
}

/// Mean absolute error in % of a day that nothing was forecast for, from midnights a week apart.
#[test]
fn the_daily_shape_is_as_good_as_the_baseline() {
    // carbon-apis.md §9.2, 7-day profile with AR(1): CISO 9.3, PJM 3.6, DE 14.5, SE 4.4.
    for (zone, most) in [("CISO", 10.0), ("PJM", 4.2), ("DE", 16.5), ("SE", 5.0)] {
        let Some(file) = trace(&format!("{zone}_2021_hourly.csv")) else { return };
        let (mut sum, mut hours) = (0.0, 0.0);
        for day in 181..362 {
            let now = hours_after(file.actual.start(), 24 * day);
            let past = before(&file.actual, now);
            let nothing = CarbonSeries::default();
            let horizon = plan_horizon(&nothing, now, now + TimeDelta::days(1), &past, &HorizonPolicy::default());
            assert_eq!(horizon.slots.len(), 24);
            for slot in &horizon.slots {
                assert_eq!(slot.basis, Basis::ExtendedDailyShape);
                let came = file.actual.at(slot.slot.start()).expect("a full year").1.value;
                sum += (slot.intensity - came).abs() / came;
                hours += 1.0;
            }
        }
        let error = 100.0 * sum / hours;
        println!("{zone}: {error:.2} %");
        assert!(error < most, "{zone}: {error:.2} %");
    }
}
