//! `wattune simulate`: experiments driven by traces.

mod bandit;
mod carbon;
mod grid;
mod page;
mod progress;
mod write;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Subcommand, ValueEnum};

/// Experiments on recorded traces: no daemon, no hardware, nothing is measured or set.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Carbon(Box<carbon::Args>),
    Bandit(Box<bandit::Args>),
}

/// Carries the subcommand out.
///
/// # Errors
/// The error to show.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Carbon(args) => carbon::run(&args),
        Command::Bandit(args) => bandit::run(&args),
    }
}

/// The form of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets, with the same columns.
    Csv,
    /// A page with plots.
    Html,
}

/// Fails now, and not after the work, if the file cannot be written. Leaves what is there as it is.
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

fn warn(warnings: &[String]) {
    for warning in warnings {
        // Warnings are for people, results go to stdout.
        let _ = writeln!(std::io::stderr(), "wattune: warning: {warning}");
    }
}

/// Parses a number from `low` to `high`; `right` describes one in the error.
pub(super) fn within(text: &str, low: f64, high: f64, right: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (low..=high).contains(n));
    number.ok_or_else(|| format!("give {right}"))
}

/// Takes one of these names, each with its help.
fn one_of(names: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    PossibleValuesParser::new(names.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// The values without repetitions.
fn once<T: Clone, K: PartialEq>(asked: &[T], key: impl Fn(&T) -> K) -> Vec<T> {
    let is_first = |place: &usize| !asked[..*place].iter().any(|before| key(before) == key(&asked[*place]));
    (0..asked.len()).filter(is_first).map(|place| asked[place].clone()).collect()
}
