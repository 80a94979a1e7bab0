//! Logging: one subscriber, set up once, writing to stderr.
//!
//! A thread of its own writes the lines: whoever reads the log may have gone or may sleep, and neither holds up nor ends
//! what is logged. Lines that cannot be written are dropped.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What is logged: a level, or directives like "info,wattune::controller=debug".
    pub level: String,
    /// How it is written.
    pub format: LogFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Settings {
    /// Checks the directives.
    ///
    /// # Errors
    /// If they cannot be understood.
    pub fn check(&self) -> Result<(), String> {
        EnvFilter::try_new(&self.level).map(drop).map_err(|e| {
            format!("level = {:?} is not understood ({e}); give error, warn, info, debug or trace", self.level)
        })
    }

    /// Sends the log of this process to stderr from now on. Later calls change nothing.
    pub fn init(&self) {
        let filter = EnvFilter::try_new(&self.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = LINES.get_or_init(|| Lines::to(io::stderr(), self.format));
        let writer = move || lines.clone();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
        // Complaining about a log that cannot be written would be written there too, and panics where that fails.
        let builder = builder.log_internal_errors(false);
        let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
        // A second initialisation, in tests, is no harm.
        let _ = match self.format {
            LogFormat::Text => builder.with_ansi(ansi).with_target(false).try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        };
    }
}

/// So many lines wait for a log that is not read; further ones are dropped.
const WAITING: usize = 4096;

/// The end of a process waits so long for its log.
const PATIENCE: Duration = Duration::from_secs(1);

static LINES: OnceLock<Lines> = OnceLock::new();

/// Waits until what was logged is written, for a second at most. To be called before a process ends.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(PATIENCE);
    }
}

enum Message {
    Line(Vec<u8>),
    /// Everything before this is to be written; then the sender is dropped.
    Flush(SyncSender<()>),
}

/// The way to the thread that writes the log.
#[derive(Clone)]
struct Lines {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread. Without one, nothing is logged.
    fn to(out: impl io::Write + Send + 'static, format: LogFormat) -> Self {
        let (sender, receiver) = mpsc::sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = dropped.clone();
        let body = move || write_out(out, &receiver, &missed, format);
        drop(std::thread::Builder::new().name("log".into()).spawn(body));
        Self { sender, dropped }
    }

    fn flush(&self, patience: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        // A full queue is a log that nobody reads.
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            // Whether it was written or the time is up, the process ends.
            let _ = written.recv_timeout(patience);
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
            let why = format!("{missed} lines of the log are missing here: it was not read in time");
            text = match format {
                LogFormat::Text => format!(" WARN {why}\n"),
                LogFormat::Json => format!("{{\"level\":\"WARN\",\"message\":\"{why}\"}}\n"),
            }
            .into_bytes();
        }
        text.extend(line);
        // There is nowhere to say that the log cannot be written.
        let _ = out.write_all(&text);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A reader that reads nothing until it is woken, and then fails or not.
    struct Sleeper {
        woken: Receiver<()>,
        written: mpsc::Sender<String>,
        fails: bool,
    }

    impl io::Write for Sleeper {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // Awake for good once the other end is gone.
            let _ = self.woken.recv();
            if self.fails {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.written.send(String::from_utf8_lossy(line).into_owned()).expect("somebody looks");
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
    fn a_sleeping_reader_holds_nothing_up_and_misses_lines() {
        let (mut lines, wake, written) = sleeper(false);
        for i in 0..2 * WAITING {
            lines.write_all(format!("{i}\n").as_bytes()).expect("it always goes on");
        }
        drop(wake);
        let read: Vec<String> = written.iter().take(WAITING).collect();
        let all = read.concat();
        // Where it is told depends on whether the first line was taken before one was missed.
        assert!(all.contains("1\n2\n") && all.contains("lines of the log are missing here"), "{}", &all[..200]);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error() {
        let (mut lines, wake, written) = sleeper(true);
        drop(wake);
        for _ in 0..3 {
            lines.write_all(b"line\n").expect("it always goes on");
        }
        lines.flush(PATIENCE);
        assert!(written.try_recv().is_err());
    }
}
