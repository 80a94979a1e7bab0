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
    /// The command that `wattune run` started has ended with this exit code.
    Code(u8),
}

/// Wrong use of the command line that the parser of the flags cannot detect: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUse(pub(super) String);

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
            Self::Json => to_json(result)?,
            Self::Table => table().into_bytes(),
        };
        deliver(&text, None)
    }
}

/// Renders a result as JSON that people can read, too.
pub(super) fn to_json(result: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(result)?;
    text.push(b'\n');
    Ok(text)
}

/// Renders rows as CSV, under a line with the names of their fields.
pub(super) fn to_csv<R: Serialize>(rows: impl IntoIterator<Item = R>) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.into_iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

/// Prints a message of a command on standard error, because standard output is for the command's result alone.
pub(super) fn say(command: &str, message: &str) {
    // If it cannot be written, the result counts nevertheless.
    let _ = writeln!(std::io::stderr(), "wattune {command}: {message}");
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
        None => print(bytes),
    }
}

/// Writes to standard output. A reader that has closed the pipe, as `head` does, is no error.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    unless_closed(std::io::stdout().lock().write_all(bytes).map_err(anyhow::Error::from))
        .context("cannot write to standard output")
}

/// Ignores that the reader of standard output has closed the pipe.
pub(super) fn unless_closed(written: anyhow::Result<()>) -> anyhow::Result<()> {
    let is_closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    match written {
        Err(error) if error.downcast_ref().is_some_and(is_closed) => Ok(()),
        other => other,
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
