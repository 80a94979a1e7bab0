//! Progress of long work as a line on a terminal; nothing where there is none.

use std::io::{IsTerminal, Write};

const WIDTH: usize = 40;

/// Drawn on stderr, and wiped when dropped.
pub(super) struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    /// Of so many steps.
    pub(super) fn new(total: usize) -> Self {
        let progress = Self { total, done: 0, shown: std::io::stderr().is_terminal() };
        progress.show();
        progress
    }

    /// One more is done.
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
