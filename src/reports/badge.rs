//! Energy and emissions of a model as an SVG badge and a Markdown summary, for its model card.

use std::path::Path;

use super::document::escaped;
use super::table::plain;
use super::view::{ReportRow, ReportView};

fn grams(grams: f64) -> String {
    match grams {
        g if g.abs() >= 1e6 => format!("{:.3} t", g / 1e6),
        g if g.abs() >= 1e3 => format!("{:.2} kg", g / 1e3),
        g => format!("{g:.1} g"),
    }
}

fn energy(kwh: f64) -> String {
    match kwh {
        kwh if kwh >= 1.0 => format!("{kwh:.2} kWh"),
        kwh => format!("{:.1} Wh", 1e3 * kwh),
    }
}

fn emitted(row: &ReportRow) -> String {
    row.carbon_g.map_or_else(|| "emissions unknown".to_owned(), |g| format!("{} CO2e", grams(g)))
}

/// Renders two fields side by side: the label, and the figures of a row with their state.
pub fn badge(row: &ReportRow, view: &ReportView) -> String {
    let state = if view.synthetic { "synthetic grid" } else { row.state };
    let state = if row.energy_simulated_j > 0.0 { format!("simulated GPUs, {state}") } else { state.to_owned() };
    // A saving of some runs only would look like the saving of all.
    let saved = row.saved_g.filter(|_| row.saved_of_jobs == row.jobs);
    let saved = saved.map(|g| format!(" · {} saved", grams(g))).unwrap_or_default();
    let (left, right) = ("training", format!("{} · {} ({state}){saved}", energy(row.energy_kwh), emitted(row)));
    let width = |text: &str| 6.6 * text.chars().count() as f64 + 12.0;
    let (a, b) = (width(left), width(&right));
    let label = escaped(&format!("{left}: {right}"));
    let right = escaped(&right);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total:.0}\" height=\"20\" role=\"img\" aria-label=\"{label}\">\
         <title>{label}</title><rect width=\"{total:.0}\" height=\"20\" rx=\"3\" fill=\"#3d3d3d\"/>\
         <rect x=\"{a:.0}\" width=\"{b:.0}\" height=\"20\" rx=\"3\" fill=\"#1f6b3a\"/>\
         <g fill=\"#ffffff\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\" text-anchor=\"middle\">\
         <text x=\"{x:.0}\" y=\"14\" textLength=\"{la:.0}\">{left}</text>\
         <text x=\"{y:.0}\" y=\"14\" textLength=\"{lb:.0}\">{right}</text></g></svg>\n",
        total = a + b,
        x = a / 2.0,
        y = a + b / 2.0,
        la = a - 12.0,
        lb = b - 12.0,
    )
}

/// Escapes a path as a link's destination in Markdown (RFC 3986, 2.1).
fn link(path: &Path) -> String {
    let mut safe = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => safe.push(char::from(*byte)),
            other => safe += &format!("%{other:02X}"),
        }
    }
    safe
}

/// Renders the summary of a row in Markdown, with the badge that is at `svg`.
pub fn summary(row: &ReportRow, view: &ReportView, svg: Option<&Path>) -> String {
    let image = svg.map(|path| format!("![{}]({})\n\n", plain(&emitted(row)), link(path))).unwrap_or_default();
    let or = |value: Option<String>, absent: &str| value.unwrap_or_else(|| absent.to_owned());
    let carbon = row.carbon_g.zip(row.carbon_low_g).zip(row.carbon_high_g);
    let carbon = carbon.map(|((mean, low), high)| format!("{} CO2e ({} to {})", grams(mean), grams(low), grams(high)));
    let carbon = or(carbon, "unknown");
    let intensity = or(row.mean_intensity_g_per_kwh.map(|i| format!("{i:.0} gCO2e/kWh")), "unknown");
    let generated = if view.synthetic { ", from generated intensities, not a real grid's" } else { "" };
    let states = format!(
        "{} (final {:.0} %, provisional {:.0} %, forecast {:.0} %, unknown {:.0} %){generated}",
        row.state, row.final_pct, row.provisional_pct, row.forecast_pct, row.unknown_pct
    );
    let lines = [
        ("Runs", format!("{} ({} ended)", row.jobs, row.ended_jobs)),
        ("Board time", format!("{:.2} h", row.held_s / 3600.0)),
        ("Energy", format!("{:.4} kWh ({:.4} to {:.4})", row.energy_kwh, row.energy_low_kwh, row.energy_high_kwh)),
        ("Emissions, location-based", carbon),
        ("Mean intensity", intensity),
        ("State", states),
        (
            "With node factor and PUE",
            format!("{:.4} kWh, {}", row.facility_energy_kwh, or(row.facility_carbon_g.map(grams), "unknown")),
        ),
        ("Embodied", or(row.embodied_g.map(grams), "not declared")),
        ("Saved, compared with the original limit", row.saved(grams)),
        ("Boundary", view.method.boundary.clone()),
        ("Method", format!("wattune {}, method {}: {}", view.method.software, view.method.version, view.method.energy)),
    ];
    let mut text = format!("{image}## Energy and emissions of training {}\n\n| | |\n|---|---|\n", plain(&row.key));
    if let Some(simulated) = row.simulated() {
        text += &format!("| Simulated | {} |\n", plain(&simulated));
    }
    for (name, value) in lines {
        text += &format!("| {name} | {} |\n", plain(&value));
    }
    text
}
