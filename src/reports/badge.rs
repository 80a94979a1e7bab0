//! Energy and emissions of training as an SVG badge and a Markdown summary, for the model card of the trained model.

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

fn emissions(row: &ReportRow) -> String {
    row.carbon_g.map_or_else(|| "emissions unknown".to_owned(), |g| format!("{} CO2e", grams(g)))
}

/// Renders the badge: a label, and beside it a row's energy, emissions, the state of the row's intensities, and
/// savings.
pub fn badge(row: &ReportRow, view: &ReportView) -> String {
    let state = if view.synthetic { "synthetic grid".to_owned() } else { row.state.to_string() };
    let state = if row.energy_simulated_j > 0.0 { format!("simulated GPUs, {state}") } else { state };
    // A saving that covers only some of the runs is omitted, because it would look like the saving of all runs.
    let saved = row.saved_g.filter(|_| row.saved_of_jobs == row.jobs);
    let saved = saved.map(|g| format!(" · {} saved", grams(g))).unwrap_or_default();
    let (left, right) = ("training", format!("{} · {} ({state}){saved}", energy(row.energy_kwh), emissions(row)));
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

/// Renders the summary of a row in Markdown, with the badge in the file `svg`, if given. `parts` is the number of parts
/// of the row's job, if the row is of one job: the job, and the later ones that continue it by its key.
pub fn summary(row: &ReportRow, parts: usize, view: &ReportView, svg: Option<&Path>) -> String {
    let image = svg.map(|path| format!("![{}]({})\n\n", plain(&emissions(row)), link(path))).unwrap_or_default();
    let parts = if parts > 1 { format!(", with {parts} parts") } else { String::new() };
    let first = [
        ("Runs", format!("{} ({} ended){parts}", row.jobs, row.ended_jobs)),
        ("GPU time", format!("{:.2} h", row.held_s / 3600.0)),
    ];
    let method = &view.method;
    let last = [
        ("Boundary", method.boundary.clone()),
        ("Method", format!("wattune {}, method {}: {}", method.software, method.version, method.energy)),
    ];
    let mut text = format!("{image}## Energy and emissions of training {}\n\n| | |\n|---|---|\n", plain(&row.key));
    if let Some(simulated) = row.simulated() {
        text += &format!("| Simulated | {} |\n", plain(&simulated));
    }
    for (name, value) in first.into_iter().chain(row.figures(view.synthetic, 0, grams)).chain(last) {
        text += &format!("| {name} | {} |\n", plain(&value));
    }
    text
}
