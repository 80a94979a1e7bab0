//! A day of the imagined driver's energy against the ledger: steps, spikes and rest, counters that start anew, daemons that
//! end and are killed, a wall clock that is set, and a leap second. The GPUs have a time of their own, which nobody sets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta};
use serde_json::{Value, json};
use tokio::sync::watch;
use wattune::clock::ManualClock;
use wattune::controller::{Caller, Controller, Parts, Settings as ControlSettings};
use wattune::gpu::handle::Sampling;
use wattune::gpu::nvml::{Settings as NvmlSettings, open_all};
use wattune::providers::FeedState;
use wattune::store::{Store, StoreError};
use wattune_core::domain::JobId;
use wattune_core::ledger::entry::{Close, Entry, Lost};
use wattune_core::ledger::verify::Verifier;
use wattune_core::units::Seconds;

use crate::support::{self, FakeDriver, LedgerFile};

const BOARDS: usize = 2;
const STEP: Seconds = Seconds::new(10.0);
const START_S: i64 = 1_767_225_600;

/// What happens between two steps, at a second of the day.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The wall clock is set by so many seconds.
    Set(i64),
    /// The daemon is told to end, and is away for so many seconds.
    Stop(f64),
    /// It is killed.
    Kill(f64),
    /// A job takes the first GPU, or leaves it.
    Job(bool),
}

const EVENTS: [(i64, Event); 14] = [
    (2_340, Event::Job(true)),
    (3 * 3600 + 17, Event::Stop(600.0)),
    (5 * 3600 + 1_801, Event::Kill(1_500.0)),
    (7 * 3600 + 40, Event::Set(3_600)),
    (8 * 3600 + 3_590, Event::Kill(30.0)),
    (9 * 3600 + 1_234, Event::Set(-3_600)),
    (11 * 3600 + 2_000, Event::Job(false)),
    // Away over the end of an hour, and the clock is set back meanwhile: see `away`.
    (12 * 3600 + 3_500, Event::Kill(240.0)),
    (15 * 3600 + 7, Event::Stop(90.0)),
    (16 * 3600, Event::Job(true)),
    // 23:59:59 comes twice.
    (18 * 3600, Event::Set(-1)),
    (19 * 3600 + 1_111, Event::Kill(5.0)),
    (20 * 3600 + 1_111, Event::Kill(5.0)),
    (22 * 3600 + 1_800, Event::Set(-3_600)),
];

/// Set while the daemon is away, at the second at which it went.
fn set_while_away(second: i64) -> i64 {
    match second {
        45_500.. => -3_600,
        _ => 0,
    }
}

/// Steps of minutes, spikes of seconds, rest, and one long plateau; in watts, from seconds of the day on.
fn demand(gpu: usize) -> Vec<(f64, f64)> {
    let mut points = vec![(0.0, 30.0)];
    let mut at = 13.0 + 7.0 * gpu as f64;
    let mut i = 0_u32;
    while at < 86_400.0 {
        let plateau = (30_000.0..36_000.0).contains(&at);
        let (watts, span) = match i % 7 {
            _ if plateau => (260.0, 6_000.0),
            0 => (120.0, 433.0),
            1 => (280.0, 611.5),
            2 => (299.0, 1.25),
            3 => (30.0, 907.0),
            4 => (300.0, 0.4),
            5 => (200.0, 59.0),
            _ => (31.5, 333.3),
        };
        points.push((at, watts));
        at += span;
        i += 1;
    }
    points
}

/// When the GPUs' counters start anew: once under the daemon's eyes, once while it is away.
const RESETS: [&[f64]; BOARDS] = [&[50_003.0], &[15.0 * 3600.0 + 12.0]];

struct Day {
    driver: FakeDriver,
    library: PathBuf,
    clock: Arc<ManualClock>,
    /// Seconds of the GPUs' time.
    elapsed: f64,
    state: tempfile::TempDir,
    feed: watch::Sender<FeedState>,
}

impl Day {
    fn new() -> Self {
        let absolute = |points: Vec<(f64, f64)>| -> Vec<Value> {
            points.into_iter().map(|(at, watts)| json!([START_S as f64 + at, watts])).collect()
        };
        let gpu = |i: usize| {
            let resets: Vec<f64> = RESETS[i].iter().map(|at| START_S as f64 + at).collect();
            json!({"demand": absolute(demand(i)), "resets_at": resets, "initial_energy_j": 1000.0 + 77.7 * i as f64})
        };
        let driver = FakeDriver::new(&(0..BOARDS).map(gpu).collect::<Vec<_>>());
        let library = driver.dir().join("libnvidia-ml.so.1");
        std::fs::copy(FakeDriver::library(), &library).expect("copied");
        let start = DateTime::from_timestamp(START_S, 0).expect("a moment");
        let clock = Arc::new(ManualClock::at(start));
        let feed = watch::Sender::new(FeedState::starting(Vec::new(), start));
        let day = Self { driver, library, clock, elapsed: 0.0, state: tempfile::tempdir().expect("a directory"), feed };
        day.tell_time();
        day
    }

    fn tell_time(&self) {
        let ns = START_S as f64 * 1e9 + self.elapsed * 1e9;
        let new = self.driver.dir().join("clock.new");
        std::fs::write(&new, format!("{ns:.0}")).expect("written");
        std::fs::rename(new, self.driver.dir().join("clock")).expect("renamed");
    }

    fn pass(&mut self, span: Seconds) {
        self.clock.advance(span);
        self.elapsed += span.get();
        self.tell_time();
    }

    /// A daemon's loop over the driver's library, as it is loaded by name.
    async fn daemon(&self) -> Controller {
        let gpus = open_all(&NvmlSettings { library: Some(self.library.clone()) }).expect("opens");
        assert_eq!((gpus.devices.len(), gpus.problems.len()), (BOARDS, 0));
        let parts = Parts {
            settings: ControlSettings { tick_s: STEP, observe: true, ..ControlSettings::default() },
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

    /// All that a GPU ever used, in millijoules: what its counter shows, and what it forgot.
    fn truth_mj(&self, gpu: usize) -> f64 {
        let path = self.driver.dir().join("state").join(format!("{}.txt", FakeDriver::uuid(gpu)));
        let text = std::fs::read_to_string(path).expect("readable");
        let memory: BTreeMap<&str, f64> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(k, v)| (k, v.parse().expect("a number")))
            .collect();
        let since_s = (START_S as f64 * 1e9 + self.elapsed * 1e9 - memory["since_unix_ns"]) / 1e9;
        (memory["energy_uj"] + memory["lost_uj"]) / 1e3 + memory["draw_mw"] * since_s
    }
}

async fn register(controller: &mut Controller) -> JobId {
    JobId::new(controller.register(support::job("day", 0.05)).await.expect("registered").job_id).expect("an id")
}

/// The closes of a ledger that is in order.
async fn closes(state: &Path) -> (Vec<Close>, Vec<Lost>) {
    let store = Store::open(state).await.expect("opens");
    let (mut verifier, mut closes, mut lost) = (Verifier::default(), Vec::new(), Vec::new());
    let take = |line: &str| {
        verifier.feed(format!("{line}\n").as_bytes()).expect("in order");
        let line: Value = serde_json::from_str(line).expect("JSON");
        if let Some(entry) = line.get("entry") {
            match serde_json::from_value(entry.clone()).expect("an entry") {
                Entry::Close(close) => closes.push(close),
                Entry::Lost(of) => lost.push(of),
                _ => {}
            }
        }
        Ok::<_, StoreError>(())
    };
    store.export(take).await.expect("exported");
    store.close().await;
    let found = verifier.finish().expect("in order");
    assert_eq!(found.differences, []);
    (closes, lost)
}

#[tokio::test]
async fn every_joule_of_a_day_is_recorded_once_whatever_happens_to_daemon_and_clocks() {
    let mut day = Day::new();
    let truth_at_first = [day.truth_of_script(0), day.truth_of_script(1)];
    let mut controller = Some(day.daemon().await);
    let mut job = None;
    let (mut away, mut events) = (Vec::new(), EVENTS.iter().peekable());
    while day.elapsed < 86_400.0 {
        while let Some((second, event)) = events.next_if(|(at, _)| *at as f64 <= day.elapsed) {
            let running = controller.as_mut().expect("running");
            match *event {
                Event::Set(seconds) => day.clock.jump(TimeDelta::seconds(seconds)),
                Event::Job(true) => job = Some(register(running).await),
                Event::Job(false) => {
                    let id = job.take().expect("registered");
                    running.end(&id, Caller::Local).await.expect("ended");
                }
                Event::Stop(span) | Event::Kill(span) => {
                    let ending = controller.take().expect("running");
                    match event {
                        Event::Stop(_) => drop(ending.shut_down().await),
                        _ => drop(ending),
                    }
                    let from = day.elapsed;
                    day.pass(Seconds::new(span));
                    day.clock.jump(TimeDelta::seconds(set_while_away(*second)));
                    controller = Some(day.daemon().await);
                    away.push((from, day.elapsed));
                }
            }
        }
        day.pass(STEP);
        controller.as_mut().expect("running").tick().await;
    }
    assert!(events.next().is_none(), "all of it happened");
    let truth: Vec<f64> = (0..BOARDS).map(|gpu| day.truth_mj(gpu) - truth_at_first[gpu]).collect();
    controller.take().expect("running").shut_down().await;

    let (closes, lost) = closes(day.state.path()).await;
    // A reset while nobody looked is said, with its time; the other one was filled with power.
    let reset = DateTime::from_timestamp(START_S, 0).expect("a moment") + Seconds::new(RESETS[1][0]).to_delta();
    assert!(lost.len() == 1 && lost[0].device.as_str() == FakeDriver::uuid(1), "{lost:#?}");
    // The wall clock was set by an hour before and after.
    assert!(lost[0].from < lost[0].until && (lost[0].from - reset).abs() < TimeDelta::hours(2), "{lost:#?}");
    let balances: Vec<_> = closes.iter().flat_map(|close| &close.balances).collect();
    assert!(closes.len() > 24 && balances.iter().all(|b| b.difference_mj == 0), "{balances:#?}");
    let ledger = LedgerFile::open(day.state.path());
    for (gpu, truth) in truth.iter().enumerate() {
        let (rows, checkpoint) = ledger.of(gpu);
        let sum = |source: &str| rows.iter().filter(|r| r.source == source).map(|r| r.energy_mj).sum::<i64>();
        let (counted, gaps, integrated) = (sum("counter"), sum("counter_gap"), sum("integrated_power"));
        let recorded = counted + gaps + integrated;
        // The script alone says the same as the library's account, to what a limit of 300 W lets through.
        let scripted = day.scripted_mj(gpu);
        assert!(
            (truth / scripted - 1.0).abs() < 1e-6,
            "GPU {gpu}: {truth} mJ by the library, {scripted} by the script"
        );
        let error = recorded as f64 / truth - 1.0;
        println!(
            "GPU {gpu}: {recorded} mJ recorded of {truth:.0} ({error:+.2e}), {gaps} over gaps, {integrated} from power"
        );
        assert!(error.abs() <= 1e-3, "GPU {gpu}: {recorded} mJ recorded of {truth}: {error:+.6}");
        // Exactly: what the counter showed between the first and the last look, and nothing twice.
        let from_closes: i64 = balances
            .iter()
            .filter(|b| b.device.as_str() == FakeDriver::uuid(gpu))
            .map(|b| b.counter_mj.expect("a counter"))
            .sum();
        assert_eq!(from_closes, counted + gaps, "GPU {gpu}");
        assert!(checkpoint.is_some());
        // Only the reset under the daemon's eyes had to be filled with power.
        assert_eq!(integrated > 0, gpu == 0, "GPU {gpu}: {integrated}");
        // Each time without a daemon is a gap that is listed, with what was used meanwhile; there are no others.
        let mut gap_rows: Vec<_> = rows.iter().filter(|r| r.source == "counter_gap").collect();
        gap_rows.sort_by_key(|r| r.start_us);
        assert!(gap_rows.len() >= away.len(), "GPU {gpu}: {gap_rows:#?}");
        let away_mj: f64 = away.iter().map(|(from, to)| day.scripted_between(gpu, *from, *to)).sum();
        // A kill loses the open interval's minute to the gap, and the reset while away took seconds.
        let most = away_mj + away.len() as f64 * 70.0 * 300_000.0;
        assert!(gaps as f64 > away_mj - 15.0 * 300_000.0 && (gaps as f64) < most, "GPU {gpu}: {gaps} of {away_mj}");
    }
}

/// Whose it was, from and until which second of the day, how many joules, and how that was found.
type LedgerRow = (Option<JobId>, i64, i64, i64, String);

async fn ledger_rows(state: &Path, gpu: usize) -> Vec<LedgerRow> {
    let second = |us: i64| (us + 500_000).div_euclid(1_000_000) - START_S;
    let rows = LedgerFile::open(state).of(gpu).0;
    let ledger_rows = rows.iter().map(|row| {
        let job = row.job.as_ref().map(|id| JobId::new(id).expect("an id"));
        (job, second(row.start_us), second(row.end_us), (row.energy_mj + 500) / 1000, row.source.clone())
    });
    ledger_rows.collect()
}

#[tokio::test]
async fn energy_of_a_time_in_which_a_gpu_was_silent_is_theirs_who_held_it_then() {
    let mut day = Day::new();
    let mut controller = day.daemon().await;
    let go = async |day: &mut Day, controller: &mut Controller, until: f64| {
        while day.elapsed < until {
            day.pass(STEP);
            controller.tick().await;
        }
    };
    // The GPU draws 120 W all the time. First its counter alone is silent.
    go(&mut day, &mut controller, 20.0).await;
    let a = register(&mut controller).await;
    go(&mut day, &mut controller, 50.0).await;
    day.fail(&["nvmlDeviceGetTotalEnergyConsumption"]);
    go(&mut day, &mut controller, 70.0).await;
    let account = controller.end(&a, Caller::Local).await.expect("ended");
    assert!((account.energy_j - 6_000.0).abs() < 5.0, "its power is known: {account:?}");
    go(&mut day, &mut controller, 90.0).await;
    let b = register(&mut controller).await;
    go(&mut day, &mut controller, 110.0).await;
    day.fail(&[]);
    go(&mut day, &mut controller, 120.0).await;
    let account = controller.account_of(&a).await.expect("read");
    assert!(
        (account.energy_j - 6_000.0).abs() < 5.0 && (account.energy_estimated_j - 2_400.0).abs() < 5.0,
        "{account:?}"
    );
    assert!((account.energy_uncertainty - 0.07).abs() < 1e-4, "{account:?}");

    // Then the GPU does not answer at all, and the daemon is killed before it does.
    day.fail(&EVERYTHING);
    go(&mut day, &mut controller, 130.0).await;
    controller.end(&b, Caller::Local).await.expect("ended");
    go(&mut day, &mut controller, 140.0).await;
    let c = register(&mut controller).await;
    go(&mut day, &mut controller, 150.0).await;
    drop(controller);
    day.fail(&[]);
    day.pass(STEP);
    let mut controller = day.daemon().await;
    let account = controller.account_of(&b).await.expect("read");
    assert!((account.energy_j - 4_800.0).abs() < 5.0, "{account:?}");
    controller.shut_down().await;

    let (gap, power) = ("counter_gap", "integrated_power");
    let silent: Vec<LedgerRow> =
        ledger_rows(day.state.path(), 0).await.into_iter().filter(|row| row.4 != "counter").collect();
    let row =
        |job: Option<&JobId>, from, until, joules, source: &str| (job.cloned(), from, until, joules, source.to_owned());
    assert_eq!(
        silent,
        [
            row(Some(&a), 20, 70, 2_400, power),
            row(None, 70, 90, 2_400, power),
            // What the counter knows beyond that once it is back.
            row(Some(&b), 90, 120, 2_400, power),
            row(Some(&b), 90, 120, 1_200, gap),
            row(Some(&b), 120, 130, 1_200, gap),
            row(None, 130, 140, 1_200, gap),
            row(Some(&c), 140, 160, 2_400, gap),
        ]
    );
    let (closes, lost) = closes(day.state.path()).await;
    assert!(lost.is_empty() && closes.iter().flat_map(|close| &close.balances).all(|b| b.difference_mj == 0));
}

/// When the first GPU's counter is away, in seconds of the day: for a step, for minutes, over steps of its draw up and
/// down, over the daemon's end and start, and not back at the start.
const AWAY: [(f64, f64); 6] =
    [(300.0, 310.0), (600.0, 660.0), (1_000.0, 2_500.0), (3_000.0, 3_600.0), (4_000.0, 4_450.0), (5_000.0, 5_305.0)];
/// When the daemon is killed, and for how long it is away.
const KILLS: [(f64, f64); 4] = [(1_500.0, 100.0), (3_300.0, 700.0), (4_200.0, 200.0), (5_300.0, 5.0)];

#[tokio::test]
async fn every_joule_is_recorded_once_however_often_the_counter_is_away() {
    let mut day = Day::new();
    let first = day.truth_of_script(0);
    let mut controller = Some(day.daemon().await);
    let mut job = Some(register(controller.as_mut().expect("running")).await);
    let (mut is_away, mut kills) = (false, KILLS.iter().peekable());
    while day.elapsed < 12_000.0 {
        let away = AWAY.iter().any(|(from, until)| (*from..*until).contains(&day.elapsed));
        if away != is_away {
            day.fail(if away { &EVERYTHING[..1] } else { &[] });
            is_away = away;
        }
        let running = controller.as_mut().expect("running");
        match job.take() {
            Some(id) if (1_200.0..1_210.0).contains(&day.elapsed) => {
                drop(running.end(&id, Caller::Local).await.expect("ended"))
            }
            held => job = held,
        }
        if let Some((_, span)) = kills.next_if(|(at, _)| *at <= day.elapsed) {
            drop(controller.take());
            day.pass(Seconds::new(*span));
            let is_back = !AWAY.iter().any(|(from, until)| (*from..*until).contains(&day.elapsed));
            if is_back && is_away {
                day.fail(&[]);
                is_away = false;
            }
            controller = Some(day.daemon().await);
        }
        day.pass(STEP);
        controller.as_mut().expect("running").tick().await;
    }
    let truth = day.truth_mj(0) - first;
    controller.take().expect("running").shut_down().await;
    let (closes, lost) = closes(day.state.path()).await;
    let balances: Vec<_> = closes.iter().flat_map(|close| &close.balances).collect();
    assert!(lost.is_empty() && balances.iter().all(|b| b.difference_mj == 0), "{lost:#?} {balances:#?}");
    let (rows, checkpoint) = LedgerFile::open(day.state.path()).of(0);
    let sum = |source: &str| rows.iter().filter(|r| r.source == source).map(|r| r.energy_mj).sum::<i64>() as f64;
    let recorded = sum("counter") + sum("counter_gap") + sum("integrated_power");
    println!("{recorded} mJ recorded of {truth:.0}, {} of them from power", sum("integrated_power"));
    assert!((recorded - truth).abs() < 20_000.0, "{recorded} mJ recorded of {truth}; checkpoint {checkpoint:?}");
    assert!(sum("integrated_power") > 0.1 * truth, "{rows:#?}");
}

/// All that a reading asks of a GPU.
const EVERYTHING: [&str; 11] = [
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetUUID",
];

impl Day {
    /// Has these calls on the first GPU fail, and no others.
    fn fail(&self, calls: &[&str]) {
        let calls: serde_json::Map<String, Value> = calls.iter().map(|call| ((*call).to_owned(), 999.into())).collect();
        self.driver.set(0, json!({ "fail_calls": calls }));
        // The library looks for a changed script every five milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    /// The first reading: nothing has been used yet.
    fn truth_of_script(&self, gpu: usize) -> f64 {
        (1000.0 + 77.7 * gpu as f64) * 1e3
    }

    /// What the script has a GPU use between two moments, limited as the GPU is.
    fn scripted_between(&self, gpu: usize, from: f64, to: f64) -> f64 {
        let points = demand(gpu);
        let ends = points.iter().skip(1).map(|p| p.0).chain([f64::INFINITY]);
        let used = |((at, watts), end): (&(f64, f64), f64)| {
            let span = (end.min(to) - at.max(from)).max(0.0);
            watts.min(300.0) * span * 1e3
        };
        points.iter().zip(ends).map(used).sum()
    }

    fn scripted_mj(&self, gpu: usize) -> f64 {
        self.scripted_between(gpu, 0.0, self.elapsed)
    }
}
