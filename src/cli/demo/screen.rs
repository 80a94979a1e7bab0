//! Shows the demo's progress on the terminal.

use std::io::{IsTerminal, Write};

use crate::demo::World;
use wattune_core::units::Seconds;

/// Progress on stderr: lines redrawn in place on a terminal, otherwise new lines every five seconds.
pub(super) struct Screen {
    terminal: bool,
    drawn: usize,
    last: Option<Seconds>,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), drawn: 0, last: None }
    }

    pub(super) fn say(&self, text: &str) {
        // Progress is only for people: if stderr is closed, the demo continues.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    pub(super) fn show(&mut self, world: &World, elapsed: Seconds) {
        let period = if self.terminal { Seconds::new(0.2) } else { Seconds::new(5.0) };
        if self.last.is_some_and(|last| elapsed - last < period) {
            return;
        }
        self.last = Some(elapsed);
        let controller = world.controller();
        let carbon = controller.carbon_now();
        let intensity = carbon.intensity_g_per_kwh.map_or("unknown".into(), |g| format!("{g:.0} gCO2e/kWh"));
        let mut lines = vec![format!("{}  {intensity}", world.now().format("%F %H:%M"))];
        for training in world.jobs() {
            let share = 100.0 * (training.samples_done / training.total).min(1.0);
            let view =
                training.id.as_ref().and_then(|id| controller.jobs().into_iter().find(|j| j.job_id == id.as_str()));
            lines.push(match view {
                Some(view) => format!(
                    "  {:<24} {share:5.1} %  {:>6}  slower {:>7}  {}",
                    training.name,
                    view.power_limit_w.map_or("–".into(), |w| format!("{w:.0} W"))
                        + &view.clock_limit_mhz.map_or(String::new(), |mhz| format!(" {mhz} MHz")),
                    view.slowdown.map_or("–".into(), |s| format!("{:+.2} %", 100.0 * s)),
                    view.reason
                ),
                None => format!("  {:<24} {share:5.1} %  done", training.name),
            });
        }
        self.draw(&lines);
    }

    fn draw(&mut self, lines: &[String]) {
        if !self.terminal {
            self.say(&lines.join("\n"));
            return;
        }
        let mut text = String::new();
        if self.drawn > 0 {
            text += &format!("\x1b[{}A", self.drawn);
        }
        for line in lines {
            let line: String = line.chars().take(118).collect();
            text += &format!("\x1b[2K{line}\n");
        }
        self.drawn = lines.len();
        // If the terminal is gone, the demo continues.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    pub(super) fn end(&mut self) {
        self.drawn = 0;
    }
}
