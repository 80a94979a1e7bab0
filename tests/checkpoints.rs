//! What a kill costs the ledger: at most the seconds since the last checkpoint, and nothing whose energy a counter knows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::sync::watch;
use wattune::clock::ManualClock;
use wattune::controller::{Controller, NewJob, Parts, ProgressReport, Settings as ControlSettings, SharedRanks};
use wattune::gpu::nvml::{Settings as NvmlSettings, open_all};
use wattune::gpu::thread::Sampling;
use wattune::providers::{CarbonSettings, FeedState};
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
            cpu: None,
            settings: ControlSettings { tick_s: TICK, observe: true, ..ControlSettings::default() },
            profiling: Default::default(),
            planning: Default::default(),
            carbon: CarbonSettings::default(),
            cap: Default::default(),
            carbon_budget: Default::default(),
            ledger: Default::default(),
            state_dir: self.state.path(),
            clock: self.clock.clone(),
            devices: gpus.devices,
            sampling: Sampling::OnRequest,
            signal: self.feed.subscribe(),
            ranks: SharedRanks::default(),
            price: None,
            problems: Vec::new(),
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
                let report = ProgressReport { samples: Samples::new(self.samples), at: None };
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

#[tokio::test]
async fn a_job_keeps_its_energy_over_kills_within_its_lease() {
    for (lease_s, away_s, kills) in [(10.0, 0.3, 1), (10.0, 0.3, 5), (60.0, 30.0, 2), (2.0, 0.5, 3), (1.0, 0.3, 3)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", lease_s, true)).await;
        for _ in 0..kills {
            world.run(&mut controller, 47, &[&id]).await;
            drop(controller);
            world.pass(away_s);
            controller = world.daemon().await;
        }
        world.run(&mut controller, 3, &[&id]).await;
        let (_, reported) = controller.metered(&id).await.expect("known");
        let expected = f64::from(kills) * (47.0 + away_s) + 3.0;
        close((reported.get() * 1e3) as i64, expected, 0.01);
        controller.shut_down().await;
        assert_eq!((world.recorded("unattributed").await, world.lost().await), (0, Vec::new()), "lease {lease_s}");
        close(world.recorded(id.as_str()).await, expected, 0.01);
    }
}

#[tokio::test]
async fn jobs_on_one_gpu_share_what_a_kill_leaves() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    let a = register(&mut controller, job("a", 10.0, true)).await;
    let b = register(&mut controller, job("b", 10.0, false)).await;
    let gone = register(&mut controller, job("gone", 10.0, false)).await;
    world.run(&mut controller, 20, &[&a, &b, &gone]).await;
    controller.end(&gone).await.expect("ended");
    world.run(&mut controller, 20, &[&a, &b]).await;
    // One that ends right before the kill keeps what it had, and gets no more.
    let late = register(&mut controller, job("late", 10.0, false)).await;
    world.run(&mut controller, 9, &[&a, &b, &late]).await;
    controller.end(&late).await.expect("ended");
    drop(controller);
    world.pass(1.0);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 5, &[&a, &b]).await;
    controller.shut_down().await;
    for (id, seconds) in [(&gone, 20.0 / 3.0), (&late, 3.0)] {
        close(world.recorded(id.as_str()).await, seconds, 0.01);
    }
    for id in [&a, &b] {
        close(world.recorded(id.as_str()).await, 20.0 / 3.0 + 10.0 + 3.0 + 3.0, 0.01);
    }
    assert_eq!(world.recorded("unattributed").await, 0);
}

#[tokio::test]
async fn what_a_gpu_used_before_the_kill_is_whose_it_was_then() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    // Nobody has it, then a job that ends.
    world.run(&mut controller, 30, &[]).await;
    let id = register(&mut controller, job("short", 10.0, true)).await;
    world.run(&mut controller, 10, &[&id]).await;
    controller.end(&id).await.expect("ended");
    world.run(&mut controller, 10, &[]).await;
    drop(controller);
    world.pass(2.0);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 1, &[]).await;
    controller.shut_down().await;
    close(world.recorded(id.as_str()).await, 10.0, 0.01);
    close(world.recorded("idle").await, 41.0, LOST_S as f64);
    close(world.recorded("unattributed").await, 2.0, LOST_S as f64);
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 43 * DRAW_MW);
}

#[tokio::test]
async fn beyond_its_lease_a_job_has_what_it_used_before_the_kill() {
    for (silent_s, away_s) in [(0, 11.0), (0, 300.0), (7, 6.0)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("gone", 10.0, true)).await;
        world.run(&mut controller, 47, &[&id]).await;
        world.run(&mut controller, silent_s, &[]).await;
        drop(controller);
        world.pass(away_s);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 11, &[]).await;
        controller.shut_down().await;
        let all =
            world.recorded(id.as_str()).await + world.recorded("unattributed").await + world.recorded("idle").await;
        assert_eq!(all, ((58.0 + f64::from(silent_s) + away_s) * DRAW_MW as f64) as i64);
        // The new daemon waits for it for as long as its lease is.
        let its = 47.0 + f64::from(silent_s) + 10.5;
        close(world.recorded(id.as_str()).await, its, LOST_S as f64);
        close(world.recorded("unattributed").await, away_s, LOST_S as f64);
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_meanwhile_changes_nobodys_share() {
    for jump in [-7_200, -3, 3, 3_600] {
        for while_away in [false, true] {
            let mut world = World::new(json!({}));
            let mut controller = world.daemon().await;
            let id = register(&mut controller, job("live", 10.0, true)).await;
            world.run(&mut controller, 40, &[&id]).await;
            if !while_away {
                world.clock.jump(TimeDelta::seconds(jump));
                world.run(&mut controller, 7, &[&id]).await;
            }
            drop(controller);
            if while_away {
                world.clock.jump(TimeDelta::seconds(jump));
            }
            world.pass(1.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 5, &[&id]).await;
            controller.shut_down().await;
            let expected = if while_away { 46.0 } else { 53.0 };
            close(world.recorded(id.as_str()).await, expected, 0.01);
            assert_eq!(world.recorded("unattributed").await, 0, "{jump} s, {while_away}");
        }
    }
}

#[tokio::test]
async fn a_job_that_came_right_before_the_kill_has_what_it_used() {
    for jump in [0, 3_600] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        world.run(&mut controller, 40, &[]).await;
        world.pass(0.5);
        let id = register(&mut controller, job("late", 10.0, true)).await;
        world.pass(0.5);
        drop(controller);
        world.clock.jump(TimeDelta::seconds(jump));
        world.pass(4.0);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 3, &[&id]).await;
        controller.shut_down().await;
        let its = world.recorded(id.as_str()).await;
        close(its, 7.5 + 0.25, 2.3);
        assert!(its >= 7_500 * DRAW_MW / 1000 - 1, "{its}");
        assert_eq!(its + world.recorded("idle").await + world.recorded("unattributed").await, 48 * DRAW_MW);
    }
}

#[tokio::test]
async fn a_counter_that_is_reset_meanwhile_is_said_and_nothing_is_recorded_twice() {
    let mut world = World::new(json!({"initial_energy_j": 5_000}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    world.run(&mut controller, 47, &[&id]).await;
    drop(controller);
    world.pass(1.0);
    world.set(json!({"energy_resets": 1}));
    world.pass(0.1);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 5, &[&id]).await;
    controller.shut_down().await;
    let recorded = world.recorded(id.as_str()).await;
    assert!(recorded <= 53_100 * DRAW_MW / 1000, "{recorded}");
    close(recorded, 52.0, LOST_S as f64);
    let lost = world.lost().await;
    assert_eq!(lost.len(), 1, "{lost:#?}");
    assert!(lost[0].why.contains("reset"), "{lost:#?}");
}

#[tokio::test]
async fn without_a_counter_a_kill_loses_seconds_and_says_so() {
    let mut world = World::new(json!({"energy_supported": false}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    let (kills, mut ran) = (5, 0);
    for round in 0..kills {
        let seconds = 31 + 19 * round;
        world.run(&mut controller, seconds, &[&id]).await;
        ran += i64::from(seconds);
        drop(controller);
        world.pass(0.4);
        controller = world.daemon().await;
    }
    controller.shut_down().await;
    let recorded = world.recorded(id.as_str()).await;
    assert!(
        recorded <= ran * DRAW_MW && recorded >= (ran - i64::from(kills) * LOST_S) * DRAW_MW,
        "{recorded} of {ran} s"
    );
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 0);
    let lost = world.lost().await;
    assert_eq!(lost.len(), kills as usize, "{lost:#?}");
    // Together with what is flagged, all of it is accounted for.
    let flagged: f64 = lost.iter().map(|l| (l.until - l.from).as_seconds_f64()).sum();
    close(recorded, world.elapsed - flagged, 0.5);
    for of in lost {
        assert!(!of.why.contains("was not read"), "it was read: {of:#?}");
        assert!((of.until - of.from).as_seconds_f64() <= LOST_S as f64 + 0.4, "{of:#?}");
    }
}

#[tokio::test]
async fn a_kill_right_after_the_start_is_flagged_too() {
    let mut world = World::new(json!({"energy_supported": false}));
    let mut controller = world.daemon().await;
    world.run(&mut controller, 1, &[]).await;
    drop(controller);
    world.pass(0.5);
    world.daemon().await.shut_down().await;
    let (recorded, lost) = (world.recorded("idle").await, world.lost().await);
    let flagged: f64 = lost.iter().map(|l| (l.until - l.from).as_seconds_f64()).sum();
    close(recorded, world.elapsed - flagged, 0.3);
}

#[tokio::test]
async fn a_clean_end_ledger_what_is_open_once() {
    for fields in [json!({}), json!({"energy_supported": false})] {
        let mut world = World::new(fields);
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 30.0, true)).await;
        for _ in 0..3 {
            world.run(&mut controller, 33, &[&id]).await;
            controller.shut_down().await;
            let before = world.recorded(id.as_str()).await;
            controller = world.daemon().await;
            assert_eq!(world.recorded(id.as_str()).await, before, "nothing was left open");
        }
        controller.shut_down().await;
        close(world.recorded(id.as_str()).await, 99.0, 0.3);
        assert_eq!(world.recorded("unattributed").await, 0);
    }
}

#[tokio::test]
async fn between_a_clean_end_and_a_start_energy_is_its_whose_lease_was_not_over() {
    for (away_s, its) in [(4.0, true), (40.0, false)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 10.0, true)).await;
        world.run(&mut controller, 33, &[&id]).await;
        controller.shut_down().await;
        world.pass(away_s);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 2, &[&id]).await;
        controller.shut_down().await;
        close(world.recorded(id.as_str()).await, 35.0 + if its { away_s } else { 0.0 }, 0.01);
        close(world.recorded("unattributed").await, if its { 0.0 } else { away_s }, 0.01);
    }
}

#[tokio::test]
async fn what_was_left_open_is_recorded_once_however_often_a_start_fails() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    world.run(&mut controller, 47, &[&id]).await;
    drop(controller);
    let store = Store::open_read_only(world.state.path()).await.expect("opens");
    store.verify(Verifier::default()).await.expect("read").expect("in order with what is open beside it");
    store.close().await;
    let mut recorded = Vec::new();
    for _ in 0..3 {
        let store = Store::open(world.state.path()).await.expect("opens");
        let taken = store.recover_open_intervals().await.expect("taken up");
        assert!(taken.last_seen.is_some_and(|seen| seen.leases.contains_key(&id)));
        store.close().await;
        recorded.push(world.recorded(id.as_str()).await);
    }
    close(recorded[0], 47.0, 2.0);
    assert_eq!(recorded[1..], [recorded[0], recorded[0]]);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 3, &[&id]).await;
    controller.shut_down().await;
    close(world.recorded(id.as_str()).await, 50.0, 0.01);
    assert_eq!(world.lost().await, []);
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_read_costs_no_start_and_no_joule_of_a_counter() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    world.run(&mut controller, 47, &[]).await;
    let store = controller.store();
    drop(controller);
    store.close().await;
    let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
    assert_eq!(db.execute("UPDATE open_books SET line = 'nonsense'", []).expect("spoilt"), 1);
    db.execute("UPDATE last_seen SET line = '{}'", []).expect("spoilt");
    drop(db);
    world.pass(1.0);
    world.daemon().await.shut_down().await;
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 48 * DRAW_MW);
}

#[tokio::test]
async fn whatever_ends_daemons_when_no_joule_is_recorded_twice() {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;
    for seed in 0..6 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::new(json!({"initial_energy_j": 77.7}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 20.0, true)).await;
        let mut guest = None;
        for _ in 0..12 {
            match random.random_range(0..4) {
                0 if guest.is_none() => guest = Some(register(&mut controller, job("guest", 20.0, false)).await),
                1 => {
                    if let Some(id) = guest.take() {
                        controller.end(&id).await.expect("ended");
                    }
                }
                2 => world.clock.jump(TimeDelta::milliseconds(random.random_range(-5_000_000..5_000_000))),
                _ => {}
            }
            let jobs: Vec<&JobId> = [&id].into_iter().chain(&guest).collect();
            world.run(&mut controller, random.random_range(0..130), &jobs).await;
            match random.random_range(0..3) {
                0 => drop(controller.shut_down().await),
                _ => drop(controller),
            }
            world.pass(random.random_range(0.0..4.0));
            controller = world.daemon().await;
        }
        controller.shut_down().await;
        assert_eq!(world.lost().await, [], "seed {seed}");
        let (rows, checkpoint) = LedgerFile::open(world.state.path()).of(0);
        let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
        assert_eq!(recorded, checkpoint.expect("there") - 77_700, "seed {seed}");
        // Within every lease: nobody's is only what came before the first job.
        let nobodys: i64 = rows.iter().filter(|r| r.job.is_none()).map(|r| r.energy_mj).sum();
        assert_eq!(nobodys, 0, "seed {seed}: {rows:#?}");
    }
}

#[tokio::test]
async fn a_kill_while_a_checkpoint_is_written_leaves_the_one_before_or_all_of_it() {
    let still = json!({"demand_w": 0, "initial_energy_j": 5_000});
    let driver = Arc::new(FakeDriver::new(&[still, json!({"energy_supported": false})]));
    let state = tempfile::tempdir().expect("a directory");
    // Written at every tick, so that kills meet it.
    let settings = "[control]\nobserve = true\ntick_s = 0.05\ncheckpoint_s = 0.1\n";
    let start = || Daemon::command_set(&driver, state.path(), settings);
    let mut daemon = Daemon::start(start(), state.path()).await;
    let ledger = LedgerFile::open(state.path());
    eventually("the first look", LONG, async || ledger.of(0).1).await;
    driver.set(0, json!({"demand_w": 250}));
    let new = json!({"name": "live", "gpus": [0, 1], "work": {"total_samples": 1e9}, "lease_s": 60});
    let id = daemon.register(&new).await;
    for round in 0..8_u64 {
        tokio::time::sleep(Duration::from_millis(250 + 137 * round % 500)).await;
        daemon.kill();
        let store = Store::open_read_only(state.path()).await.expect("opens");
        store.verify(Verifier::default()).await.expect("read").expect("in order");
        store.close().await;
        daemon = Daemon::start(start(), state.path()).await;
    }
    assert!(daemon.stop("TERM").await.success());
    let (rows, checkpoint) = ledger.of(0);
    let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
    assert_eq!(recorded, checkpoint.expect("there") - 5_000_000, "{rows:#?}");
    // Only what was drawn right before the job came is nobody's.
    let first = rows.iter().position(|r| r.job.is_some()).expect("its energy");
    assert!(rows[first..].iter().all(|r| r.job.as_deref() == Some(&id)), "{rows:#?}");
    assert!(rows[..first].iter().all(|r| r.end_us < rows[0].start_us + 1_000_000), "{rows:#?}");
    // What was integrated does not overlap, either.
    let rows = ledger.of(1).0;
    assert!(rows.windows(2).all(|w| w[1].start_us >= w[0].end_us), "{rows:#?}");
}

#[tokio::test]
async fn a_killed_daemon_in_real_time_keeps_a_live_jobs_energy() {
    let driver = Arc::new(FakeDriver::new(&[json!({"demand_w": 250}), json!({"energy_supported": false})]));
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\nobserve = true\n";
    let start = || Daemon::command_set(&driver, state.path(), settings);
    let daemon = Daemon::start(start(), state.path()).await;
    let new = json!({"name": "live", "gpus": [0, 1], "work": {"total_samples": 1e9}, "lease_s": 10});
    let id = daemon.register(&new).await;
    let begun = driver.counter_j(0);
    let training = support::Training::start_at(daemon.base(), &id, &driver, |_| 100.0, 0.0);
    tokio::time::sleep(Duration::from_secs(14)).await;
    daemon.kill();
    let killed = driver.counter_j(0);
    let daemon = Daemon::start(start(), state.path()).await;
    training.report_to(daemon.base());
    let ledger = LedgerFile::open(state.path());
    let of_job = async |gpu| -> i64 {
        let rows = ledger.of(gpu).0;
        rows.iter().filter(|r| r.job.as_deref() == Some(&id)).map(|r| r.energy_mj).sum()
    };
    eventually("the gap's energy", LONG, async || {
        (of_job(0).await as f64 / 1e3 >= (killed - begun) * 0.98).then_some(())
    })
    .await;
    let seen = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(seen["samples"].as_f64().expect("reported") >= 900.0, "the last report is known: {seen}");
    assert!(of_job(1).await as f64 / 260e3 >= 14.0 - LOST_S as f64, "{:?}", ledger.of(1));
    training.stop().await;
    assert!(daemon.stop("TERM").await.success());
    let rows = ledger.of(0).0;
    let nobodys: i64 = rows.iter().filter(|r| r.share == "unattributed").map(|r| r.energy_mj).sum();
    assert_eq!(nobodys, 0, "{rows:#?}");
}

/// Changes the database between two daemons.
fn change(world: &World, statements: &[&str]) {
    let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
    for statement in statements {
        assert!(db.execute(statement, []).expect("done") > 0, "{statement} changes nothing");
    }
}

/// What verification of the state directory says is wrong.
async fn wrong(world: &World) -> Option<String> {
    let store = Store::open_read_only(world.state.path()).await.expect("opens");
    let found = store.verify(Verifier::default()).await.expect("read");
    store.close().await;
    found.err().map(|wrong| wrong.to_string())
}

#[tokio::test]
async fn a_checkpoint_that_was_changed_is_not_continued_from() {
    for (statement, is_killed) in [
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000", false),
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000", true),
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000, hash = NULL", false),
        ("UPDATE checkpoints SET at_us = at_us - 3600000000", false),
        ("UPDATE checkpoints SET holders = '[]'", false),
        ("UPDATE checkpoints SET hash = NULL", true),
        ("UPDATE checkpoints SET device = 'GPU-other'", false),
        ("DELETE FROM checkpoints", false),
        ("DELETE FROM checkpoints", true),
    ] {
        let mut world = World::new(json!({"initial_energy_j": 50_000}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 60.0, true)).await;
        world.run(&mut controller, 90, &[&id]).await;
        let store = controller.store();
        match is_killed {
            true => drop(controller),
            false => drop(controller.shut_down().await),
        }
        store.close().await;
        change(&world, &[statement]);
        assert!(wrong(&world).await.is_some_and(|why| why.starts_with("table checkpoints, row of device ")));
        let before = world.recorded(id.as_str()).await;
        for _ in 0..2 {
            world.pass(3.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 10, &[&id]).await;
            controller.shut_down().await;
        }
        // The three seconds before the first of these starts are unknown, those before the second are not.
        let since = world.recorded(id.as_str()).await - before;
        close(since, 23.0, 1.1);
        let lost = world.lost().await;
        let gpu = FakeDriver::uuid(0);
        let of_gpu: Vec<&Lost> = lost.iter().filter(|lost| lost.device.as_str() == gpu).collect();
        assert_eq!(of_gpu.len(), 1, "{statement}: {lost:?}");
        assert!(of_gpu[0].why.contains("the database was changed: its checkpoint "), "{statement}: {lost:?}");
        assert!(of_gpu[0].until - of_gpu[0].from >= TimeDelta::seconds(3), "{statement}: {lost:?}");
    }
}

#[tokio::test]
async fn intervals_that_were_changed_since_the_last_close_stay_reported() {
    for (statements, place, kept_s) in [
        (&["DELETE FROM intervals", "DELETE FROM checkpoints"][..], "table checkpoints, row of device ", 21.0),
        (&["DELETE FROM intervals"], "table open_block", 34.0),
        (&["DELETE FROM intervals WHERE id = (SELECT MAX(id) FROM intervals)"], "table open_block", 34.0),
        (&["UPDATE intervals SET energy_mj = energy_mj * 2, hash = NULL"], "ledger", 34.0),
        (&["UPDATE intervals SET energy_mj = energy_mj * 2"], "line ", 34.0),
        (&["DELETE FROM open_block"], "table open_block", 34.0),
        (&["UPDATE open_block SET line = replace(line, '\"rows\":', '\"rows\":1')"], "table open_block", 34.0),
    ] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 60.0, true)).await;
        world.run(&mut controller, 130, &[&id]).await;
        let store = controller.store();
        drop(controller);
        store.close().await;
        assert_eq!(wrong(&world).await, None);
        change(&world, statements);
        let reported = wrong(&world).await.unwrap_or_else(|| panic!("{statements:?} goes unseen"));
        assert!(reported.starts_with(place), "{statements:?}: {reported}");
        let before = world.recorded(id.as_str()).await;
        for _ in 0..2 {
            world.pass(1.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 10, &[&id]).await;
            controller.shut_down().await;
        }
        // What was open beside the intervals continues from the checkpoint.
        close(world.recorded(id.as_str()).await - before, kept_s, 1.1);
        // Rows cannot be made good; a new record can, and the ledger says that it is new.
        assert_eq!(wrong(&world).await.is_none(), statements[0].contains("open_block"), "{statements:?}");
        let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
        let sql = "SELECT COUNT(*) FROM ledger WHERE kind = 'lost' AND line LIKE '%\"why\":\"the database was changed: %close%'";
        let noted: i64 = db.query_row(sql, [], |row| row.get(0)).expect("counted");
        assert_eq!(noted, 1, "{statements:?}: once for the device, not at each start");
    }
}

#[tokio::test]
async fn an_unreadable_row_is_set_aside_and_everything_else_works() {
    for (statement, is_of_job) in [
        ("UPDATE jobs SET progress = 'x' WHERE id = ?1", true),
        ("UPDATE jobs SET spec = replace(spec, '\"lease\":60.0', '\"lease\":1e300') WHERE id = ?1", true),
        ("INSERT INTO demand_response VALUES ('odd', '{}', 9000000000000000 + 0 * length(?1))", false),
    ] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let live = register(&mut controller, job("live", 60.0, true)).await;
        let odd = register(&mut controller, job("odd", 60.0, false)).await;
        world.run(&mut controller, 65, &[&live, &odd]).await;
        controller.shut_down().await;
        let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
        assert_eq!(db.execute(statement, [odd.as_str()]).expect("done"), 1);
        drop(db);
        let mut controller = world.daemon().await;
        let status = controller.status();
        let named = if is_of_job { odd.as_str() } else { "demand-response event odd" };
        let problems: Vec<&String> = status.problems.iter().filter(|p| p.contains("is ignored")).collect();
        assert!(problems.len() == 1 && problems[0].contains(named), "{statement}: {:?}", status.problems);
        world.run(&mut controller, 5, &[&live]).await;
        controller.shut_down().await;
        let reported = crate::report::report(world.state.path(), &["--from", "2026-01-01", "--by", "name"]);
        assert!(reported.done().contains("live"), "{reported:?}");
    }
}
