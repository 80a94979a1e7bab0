//! The advice as a page of text with a chart.

use chrono::{DateTime, Local, TimeDelta, Utc};
use serde_json::Value;

use crate::cli::chart::Chart;
use crate::cli::values::time_of;

/// Renders an advice for people.
pub(super) fn page(advice: &Value) -> String {
    let mut page = format!("{}\n", text(&advice["advice"]));
    let (start, asked) = (time_of(&advice["start"]), time_of(&advice["asked_at"]));
    if let (Some(start), Some(asked)) = (start, asked) {
        let wait = start - asked;
        let wait = if wait > TimeDelta::zero() { format!("in {}", lasting(wait)) } else { "now".to_owned() };
        page += &format!("Start: {} ({wait}).\n", local(start));
    }
    page += &windows(advice);
    let last = advice["windows"].as_array().and_then(|w| w.last()).and_then(|w| time_of(&w["end"]));
    let (first, best) = (time_of(&advice["at_once"]["start"]), time_of(&advice["best"]["end"]));
    if let (Some(asked), Some(last)) = (asked, last) {
        let hours = ((last - asked).num_minutes() + 59) / 60;
        let chart = Chart::hours(asked, hours);
        let chart = match (start, best) {
            (Some(start), Some(end)) if first.is_some_and(|first| start > first) => chart.marked(start, end),
            _ => chart,
        };
        page += &chart.draw(&advice["forecast"]);
    }
    let from = match advice["source"].as_str() {
        Some(source) => format!("{source} in {}", text(&advice["zone"])),
        None => "none".to_owned(),
    };
    let by = if advice["asked"] == "daemon" { "the running daemon" } else { "the sources themselves" };
    let until = time_of(&advice["forecast_until"]).map(|end| format!(", forecast until {}", local(end)));
    page += &format!("\nSource: {from} ({}){}, asked {by}.\n", text(&advice["basis"]), until.unwrap_or_default());
    for warning in advice["warnings"].as_array().into_iter().flatten() {
        page += &format!("! {}\n", text(warning));
    }
    page
}

/// Renders the two windows that the advice compares.
fn windows(advice: &Value) -> String {
    let first = match (time_of(&advice["at_once"]["start"]), time_of(&advice["asked_at"])) {
        (Some(first), Some(asked)) if first > asked => "earliest",
        _ => "at once",
    };
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let row = |name: &str, window: &Value| {
        let start = time_of(&window["start"]).map_or_else(|| "–".to_owned(), local);
        let carbon = window["carbon_g"].as_f64().map_or_else(|| "–".to_owned(), |g| format!("{g:.0}"));
        format!("{name:<10} {start:<26} {:>8.0} {carbon:>10}", number(&window["intensity_g_per_kwh"]))
    };
    let mut rows = format!("\n{:<10} {:<26} {:>8} {:>10} {:>10}\n", "start", "", "g/kWh", "gCO2e", "saving");
    rows += &format!("{}\n", row(first, &advice["at_once"]));
    if advice["best"]["start"] != advice["at_once"]["start"] {
        rows += &format!(
            "{} {:>9.1}%   (80 %: {:.1} to {:.1} %; worse with a probability of {:.0} %)\n",
            row("best later", &advice["best"]),
            number(&advice["expected_saving_pct"]),
            number(&advice["saving_low_pct"]),
            number(&advice["saving_high_pct"]),
            100.0 * number(&advice["loss_probability"]),
        );
    }
    rows
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

fn local(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).format("%a %Y-%m-%d %H:%M %:z").to_string()
}

fn lasting(time: TimeDelta) -> String {
    let minutes = (time.num_seconds() + 59) / 60;
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_start_and_the_saving() {
        let window = |start: &str, end: &str, intensity: f64| serde_json::json!({"start": start, "end": end, "intensity_g_per_kwh": intensity, "carbon_g": 2.0 * intensity});
        let (asked, start, end) = ("2026-11-25T20:00:00Z", "2026-11-26T10:00:00Z", "2026-11-26T18:00:00Z");
        let advice = serde_json::json!({
            "start": start, "asked_at": asked, "starts_at_once": false, "advice": "Starting later.",
            "at_once": window(asked, "2026-11-26T04:00:00Z", 400.0), "best": window(start, end, 300.0),
            "expected_saving_pct": 25.0, "saving_low_pct": 18.0, "saving_high_pct": 31.0, "loss_probability": 0.01,
            "windows": [window(start, end, 300.0)], "forecast": [window(asked, end, 350.0)], "basis": "source",
            "source": "energy_charts", "zone": "DE", "warnings": ["look out"], "asked": "daemon",
        });
        let page = page(&advice);
        for part in
            ["Starting later.", "(in 14 h)", "25.0%", "18.0 to 31.0 %", "▲▲▲▲▲▲▲▲", "energy_charts in DE", "! look out"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(lasting(TimeDelta::minutes(90)), "1 h 30 min");
        assert_eq!(lasting(TimeDelta::seconds(61)), "2 min");
    }
}
