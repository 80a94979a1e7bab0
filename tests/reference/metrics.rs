//! The metrics, from the snapshot of a busy daemon's. Tests beside the metrics keep it up to date and whole.

use std::collections::{BTreeMap, BTreeSet};

use super::{cell, check, opening, table};

const SNAPSHOT: &str =
    include_str!("../../src/http/metrics/snapshots/wattune__http__metrics__tests__the_metrics_of_a_busy_daemon.snap");

/// One metric.
#[derive(Default)]
struct Metric {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// The names of a series' labels. Values may hold anything but an unescaped quote.
fn labels(series: &str) -> Vec<String> {
    let Some((_, rest)) = series.split_once('{') else { return Vec::new() };
    let (mut names, mut name, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in rest.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '}' => break,
            '=' => names.push(std::mem::take(&mut name)),
            ',' => {}
            c => name.push(c),
        }
    }
    names
}

/// In the order in which they are shown.
fn metrics(text: &str) -> Vec<(String, Metric)> {
    let mut found: Vec<(String, Metric)> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            found.push((name.to_owned(), Metric { help: help.to_owned(), ..Metric::default() }));
        } else if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.last_mut().expect("described").1.kind = kind.to_owned();
        } else if line.starts_with("wattune_") {
            let (name, metric) = found.last_mut().expect("described");
            *name = line.split(['{', ' ']).next().unwrap_or_default().to_owned();
            metric.labels.extend(labels(line));
        }
    }
    found
}

#[test]
fn the_page_of_the_metrics_is_what_a_busy_daemon_shows() {
    let metrics = metrics(SNAPSHOT);
    let mut groups: BTreeMap<usize, (&str, Vec<Vec<String>>)> = BTreeMap::new();
    const GROUPS: [(&str, &[&str]); 7] = [
        ("Signal and forecasts", &["wattune_carbon", "wattune_electricity"]),
        ("Cap of the node", &["wattune_node"]),
        ("GPUs", &["wattune_gpu"]),
        ("CPUs", &["wattune_cpu"]),
        ("Jobs", &["wattune_job"]),
        ("Recurring jobs", &["wattune_recurring"]),
        ("Ledger", &["wattune_ledger"]),
    ];
    for (name, metric) in &metrics {
        let place = GROUPS.iter().position(|(_, begin)| begin.iter().any(|b| name.starts_with(b)));
        let (at, title) = place.map_or((0, "Daemon and planning"), |i| (i + 1, GROUPS[i].0));
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let row = vec![format!("`{name}`"), metric.kind.clone(), labels, cell(&metric.help)];
        groups.entry(at).or_insert((title, Vec::new())).1.push(row);
    }
    let mut text = opening("List of metrics", "what `GET /metrics` of a busy daemon shows");
    text += "\n[Metrics conventions](metrics-conventions.md) has labels and bounds. Labels `tag_…` are those of the jobs.\n";
    for (title, rows) in groups.values() {
        text += &format!("\n## {title}\n\n{}", table(&["name", "type", "labels", "meaning"], rows));
    }
    check("metrics.md", &text);
}

#[test]
fn labels_are_read_past_quotes() {
    assert_eq!(labels(r#"wattune_x{a="1,b=2}",c="\"q\""} 1"#), ["a", "c"]);
    assert!(labels("wattune_x 1").is_empty());
}
