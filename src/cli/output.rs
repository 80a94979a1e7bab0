//! The results of commands: their format, their place, and the exit code.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// Partly failed; the output has the details.
    Failed,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

impl Format {
    /// Prints a result as JSON, or as the text that `table` renders for people.
    pub(super) fn print(self, result: &impl Serialize, table: impl FnOnce() -> String) -> anyhow::Result<()> {
        let text = match self {
            Self::Json => serde_json::to_string_pretty(result)? + "\n",
            Self::Table => table(),
        };
        deliver(text.as_bytes(), None)
    }
}

/// Fails now, and not after the work, if the file cannot be written. Leaves an existing file as it is.
pub(super) fn check_writable(output: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = output else { return Ok(()) };
    let check = || {
        if path.exists() {
            return OpenOptions::new().append(true).open(path).map(drop);
        }
        OpenOptions::new().create_new(true).write(true).open(path)?;
        std::fs::remove_file(path)
    };
    check().with_context(|| format!("--output: cannot write {}", path.display()))
}

/// Writes to a file or to standard output.
pub(super) fn deliver(bytes: &[u8], output: Option<&Path>) -> anyhow::Result<()> {
    match output {
        Some(path) => std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display())),
        None => std::io::stdout().lock().write_all(bytes).context("cannot write to standard output"),
    }
}
