//! A forecast as a small text chart.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::values::time_of;

const ROWS: usize = 8;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Maximum number of columns.
const MOST_COLUMNS: i64 = 72;

/// The time range of a chart, and the part of it to mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart {
    from: DateTime<Utc>,
    columns: i64,
    /// Hours per column.
    step: i64,
    mark: Option<(DateTime<Utc>, DateTime<Utc>)>,
}

impl Chart {
    /// Creates a chart of `hours` hours from a time on, with one column per hour as far as they fit.
    pub(super) fn hours(from: DateTime<Utc>, hours: i64) -> Self {
        let hours = hours.clamp(1, 24 * 3660);
        let step = (hours + MOST_COLUMNS - 1) / MOST_COLUMNS;
        Self { from, columns: (hours + step - 1) / step, step, mark: None }
    }

    /// Marks the columns between two times.
    pub(super) fn marked(self, from: DateTime<Utc>, to: DateTime<Utc>) -> Self {
        Self { mark: Some((from, to)), ..self }
    }

    fn start(&self, column: i64) -> DateTime<Utc> {
        self.from + TimeDelta::hours(column * self.step)
    }

    /// Draws a forecast's means as columns. Empty if there is no value to draw.
    pub(super) fn draw(&self, forecast: &Value) -> String {
        let length = TimeDelta::hours(self.step);
        let means: Vec<Option<f64>> = (0..self.columns).map(|c| mean(forecast, self.start(c), length)).collect();
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
        chart += &format!("     0 └{}\n", "─".repeat(means.len()));
        if let Some((from, to)) = self.mark {
            let is_marked = |c: &i64| self.start(*c) < to && from < self.start(*c) + length;
            let marks: String = (0..self.columns).map(|c| if is_marked(&c) { '▲' } else { ' ' }).collect();
            chart += &format!("        {}\n", marks.trim_end());
        }
        chart += "        ";
        let mut column = 0;
        while column < self.columns {
            let format = if self.step == 1 { "%H" } else { "%d.%m" };
            chart += &format!("{:<6}", self.start(column).format(format));
            column += 6;
        }
        let extreme = |value: f64| {
            let column = means.iter().position(|m| *m == Some(value)).unwrap_or_default();
            #[expect(clippy::cast_possible_wrap, reason = "at most MOST_COLUMNS")]
            self.start(column as i64).format("%a %H:%MZ").to_string()
        };
        chart += &format!(
            "UTC\n        lowest {low:.0} g/kWh at {}, highest {high:.0} at {}\n",
            extreme(low),
            extreme(high)
        );
        chart
    }
}

/// Returns the time-weighted mean forecast of the time from `start` on; `None` without values.
fn mean(forecast: &Value, start: DateTime<Utc>, length: TimeDelta) -> Option<f64> {
    let end = start + length;
    let (mut sum, mut seconds) = (0.0, 0.0);
    for slot in forecast.as_array().into_iter().flatten() {
        let (Some(from), Some(to)) = (time_of(&slot["start"]), time_of(&slot["end"])) else { continue };
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

    fn slots(now: DateTime<Utc>) -> Value {
        let at = |h| (now + TimeDelta::hours(h)).to_rfc3339();
        let slot =
            |h: i64, value: f64| serde_json::json!({"start": at(h), "end": at(h + 1), "intensity_g_per_kwh": value});
        (0..30).map(|h| slot(h, if h == 6 { 80.0 } else { 320.0 })).collect()
    }

    #[test]
    fn a_forecast_is_drawn_and_its_extremes_are_named() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let chart = Chart::hours(now, 48).draw(&slots(now));
        assert!(chart.contains("   320 ┤██████ ███"), "{chart}");
        assert!(chart.contains("lowest 80 g/kWh at Fri 06:00Z, highest 320 at Fri 00:00Z"), "{chart}");
        assert_eq!(Chart::hours(now, 48).draw(&serde_json::json!([])), "");
    }

    #[test]
    fn a_window_is_marked_and_long_times_have_wider_columns() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let (from, to) = (now + TimeDelta::minutes(330), now + TimeDelta::hours(8));
        let chart = Chart::hours(now, 30).marked(from, to).draw(&slots(now));
        assert!(chart.contains("\n             ▲▲▲\n"), "{chart}");
        let long = Chart::hours(now, 24 * 30).draw(&slots(now));
        assert!(long.lines().all(|line| line.chars().count() < 90), "{long}");
        assert!(long.contains("20.10") || long.contains("04.10"), "{long}");
    }
}
