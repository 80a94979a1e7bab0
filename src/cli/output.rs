//! Prints or writes the results of commands, and defines their exit codes.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

/// The result of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything succeeded: exit code 0.
    Done,
    /// A part failed, as the output explains: exit code 1.
    Failed,
    /// The command that `wattune run` has run ended with this exit code.
    Code(u8),
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table for people.
    Table,
    /// JSON for programs.
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

/// Checks, before any work is done, that the output file, which `flag` names, can be written. Leaves an existing file unchanged.
pub(super) fn check_writable(flag: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = output else { return Ok(()) };
    let check = || {
        match std::fs::metadata(path) {
            // Opening a pipe would wait for its reader, and closing it would end what the reader gets.
            Ok(file) if file.file_type().is_fifo() => return Ok(()),
            Ok(_) => return OpenOptions::new().append(true).open(path).map(drop),
            Err(_) => {}
        }
        OpenOptions::new().create_new(true).write(true).open(path)?;
        std::fs::remove_file(path)
    };
    check().with_context(|| format!("{flag}: cannot write {}", path.display()))
}

/// Writes a result to a file, or to standard output if `output` is `None`.
pub(super) fn deliver(bytes: &[u8], output: Option<&Path>) -> anyhow::Result<()> {
    match output {
        Some(path) => write(path, bytes).with_context(|| format!("cannot write {}", path.display())),
        None => std::io::stdout().lock().write_all(bytes).context("cannot write to standard output"),
    }
}

/// Writes a file. A pipe without a reader is an error instead of a wait.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
    if !is_pipe {
        return std::fs::write(path, bytes);
    }
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut pipe = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    rustix::fs::fcntl_setfl(&pipe, rustix::fs::OFlags::empty())?;
    pipe.write_all(bytes)
}
