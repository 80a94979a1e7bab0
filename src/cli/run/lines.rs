//! Progress from the lines that a command prints.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::progress::Message;
use crate::clock::shared_monotonic;
use regex_lite::Regex;
use tokio::time::{Instant, sleep};
use wattune_core::domain::ProgressSource;

/// Expressions for common progress lines, by name.
const READY: [(&str, &str); 2] = [
    // tqdm: " 37%|███▋      | 1850/5000 [01:02<01:45, 29.8it/s]"
    ("tqdm", r"\|\s*(?P<step>\d+)/(?P<total>\d+)\s*\["),
    // "step 120/5000", "iter: 120", "Iteration [120 of 5000]", "global_step=120"
    (
        "step",
        r"(?i)\b(?:global_)?(?:step|iter|iteration)s?\b\s*[:=#]?\s*\[?\s*(?P<step>\d+)(?:\s*(?:/|of)\s*(?P<total>\d+))?",
    ),
];

/// Maximum length of a line in which progress is searched.
const LONGEST_LINE: usize = 4096;

/// Maximum number of lines that wait to be searched. A command that prints more in a second waits for no search.
const MOST_LINES: usize = 256;

/// Newest lines of the command's output that may contain progress and were not searched yet.
///
/// Searching takes longer than printing. So the threads that pass the output on only collect lines, and the reporter,
/// which needs one count in a second, searches the newest of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest(Arc<Collected>);

#[derive(Debug, Default)]
struct Collected {
    find: Option<Expressions>,
    lines: Mutex<VecDeque<Line>>,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    at_s: f64,
}

impl Latest {
    /// Creates a collector of lines, which are searched with these expressions.
    pub(super) fn of(find: Option<Expressions>) -> Self {
        Self(Arc::new(Collected { find, lines: Mutex::default() }))
    }

    /// Returns the newest progress in the lines that were added since the last call.
    pub(super) fn take(&self) -> Option<Message> {
        let lines = std::mem::take(&mut *self.0.lines.lock().unwrap_or_else(PoisonError::into_inner));
        let find = self.0.find.as_ref()?;
        lines.iter().rev().find_map(|line| line.read(find))
    }

    fn add(&self, new: &mut VecDeque<Line>) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.append(new);
        let surplus = lines.len().saturating_sub(MOST_LINES);
        lines.drain(..surplus);
    }
}

/// Regular expressions that find progress in a line.
#[derive(Clone, Debug)]
pub(super) struct Expressions(Vec<Regex>);

impl Expressions {
    /// Parses the value of `--log-progress`: `auto` for all built-in expressions, the name of one of them, or a regular
    /// expression with a group `step` and, if the lines show a total, a group `total`.
    ///
    /// # Errors
    /// If it is no regular expression, or has no group `step`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let ready = |only: Option<&str>| {
            let chosen = READY.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
            Self(chosen.map(|(_, expression)| Regex::new(expression).expect("a valid expression")).collect())
        };
        if text == "auto" || READY.iter().any(|(name, _)| *name == text) {
            return Ok(ready(Some(text).filter(|text| *text != "auto")));
        }
        let own = Regex::new(text).map_err(|error| format!("is no regular expression: {error}"))?;
        if !own.capture_names().flatten().any(|name| name == "step") {
            let example = r"(?P<step>\d+)/(?P<total>\d+)";
            return Err(format!("has no group named step; write it as in \"{example}\", or give auto, tqdm or step"));
        }
        Ok(Self(vec![own]))
    }

    /// Returns the step in a line, and the total if the line has it.
    fn find(&self, line: &str) -> Option<(f64, Option<f64>)> {
        self.0.iter().find_map(|expression| {
            // The last match counts: a bar that is drawn again leaves its older states before it.
            let found = expression.captures_iter(line).last()?;
            let number = |name: &str| found.name(name)?.as_str().replace(['_', ','], "").parse::<f64>().ok();
            Some((number("step")?, number("total")))
        })
    }
}

/// Threads that relay the command's output through this process.
pub(super) struct Relays {
    threads: Vec<JoinHandle<()>>,
    flow: Arc<Flow>,
}

/// Output under way.
#[derive(Debug, Default)]
struct Flow {
    /// Number of bytes that were read.
    passed: AtomicU64,
    /// Number of threads that wait for the reader of this process's output.
    writing: AtomicUsize,
}

impl Relays {
    /// Relays the command's standard output and standard error through this process, which looks for progress in them
    /// and passes every byte on. If both go to the same file, they share one pipe, so that their order does not change.
    pub(super) fn install(command: &mut Command, to: &Latest) -> io::Result<Self> {
        let (mut threads, flow) = (Vec::new(), Arc::<Flow>::default());
        let mut relay = |from: PipeReader, into: Box<dyn Write + Send>| {
            let (to, flow) = (to.clone(), flow.clone());
            let body = move || copy(from, into, &to, &flow);
            threads.push(std::thread::Builder::new().name("relay".into()).spawn(body)?);
            io::Result::Ok(())
        };
        let (out_reader, out_writer) = io::pipe()?;
        let is_one = is_same_file(&io::stdout(), &io::stderr());
        if is_one {
            command.stderr(Stdio::from(out_writer.try_clone()?));
        } else {
            let (err_reader, err_writer) = io::pipe()?;
            command.stderr(Stdio::from(err_writer));
            relay(err_reader, Box::new(io::stderr()))?;
        }
        command.stdout(Stdio::from(out_writer));
        relay(out_reader, Box::new(io::stdout()))?;
        // Python would keep lines back for minutes when it writes into a pipe.
        if std::env::var_os("PYTHONUNBUFFERED").is_none() {
            command.env("PYTHONUNBUFFERED", "1");
        }
        Ok(Self { threads, flow })
    }

    /// Waits until all output has passed through, or until no output has come for `patience`, because a process that the
    /// command left behind may keep the pipes open. If a reader reads slowly, waits until it has read all output.
    pub(super) async fn finish(&self, patience: Duration) {
        let (mut passed, mut last) = (0, Instant::now());
        while !self.threads.iter().all(JoinHandle::is_finished) && last.elapsed() < patience {
            let now = self.flow.passed.load(Ordering::Relaxed);
            if now != passed || self.flow.writing.load(Ordering::Relaxed) > 0 {
                (passed, last) = (now, Instant::now());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn is_same_file(a: &impl AsFd, b: &impl AsFd) -> bool {
    let id = |file: &dyn Fn() -> rustix::io::Result<rustix::fs::Stat>| file().ok().map(|s| (s.st_dev, s.st_ino));
    let (a, b) = (id(&|| rustix::fs::fstat(a)), id(&|| rustix::fs::fstat(b)));
    a.is_some() && a == b
}

/// Copies a stream and collects its lines.
fn copy(mut from: PipeReader, mut into: impl Write, to: &Latest, flow: &Flow) {
    let (mut buffer, mut line, mut lines) = ([0; 65_536], Vec::new(), VecDeque::new());
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // If the reader of this process's output is gone, the command must notice it as without wattune: the pipe closes.
        flow.passed.fetch_add(count as u64, Ordering::Relaxed);
        flow.writing.fetch_add(1, Ordering::Relaxed);
        let written = into.write_all(&buffer[..count]).and_then(|()| into.flush());
        flow.writing.fetch_sub(1, Ordering::Relaxed);
        if written.is_err() {
            return;
        }
        let at_s = shared_monotonic().get();
        for part in buffer[..count].split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, is_whole) = match part.split_last() {
                Some((b'\n' | b'\r', text)) => (text, true),
                _ => (part, false),
            };
            line.extend_from_slice(&text[..text.len().min(LONGEST_LINE - line.len())]);
            if is_whole {
                // A line without a digit has no count.
                if line.iter().any(u8::is_ascii_digit) {
                    lines.push_back(Line { text: line.clone(), at_s });
                }
                line.clear();
            }
        }
        to.add(&mut lines);
    }
}

impl Line {
    /// Returns the progress in this line.
    fn read(&self, find: &Expressions) -> Option<Message> {
        let (step, total) = find.find(&String::from_utf8_lossy(&self.text))?;
        Some(Message {
            source: ProgressSource::LogLine,
            at_s: Some(self.at_s),
            steps: Some(step),
            total_steps: total,
            samples: None,
            total_samples: None,
            pid: 0,
            job_id: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_lines_are_understood() {
        let auto = Expressions::parse("auto").expect("ready");
        let table = [
            (" 37%|███▋      | 1850/5000 [01:02<01:45, 29.8it/s]", Some((1850.0, Some(5000.0)))),
            ("  0%|          | 0/5 [00:00<?, ?it/s]", Some((0.0, Some(5.0)))),
            ("step 120/5000 loss 2.1", Some((120.0, Some(5000.0)))),
            ("iter: 120, loss=1", Some((120.0, None))),
            ("Iteration [120 of 5000]", Some((120.0, Some(5000.0)))),
            ("epoch 1 global_step=77", Some((77.0, None))),
            ("loss 2.1 in 30 steps per second", None),
            ("Loading 3/5 shards", None),
            ("misstep 4", None),
        ];
        for (line, expected) in table {
            assert_eq!(auto.find(line), expected, "{line}");
        }
        let own = Expressions::parse(r"^batch (?P<step>[\d,]+)").expect("valid");
        assert_eq!(own.find("batch 12,345 done"), Some((12_345.0, None)));
    }

    #[test]
    fn the_newest_line_with_progress_counts() {
        let latest = Latest::of(Some(Expressions::parse("step").expect("ready")));
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let mut text: String = (0..1000).map(|step| format!("step {step}/1000\r")).collect();
        text += "loss 2.1\nstep 1";
        // A pipe holds more than this.
        writer.write_all(text.as_bytes()).expect("written");
        drop(writer);
        let mut passed = Vec::new();
        copy(reader, &mut passed, &latest, &Flow::default());
        assert_eq!(passed, text.as_bytes());
        assert_eq!(latest.0.lines.lock().expect("unlocked").len(), MOST_LINES);
        let found = latest.take().expect("progress");
        assert_eq!((found.steps, found.total_steps), (Some(999.0), Some(1000.0)));
        assert_eq!(latest.take(), None);
    }

    #[test]
    fn wrong_expressions_are_refused() {
        for (text, expected) in
            [("(", "no regular expression"), (r"(\d+)", "no group named step"), ("keras", "no group")]
        {
            let error = Expressions::parse(text).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
