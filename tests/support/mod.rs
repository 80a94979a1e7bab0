//! The real daemon, a fake driver, and jobs that train against both.

mod advisor;
mod cli;
mod daemon;
mod driver;
mod grid;
mod ledger_file;
pub(crate) mod one_gpu;
mod shape;
mod training;

pub(crate) use advisor::Advisor;
pub(crate) use cli::{Ended, journal, moment, number, output_text, send_signal, simulate, wattune};
pub(crate) use daemon::{Answer, Daemon};
pub(crate) use driver::{FakeDriver, Write};
pub(crate) use grid::{Asked, Grid, Said, Weather};
pub(crate) use ledger_file::LedgerFile;
pub(crate) use shape::Shapes;
pub(crate) use training::{Curve, Training, rate};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use wattune::controller::{Caller, GpuRef, NewJob};
use wattune_core::domain::{JobName, Objective, Work};
use wattune_core::units::Seconds;

/// For what takes seconds, on a machine that is busy.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The recorded traces; `None` where they are not at hand and not required.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
pub(crate) fn traces() -> Option<PathBuf> {
    let folder = std::env::var_os("WATTUNE_TRACES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"));
    if folder.join("carbon").is_dir() {
        return Some(folder);
    }
    let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
    assert!(!required, "the traces are required and not at {}", folder.display());
    println!("skipped: no traces at {}; set WATTUNE_TRACES", folder.display());
    None
}

/// Asks again and again until `found` gives something; fails with `what` after `patience`.
pub(crate) async fn eventually<T>(what: &str, patience: Duration, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let steps = (patience.as_millis() / 50).max(1);
    for _ in 0..steps {
        if let Some(value) = found().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} did not happen within {patience:?}");
}

/// A forecast in a file: slots of `step` seconds from a little before now on, with the intensities that `value` gives.
pub(crate) fn forecast_file(dir: &tempfile::TempDir, step: i64, slots: i64, value: impl Fn(i64) -> f64) -> PathBuf {
    let start = now();
    let mut text = String::from("timestamp,duration,value\n");
    for i in -1..slots {
        let at = start + TimeDelta::seconds(i * step);
        text += &format!("{},{},{}\n", at.to_rfc3339(), step as f64 / 60.0, value(i));
    }
    let path = dir.path().join("carbon.csv");
    std::fs::write(&path, text).expect("written");
    path
}

#[expect(clippy::disallowed_methods, reason = "tests of the real daemon run in real time")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// A job of unknown work on the first GPU, kept for a day without a word from it.
pub(crate) fn job(name: &str, max_slowdown: f64) -> NewJob {
    NewJob {
        name: JobName::new(name).expect("a name"),
        gpus: vec![GpuRef::Index(0)],
        batch_size: None,
        work: Work::Unknown,
        objective: Objective::slower_by(max_slowdown).expect("in range"),
        lease: Some(Seconds::new(86_400.0)),
        control: true,
        priority: 0,
        tags: BTreeMap::new(),
        processes: None,
        replaces: None,
        offers: Default::default(),
        by: Caller::Local,
        user: None,
    }
}
