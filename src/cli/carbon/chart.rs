//! A forecast as a small text chart.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

const ROWS: usize = 8;
const HOURS: i64 = 48;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a forecast's hourly means as columns, from `now` on. Empty if there is no value to draw.
pub(super) fn chart(forecast: &Value, now: DateTime<Utc>) -> String {
    let means: Vec<Option<f64>> = (0..HOURS).map(|h| mean(forecast, now + TimeDelta::hours(h))).collect();
    let known = means.iter().flatten().copied();
    let (Some(low), Some(high)) = (known.clone().reduce(f64::min), known.reduce(f64::max)) else {
        return String::new();
    };
    // The axis begins at zero, so that half the height means half the intensity.
    let unit = high.max(1.0) / ROWS as f64;
    let mut chart = String::from("\n");
    for row in (0..ROWS).rev() {
        let label = if row == ROWS - 1 { format!("{high:.0}") } else { String::new() };
        chart += &format!("{label:>6} ┤");
        for mean in &means {
            let filled = mean.map_or(0.0, |m| (m / unit - row as f64).clamp(0.0, 1.0));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 8")]
            let eighth = (filled * 8.0).round() as usize;
            chart.push(EIGHTHS[eighth]);
        }
        chart.push('\n');
    }
    chart += &format!("     0 └{}\n        ", "─".repeat(means.len()));
    let mut hour = 0;
    while hour < HOURS {
        chart += &format!("{:<6}", (now + TimeDelta::hours(hour)).format("%H"));
        hour += 6;
    }
    let extreme = |value: f64| {
        let hour = means.iter().position(|m| *m == Some(value)).unwrap_or_default();
        #[expect(clippy::cast_possible_wrap, reason = "less than 48")]
        (now + TimeDelta::hours(hour as i64)).format("%a %H:%MZ").to_string()
    };
    chart +=
        &format!("UTC\n        lowest {low:.0} g/kWh at {}, highest {high:.0} at {}\n", extreme(low), extreme(high));
    chart
}

/// Returns the time-weighted mean forecast of the hour from `start` on; `None` without values.
fn mean(forecast: &Value, start: DateTime<Utc>) -> Option<f64> {
    let end = start + TimeDelta::hours(1);
    let time = |value: &Value| Some(DateTime::parse_from_rfc3339(value.as_str()?).ok()?.to_utc());
    let (mut sum, mut seconds) = (0.0, 0.0);
    for slot in forecast.as_array().into_iter().flatten() {
        let (Some(from), Some(to)) = (time(&slot["start"]), time(&slot["end"])) else { continue };
        let shared = (to.min(end) - from.max(start)).as_seconds_f64();
        if let Some(value) = slot["intensity_g_per_kwh"].as_f64().filter(|_| shared > 0.0) {
            sum += value * shared;
            seconds += shared;
        }
    }
    (seconds > 0.0).then(|| sum / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_is_drawn_and_its_extremes_are_named() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let slot = |h: i64, value: f64| {
            let at = |h| (now + TimeDelta::hours(h)).to_rfc3339();
            serde_json::json!({"start": at(h), "end": at(h + 1), "intensity_g_per_kwh": value})
        };
        let slots: Vec<Value> = (0..30).map(|h| slot(h, if h == 6 { 80.0 } else { 320.0 })).collect();
        let chart = chart(&slots.into(), now);
        assert!(chart.contains("   320 ┤██████ ███"), "{chart}");
        assert!(chart.contains("lowest 80 g/kWh at Fri 06:00Z, highest 320 at Fri 00:00Z"), "{chart}");
        assert_eq!(super::chart(&serde_json::json!([]), now), "");
    }
}
