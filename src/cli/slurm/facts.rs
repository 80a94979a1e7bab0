//! Facts about a Slurm job, read from the environment of Slurm's scripts; facts missing there are read from Slurm's queue.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::deadline::Deadline;
use wattune_core::domain::{JobName, legible};

/// The time that a command of Slurm may take. Slurm's controller may be busy.
const QUEUE_PATIENCE: Duration = Duration::from_millis(700);
/// The interval at which a running command is checked.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// The width of a column of the queue in bytes. Values are as long as a user makes them; longer ones are cut.
const WIDTH: usize = 256;
/// The longest name of a job in characters, and the longest value of a tag in bytes, that the daemon takes.
const LONGEST_NAME: usize = 128;
const LONGEST_VALUE: usize = 256;

/// Facts about a Slurm job, from the environment and from Slurm's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The number of the job (`SLURM_JOB_ID`).
    pub(super) number: u32,
    name: Option<String>,
    /// The number of the job's user (`SLURM_JOB_UID`), to whom the job belongs.
    pub(super) uid: Option<u32>,
    labels: BTreeMap<&'static str, String>,
}

/// Labels of a job. Each has the names of the environment variables that hold its value; the first variable that is set
/// counts.
pub(in crate::cli) const LABELS: [(&str, &[&str]); 7] = [
    ("user", &["SLURM_JOB_USER"]),
    ("account", &["SLURM_JOB_ACCOUNT"]),
    ("slurm_partition", &["SLURM_JOB_PARTITION"]),
    ("slurm_cluster", &["SLURM_CLUSTER_NAME"]),
    ("slurm_array_job_id", &["SLURM_ARRAY_JOB_ID"]),
    ("slurm_array_task_id", &["SLURM_ARRAY_TASK_ID"]),
    ("slurm_restart_count", &["SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"]),
];

/// Tag of a job that is recorded without control only because another job controlled one of its GPUs when it began.
pub(in crate::cli) const CONTROL_REFUSED: &str = "control_refused";

/// Columns of `squeue`, in the order of [`in_queue`], which takes them apart. The name comes last, and all columns have
/// one width, so that no name can pass for another column.
const COLUMNS: [&str; 7] = ["JobID", "ArrayJobID", "ArrayTaskID", "RestartCnt", "UserName", "Account", "Name"];

impl Facts {
    /// Reads the facts from the environment of one of Slurm's scripts.
    ///
    /// # Errors
    /// If the environment does not contain the job's number.
    pub(super) fn of_environment(get: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let get = |key: &str| get(key).filter(|value| !value.is_empty());
        let Some(number) = get("SLURM_JOB_ID") else {
            bail!("SLURM_JOB_ID is not set; run this in Slurm's Prolog, TaskProlog or Epilog, which have it");
        };
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.context("SLURM_JOB_ID is not the number of a job")?;
        let label = |(label, keys): (&'static str, &[&str])| Some((label, keys.iter().find_map(|key| get(key))?));
        let uid = get("SLURM_JOB_UID").and_then(|uid| uid.parse().ok());
        Ok(Self { number, name: get("SLURM_JOB_NAME"), uid, labels: LABELS.into_iter().filter_map(label).collect() })
    }

    /// Adds facts from Slurm's queue that the environment lacks. Before about version 23.02, the environment of a
    /// Prolog has neither the job's name nor its array.
    pub(super) fn ask_queue(&mut self, until: &Deadline) -> anyhow::Result<()> {
        if self.name.is_some() {
            return Ok(());
        }
        let columns = COLUMNS.map(|column| format!("{column}:{WIDTH}")).join(",");
        let mut command = Command::new("squeue");
        command.args(["--noheader", "--states=all", "--jobs", &self.number.to_string(), "--Format", &columns]);
        let answer = output(command, until)?;
        let Some(found) = in_queue(&answer, self.number) else {
            bail!("squeue does not list job {}", self.number);
        };
        self.name = found.name;
        for (label, value) in found.labels {
            self.labels.entry(label).or_insert(value);
        }
        Ok(())
    }

    /// Returns the job's name for the daemon: Slurm's name, shortened and cleaned so that the daemon accepts it.
    pub(super) fn name(&self) -> String {
        let name = accepted_name(self.name.as_deref().unwrap_or_default());
        name.unwrap_or_else(|| format!("slurm-{}", self.number))
    }

    /// Returns the job's tags for the daemon.
    pub(super) fn tags(&self) -> BTreeMap<String, String> {
        let labels = self.labels.iter().map(|(label, value)| ((*label).to_owned(), accepted_value(value)));
        labels.chain([("slurm_job_id".to_owned(), self.number.to_string())]).collect()
    }
}

/// Returns a name that the daemon accepts, as similar to this text as possible; `None` if there is none.
pub(in crate::cli) fn accepted_name(text: &str) -> Option<String> {
    let name: String = legible(text.trim()).trim().chars().take(LONGEST_NAME).collect();
    let name = name.trim().to_owned();
    let is_accepted = JobName::new(name.clone()).and_then(JobName::require_visible).is_ok();
    is_accepted.then_some(name)
}

/// Returns a tag's value that the daemon accepts, as similar to this text as possible.
pub(in crate::cli) fn accepted_value(text: &str) -> String {
    let mut value = legible(text);
    value.truncate(value.floor_char_boundary(LONGEST_VALUE));
    value
}

/// Finds a job in the answer of `squeue`. The pending rest of an array has the number of the array's last task, so the
/// row of a single task is preferred.
fn in_queue(answer: &str, number: u32) -> Option<Facts> {
    let rows = answer.lines().filter_map(|line| {
        let bytes = line.as_bytes();
        let column = |at: usize| {
            let column = bytes.get(at * WIDTH..).unwrap_or_default();
            String::from_utf8_lossy(&column[..column.len().min(WIDTH)]).trim().to_owned()
        };
        (column(0).parse() == Ok(number)).then(|| std::array::from_fn(column))
    });
    let rows: Vec<[String; COLUMNS.len()]> = rows.collect();
    let is_single = |row: &&[String; COLUMNS.len()]| !row[2].contains(['[', ',', '-']);
    let [_, array, task, restarts, user, account, name] = rows.iter().find(is_single).or(rows.first())?.clone();
    let is_array = task.parse::<u32>().is_ok();
    let labels = [
        ("slurm_array_job_id", array, is_array),
        ("slurm_array_task_id", task, is_array),
        ("slurm_restart_count", restarts, true),
        ("user", user, true),
        ("account", account, true),
    ];
    let is_given = |value: &str| !value.is_empty() && !["N/A", "(null)"].contains(&value);
    let labels = labels.into_iter().filter(|(_, value, is_so)| *is_so && is_given(value));
    let labels = labels.map(|(label, value, _)| (label, value)).collect();
    Some(Facts { number, name: Some(name).filter(|name| is_given(name)), uid: None, labels })
}

/// Runs one of Slurm's commands and returns its output.
///
/// # Errors
/// If it is not found, fails, or takes too long.
pub(super) fn output(mut command: Command, until: &Deadline) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let until = until.or_within(QUEUE_PATIENCE);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Slurm starts its scripts without a search path.
    if std::env::var_os("PATH").is_none_or(|path| path.is_empty()) {
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin");
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.as_mut().map(|out| out.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if until.is_over() {
            // It may end by itself at this moment.
            let _ = child.kill();
            let _ = child.wait();
            bail!("{name} did not answer within {:.1} s", QUEUE_PATIENCE.as_secs_f64());
        }
        std::thread::sleep(CHECK_EVERY);
    };
    if !status.success() {
        let mut why = String::new();
        err.as_mut().map(|err| err.take(4096).read_to_string(&mut why));
        bail!("{name} failed ({status}): {}", legible(why.trim()));
    }
    Ok(reader.join().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(variables: &[(&str, &str)]) -> anyhow::Result<Facts> {
        Facts::of_environment(|key| {
            variables.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        })
    }

    fn row(columns: [&str; COLUMNS.len()]) -> String {
        let padded = columns.map(|column| format!("{column:<WIDTH$}"));
        format!("{}\n", padded.concat())
    }

    #[test]
    fn the_environment_of_a_prolog_is_read() {
        let found = facts(&[
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_JOB_ACCOUNT", "vision"),
            ("SLURM_JOB_RESTART_COUNT", "2"),
            ("SLURM_JOB_PARTITION", ""),
        ]);
        let found = found.expect("right");
        let tags = found.tags();
        let tag = |key: &str| tags.get(key).map(String::as_str);
        assert_eq!(found.name(), "slurm-7");
        assert_eq!((tag("slurm_job_id"), tag("user"), tag("account")), (Some("7"), Some("ada"), Some("vision")));
        assert_eq!((tag("slurm_restart_count"), tag("slurm_partition")), (Some("2"), None));
        for wrong in [&[][..], &[("SLURM_JOB_ID", "")], &[("SLURM_JOB_ID", "0")], &[("SLURM_JOB_ID", "x")]] {
            assert!(facts(wrong).is_err());
        }
    }

    #[test]
    fn a_job_is_found_in_the_queue_and_its_name_passes_for_nothing_else() {
        let name = format!("x{:<WIDTH$}7 {:<WIDTH$}root", "", "");
        let answer = row(["9", "7", "3", "0", "ada", "vision", "arr"])
            + &row(["7", "7", "[4-9]", "0", "ada", "vision", "arr"])
            + &row(["7", "7", "2", "1", "ada", "vision", &name]);
        let found = in_queue(&answer, 7).expect("listed");
        let label = |label: &str| found.labels.get(label).map(String::as_str);
        assert_eq!((label("user"), label("account")), (Some("ada"), Some("vision")));
        assert_eq!((label("slurm_array_task_id"), label("slurm_restart_count")), (Some("2"), Some("1")));
        assert!(found.name().starts_with('x'));
        let plain = in_queue(&row(["8", "8", "N/A", "0", "bob", "(null)", "a b"]), 8).expect("listed");
        assert_eq!(plain.name(), "a b");
        let labels: Vec<&str> = plain.labels.keys().copied().collect();
        assert_eq!(labels, ["slurm_restart_count", "user"]);
        assert_eq!(in_queue(&answer, 8), None);
        assert_eq!(in_queue("", 7), None);
        assert_eq!(in_queue("7", 7).map(|found| found.name()), Some("slurm-7".to_owned()));
    }

    #[test]
    fn names_and_labels_are_those_that_the_daemon_takes() {
        let name = |name: &str| {
            let found = facts(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", name)]).expect("right");
            JobName::new(found.name()).and_then(JobName::require_visible).expect("taken").to_string()
        };
        assert_eq!(name("resnet50"), "resnet50");
        assert_eq!(name("  "), "slurm-7");
        assert_eq!(name(&"ä".repeat(300)).chars().count(), 128);
        assert!(!name("a\nb\u{202e}c").contains('\n'));
        let found = facts(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_ACCOUNT", &"ä".repeat(300))]).expect("right");
        assert!(found.tags()["account"].len() <= 256);
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_left() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            output(command, &Deadline::within(Duration::from_millis(300))).map_err(|error| error.to_string())
        };
        assert_eq!(run("echo a"), Ok("a\n".to_owned()));
        assert!(run("echo no such job >&2; exit 1").is_err_and(|e| e.contains("no such job")));
        let limit = Deadline::within(Duration::from_secs(2));
        assert!(run("sleep 9").is_err_and(|e| e.contains("did not answer")));
        assert!(!limit.is_over());
    }
}
