//! The command line as a person uses it.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{FakeDriver, traces};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The binary with these arguments, and no variable of its own in the environment.
pub(crate) fn wattune(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
    for (key, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("WATTUNE_")) {
        command.env_remove(key);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

impl Ended {
    /// Runs a command that ends by itself.
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The same with a driver in place of the machine's.
    pub(crate) fn with_driver(driver: &FakeDriver, arguments: &[&str]) -> Self {
        let mut command = wattune(arguments);
        command.arg("--nvml-library").arg(FakeDriver::library()).env("FAKE_NVML_DIR", driver.dir());
        Self::of(&mut command)
    }

    /// Checks the exit code; answers with what was written to stderr.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        &self.err
    }

    /// Checks that all went well; answers with the output.
    #[track_caller]
    pub(crate) fn done(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.out
    }

    /// The output, of a command that went well, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.done()).expect(&self.out)
    }
}

/// Runs `wattune simulate` with these arguments, in which `@` stands for the folder of the traces; `None` without them.
pub(crate) fn simulate(kind: &str, arguments: &str) -> Option<Ended> {
    let folder = traces()?;
    let folder = folder.to_str().expect("UTF-8");
    let arguments: Vec<String> = arguments.split_whitespace().map(|a| a.replace('@', folder)).collect();
    let mut all = vec!["simulate", kind];
    all.extend(arguments.iter().map(String::as_str));
    Some(Ended::of(&mut wattune(&all)))
}

/// Returns the number in a field of a row.
pub(crate) fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

/// Returns all that a command wrote, which must have ended with this exit code.
#[track_caller]
pub(crate) fn output_text(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Sends a signal, by name or number, to a process.
#[track_caller]
pub(crate) fn send_signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(sent.expect("kill runs").success());
}

/// Returns the restore journal in a state folder; empty if there is none.
pub(crate) fn journal(state: &Path) -> String {
    std::fs::read_to_string(state.join("found-limits.json")).unwrap_or_default()
}

/// Returns the time in a JSON value.
#[track_caller]
pub(crate) fn moment(value: &Value) -> DateTime<Utc> {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}
