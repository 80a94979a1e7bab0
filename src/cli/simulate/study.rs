//! Output formats, warnings, progress and argument values, which experiments share.

use std::io::{IsTerminal, Write};

use chrono::{DateTime, Utc};
use clap::ValueEnum;

use crate::cli::values::{duration, within};

/// The output format of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
    /// CSV for spreadsheets, with the same columns as the JSON.
    Csv,
    /// A self-contained HTML page with plots.
    Html,
}

pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        // Warnings are for people and go to stderr, because results go to stdout.
        let _ = writeln!(std::io::stderr(), "wattune: warning: {warning}");
    }
}

/// Returns the values without those that repeat the key of an earlier value.
pub(super) fn once<T: Clone, K: PartialEq>(values: &[T], key: impl Fn(&T) -> K) -> Vec<T> {
    let is_first = |place: &usize| !values[..*place].iter().any(|before| key(before) == key(&values[*place]));
    (0..values.len()).filter(is_first).map(|place| values[place].clone()).collect()
}

/// Parses a number of hours, or a duration with units.
pub(super) fn hours(text: &str) -> Result<f64, String> {
    let right = "0.01 to 8784 hours";
    match duration(text) {
        Ok(lasting) if text.parse::<f64>().is_err() => {
            within(&(lasting.get() / 3600.0).to_string(), 0.01, 8784.0, right)
        }
        _ => within(text, 0.01, 8784.0, right),
    }
}

/// Renders a time, to the second.
pub(super) fn shown(t: DateTime<Utc>) -> String {
    t.format("%FT%TZ").to_string()
}

const WIDTH: usize = 40;

/// A progress bar on stderr, erased when dropped; nothing is drawn without a terminal.
pub(super) struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// Creates and draws the progress of `total` steps.
    pub(super) fn new(total: usize) -> Self {
        let progress = Self { total, done: 0, shown: std::io::stderr().is_terminal() };
        progress.show();
        progress
    }

    /// Counts one more step.
    pub(super) fn step(&mut self) {
        self.done += 1;
        self.show();
    }

    fn show(&self) {
        if self.shown {
            let full = (self.done * WIDTH / self.total.max(1)).min(WIDTH);
            let bar = format!("{}{}", "#".repeat(full), "-".repeat(WIDTH - full));
            self.draw(&format!("\r[{bar}] {} of {}", self.done, self.total));
        }
    }

    fn draw(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        // If the terminal is gone, the work continues.
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.draw("\r\x1b[K");
        }
    }
}
