//! Prometheus's plain text format (0.0.4), which older scrapers and `promtool check metrics` read.

/// Converts OpenMetrics text of counters, gauges and infos: a counter is declared with its `_total`, an info is a gauge
/// with its `_info`, and units, which names end with, are not declared.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), _, about) => help = about,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (end, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                let help = help.take().unwrap_or_default();
                plain += &format!("# HELP {name}{end} {help}\n# TYPE {name}{end} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                plain += line;
                plain.push('\n');
            }
        }
    }
    plain
}
