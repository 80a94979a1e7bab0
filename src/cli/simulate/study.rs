//! The formats, choices, warnings and progress that the experiments share.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;

/// The form of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets, with the same columns.
    Csv,
    /// A page with plots.
    Html,
}

pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        // Warnings are for people, results go to stdout.
        let _ = writeln!(std::io::stderr(), "wattune: warning: {warning}");
    }
}

/// Returns the values without repetitions.
pub(super) fn once<T: Clone, K: PartialEq>(values: &[T], key: impl Fn(&T) -> K) -> Vec<T> {
    let is_first = |place: &usize| !values[..*place].iter().any(|before| key(before) == key(&values[*place]));
    (0..values.len()).filter(is_first).map(|place| values[place].clone()).collect()
}

const WIDTH: usize = 40;

/// A progress bar on stderr, wiped when dropped; nothing where there is no terminal.
pub(super) struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// Draws the progress of `total` steps.
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
        // A terminal that is gone is no reason to stop.
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
