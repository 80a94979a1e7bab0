//! Logging: one subscriber, set up once, writing to stderr.
//!
//! A separate thread writes the lines, so that a slow or closed reader blocks nothing. Lines that cannot be written are
//! dropped.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use wattune_core::domain::nearest;

/// The names of log levels.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Plain text lines, for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings of the log, the table `[log]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The log level, or directives like "info,wattune::controller=debug".
    pub level: String,
    /// The format of the log lines.
    pub format: LogFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Settings {
    /// Checks the directives in `level`.
    ///
    /// # Errors
    /// If a directive is invalid.
    pub fn check(&self) -> Result<(), String> {
        for directive in self.level.split(',') {
            let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level).trim();
            // EnvFilter reads a bare word that is no level as a target of that name, and silences everything else.
            if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
                let meant = nearest(level, LEVELS).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
                return Err(format!(
                    "level = {level:?} is no log level; write error, warn, info, debug or trace, or one for each target, as \
                     in \"info,wattune::controller=debug\"{meant}"
                ));
            }
        }
        EnvFilter::try_new(&self.level).map(drop).map_err(|e| format!("level = {:?} is invalid: {e}", self.level))
    }

    /// Sends this process's log to stderr from now on. Later calls have no effect.
    pub fn init(&self) {
        let filter = EnvFilter::try_new(&self.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = LINES.get_or_init(|| Lines::to(io::stderr(), self.format));
        let writer = move || lines.clone();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
        // An error about an unwritable log would be written to the same log, and panics if that fails.
        let builder = builder.log_internal_errors(false);
        let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
        // A second initialisation, in tests, is harmless.
        let _ = match self.format {
            LogFormat::Text => builder.with_ansi(ansi).with_target(false).try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        };
    }
}

/// The maximum number of lines that wait for a slow reader; further lines are dropped.
const QUEUE_LEN: usize = 4096;

/// The longest wait for the log at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static LINES: OnceLock<Lines> = OnceLock::new();

/// Waits until the log is written, for at most a second. Call it before a process ends.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_TIMEOUT);
    }
}

enum Message {
    Line(Vec<u8>),
    /// Signals that all earlier lines are written, by dropping this sender.
    Flush(SyncSender<()>),
}

#[derive(Clone)]
struct Lines {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes the lines to `out`. If the thread cannot start, nothing is logged.
    fn to(out: impl io::Write + Send + 'static, format: LogFormat) -> Self {
        let (sender, receiver) = mpsc::sync_channel(QUEUE_LEN);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = dropped.clone();
        let body = move || {
            // Writing needs no rights. The daemon drops its own only after this thread has begun.
            let none = CapabilitySet::empty();
            let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
            write_out(out, &receiver, &missed, format);
        };
        drop(std::thread::Builder::new().name("log".into()).spawn(body));
        Self { sender, dropped }
    }

    fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        // A full queue means that nothing reads the log.
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            // The process ends in either case, written or timed out.
            let _ = written.recv_timeout(limit);
        }
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_out(mut out: impl io::Write, messages: &Receiver<Message>, dropped: &AtomicU64, format: LogFormat) {
    for message in messages {
        let line = match message {
            Message::Line(line) => line,
            Message::Flush(waiting) => {
                drop(waiting);
                continue;
            }
        };
        let missed = dropped.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if missed > 0 {
            let why = format!("{missed} log lines are missing here: the reader was too slow");
            text = match format {
                LogFormat::Text => format!(" WARN {why}\n"),
                LogFormat::Json => format!("{{\"level\":\"WARN\",\"message\":\"{why}\"}}\n"),
            }
            .into_bytes();
        }
        text.extend(line);
        // There is no other place to report that the log cannot be written.
        let _ = out.write_all(&text);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A reader that reads nothing until it is woken, and then optionally fails.
    struct Sleeper {
        woken: Receiver<()>,
        written: mpsc::Sender<String>,
        fails: bool,
    }

    impl io::Write for Sleeper {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // Stays awake once the other end is gone.
            let _ = self.woken.recv();
            if self.fails {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.written.send(String::from_utf8_lossy(line).into_owned()).expect("the receiver is open");
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sleeper(fails: bool) -> (Lines, mpsc::Sender<()>, Receiver<String>) {
        let (wake, woken) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        (Lines::to(Sleeper { woken, written, fails }, LogFormat::Text), wake, lines)
    }

    #[test]
    fn what_is_no_level_is_an_error() {
        let check = |level: &str| Settings { level: level.into(), ..Settings::default() }.check();
        for fine in ["info", "WARN", "off", "info,wattune::controller=debug", "warn,hyper=trace"] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for wrong in ["inof", "verbose", "in fo", "", "info,", "info,wattune::controller=debgu", "wattune::controller"]
        {
            let why = check(wrong).expect_err(wrong);
            assert!(why.contains("is no log level") && why.contains("error, warn, info, debug or trace"), "{why}");
        }
        assert!(check("inof").expect_err("a slip").contains("did you mean \"info\"?"));
    }

    #[test]
    fn a_slow_reader_blocks_nothing_and_misses_lines() {
        let (mut lines, wake, written) = sleeper(false);
        for i in 0..2 * QUEUE_LEN {
            lines.write_all(format!("{i}\n").as_bytes()).expect("it always goes on");
        }
        drop(wake);
        let read: Vec<String> = written.iter().take(QUEUE_LEN).collect();
        let all = read.concat();
        // The position of the line about missing lines depends on whether the first line was written before one was
        // dropped.
        assert!(all.contains("1\n2\n") && all.contains("log lines are missing here"), "{}", &all[..200]);
    }

    #[test]
    fn a_closed_reader_is_no_error() {
        let (mut lines, wake, written) = sleeper(true);
        drop(wake);
        for _ in 0..3 {
            lines.write_all(b"line\n").expect("it always goes on");
        }
        lines.flush(FLUSH_TIMEOUT);
        assert!(written.try_recv().is_err());
    }
}
