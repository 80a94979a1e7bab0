//! The real daemon, a fake driver, and jobs that train against both.

mod advisor;
mod cli;
mod daemon;
mod driver;
mod grid;
mod job;
mod ledger_file;
pub(crate) mod one_gpu;
mod shape;
mod traces;
mod training;

pub(crate) use advisor::Advisor;
pub(crate) use cli::{Ended, journal, moment, number, output_text, send_signal, simulate, wattune};
pub(crate) use daemon::{Answer, Daemon};
pub(crate) use driver::{FakeDriver, Write};
pub(crate) use grid::{Asked, Grid, Said, Weather};
pub(crate) use job::job;
pub(crate) use ledger_file::LedgerFile;
pub(crate) use shape::Shapes;
pub(crate) use traces::traces;
pub(crate) use training::{Curve, Training, rate};

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// For what takes seconds, on a machine that is busy.
pub(crate) const LONG: Duration = Duration::from_secs(120);

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
