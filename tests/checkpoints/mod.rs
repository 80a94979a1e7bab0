//! What a kill costs the ledger: at most the seconds since the last checkpoint, and nothing whose energy a counter knows.

mod kills;
mod starts;
mod tampered;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::sync::watch;
use wattune::clock::ManualClock;
use wattune::controller::{Caller, Controller, NewJob, Parts, ProgressReport, Settings as ControlSettings};
use wattune::gpu::handle::Sampling;
use wattune::gpu::nvml::{Settings as NvmlSettings, open_all};
use wattune::providers::FeedState;
use wattune::store::{Store, StoreError};
use wattune_core::domain::JobId;
use wattune_core::ledger::entry::{Entry, Lost};
use wattune_core::ledger::verify::Verifier;
use wattune_core::units::{Samples, Seconds};

use crate::support::{self, Daemon, FakeDriver, LONG, LedgerFile, eventually};

const TICK: Seconds = Seconds::new(1.0);
const START_S: i64 = 1_767_225_600;
/// What the GPUs draw all the time, in millijoules a second.
const DRAW_MW: i64 = 120_000;
/// The most that a kill may cost.
const LOST_S: i64 = 5;

/// A node whose GPUs have a time of their own, and daemons on it, one after another.
struct World {
    driver: FakeDriver,
    library: PathBuf,
    clock: Arc<ManualClock>,
    elapsed: f64,
    samples: f64,
    state: tempfile::TempDir,
    feed: watch::Sender<FeedState>,
}

impl World {
    fn new(fields: Value) -> Self {
        let mut gpu = json!({"demand_w": 120, "update_ms": 0});
        gpu.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let driver = FakeDriver::new(&[gpu]);
        let library = driver.dir().join("libnvidia-ml.so.1");
        std::fs::copy(FakeDriver::library(), &library).expect("copied");
        let start = DateTime::from_timestamp(START_S, 0).expect("a moment");
        let clock = Arc::new(ManualClock::at(start));
        let feed = watch::Sender::new(FeedState::starting(Vec::new(), start));
        let state = tempfile::tempdir().expect("a directory");
        let world = Self { driver, library, clock, elapsed: 0.0, samples: 0.0, state, feed };
        world.tell_time();
        world
    }

    fn tell_time(&self) {
        let new = self.driver.dir().join("clock.new");
        std::fs::write(&new, format!("{:.0}", START_S as f64 * 1e9 + self.elapsed * 1e9)).expect("written");
        std::fs::rename(new, self.driver.dir().join("clock")).expect("renamed");
    }

    fn pass(&mut self, seconds: f64) {
        self.clock.advance(Seconds::new(seconds));
        self.elapsed += seconds;
        self.tell_time();
    }

    /// Changes a field of the GPU; the library looks for a changed script every five milliseconds.
    fn set(&self, fields: Value) {
        self.driver.set(0, fields);
        std::thread::sleep(Duration::from_millis(20));
    }

    async fn daemon(&self) -> Controller {
        let gpus = open_all(&NvmlSettings { library: Some(self.library.clone()) }).expect("opens");
        let parts = Parts {
            settings: ControlSettings { tick_s: TICK, observe: true, ..ControlSettings::default() },
            ..Parts::new(
                self.state.path(),
                self.clock.clone(),
                gpus.devices,
                Sampling::OnRequest,
                self.feed.subscribe(),
            )
        };
        let mut controller = Controller::start(parts).await.expect("starts");
        controller.tick().await;
        controller
    }

    /// So many ticks, with a report of each of these jobs before each.
    async fn run(&mut self, controller: &mut Controller, seconds: u32, jobs: &[&JobId]) {
        for _ in 0..seconds {
            self.pass(1.0);
            self.samples += 100.0;
            for job in jobs {
                let report = ProgressReport::new(Samples::new(self.samples), None);
                controller.progress(job, report).await.expect("taken");
            }
            controller.tick().await;
        }
    }

    /// Millijoules recorded: of a job, or of a share that is nobody's.
    async fn recorded(&self, whose: &str) -> i64 {
        let rows = LedgerFile::open(self.state.path()).of(0).0;
        rows.iter().filter(|r| r.job.as_deref().unwrap_or(&r.share) == whose).map(|r| r.energy_mj).sum()
    }

    /// Times of which nothing tells how much was used, from a ledger that is in order.
    async fn lost(&self) -> Vec<Lost> {
        let store = Store::open(self.state.path()).await.expect("opens");
        let (mut verifier, mut lost) = (Verifier::default(), Vec::new());
        let take = |line: &str| {
            verifier.feed(format!("{line}\n").as_bytes()).expect("in order");
            let line: Value = serde_json::from_str(line).expect("JSON");
            if let Some(Ok(Entry::Lost(of))) = line.get("entry").map(|entry| serde_json::from_value(entry.clone())) {
                lost.push(of);
            }
            Ok::<_, StoreError>(())
        };
        store.export(take).await.expect("exported");
        // Checkpoints agree with what is recorded since the last close, too.
        store.verify(Verifier::default()).await.expect("read").expect("in order");
        store.close().await;
        assert_eq!(verifier.finish().expect("in order").differences, []);
        lost
    }
}

fn job(name: &str, lease_s: f64, control: bool) -> NewJob {
    NewJob { lease: Some(Seconds::new(lease_s)), control, ..support::job(name, 0.05) }
}

async fn register(controller: &mut Controller, new: NewJob) -> JobId {
    JobId::new(controller.register(new).await.expect("registered").job_id).expect("an id")
}

/// Whether two sums of millijoules are the same but for what the GPU used in so many seconds.
#[track_caller]
fn close(recorded: i64, expected_s: f64, within_s: f64) {
    let off = (recorded as f64 / DRAW_MW as f64 - expected_s).abs();
    assert!(off <= within_s, "{:.3} s of the draw, not {expected_s} s", recorded as f64 / DRAW_MW as f64);
}
