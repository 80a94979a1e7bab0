//! A ledger under a real controller: intensities that come late, are revised, taken back and become final; every version
//! reproduced from the export alone; every changed byte found; restarts, kills, and a reader beside the writer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::watch;
use wattune::clock::{Clock, ManualClock};
use wattune::controller::{Controller, Parts, Settings as ControlSettings};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Answer, FeedState, Provider, ProviderError, Ranks, SourceState};
use wattune::store::{DueReason, Store, StoreError};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, LimitRange, Origin, PowerLimit, SignalKind, SignalScope, Slot, Zone,
};
use wattune_core::ledger::entry::Settlement;
use wattune_core::ledger::verify::{Inconsistency, VerifiedLedger, Verifier};
use wattune_core::units::{GramsPerKwh, SamplesPerSecond, Seconds, Watts};

use crate::nvml::gpu;
use crate::support::{Daemon, FakeDriver};

pub(crate) const HOUR: TimeDelta = TimeDelta::hours(1);
pub(crate) const STEPS_AN_HOUR: i64 = 12;
pub(crate) const FORECAST: f64 = 400.0;
/// The hour whose first half is taken back, and when.
const TAKEN_BACK: (i64, i64) = (3, 12);
pub(crate) const FINAL_AFTER_H: i64 = 8;

pub(crate) fn at(hours: i64) -> DateTime<Utc> {
    "2026-01-01T00:00:00Z".parse::<DateTime<Utc>>().expect("a moment") + HOUR * i32::try_from(hours).expect("small")
}

/// What the source says at the beginning of hour `now` of the half hour `half` that has passed: an hour late, revised
/// twice, and one of them taken back.
pub(crate) fn published(half: i64, now: i64) -> Option<Intensity> {
    let hour = half / 2;
    if (half, true) == (2 * TAKEN_BACK.0, now >= TAKEN_BACK.1) {
        return None;
    }
    let (value, origin) = match now - hour - 1 {
        i64::MIN..1 => return None,
        1..3 => (300, Origin::Estimated),
        3..5 => (320, Origin::Estimated),
        _ => (310, Origin::Measured),
    };
    Some(Intensity { value: GramsPerKwh::new((value + hour + 50 * (half % 2)) as f64), origin })
}

/// The same with the forecast where nothing was told, and the state it should be in.
fn best(half: i64, now: i64) -> (f64, &'static str) {
    match published(half, now) {
        None => (FORECAST, "forecast"),
        Some(published) if now - half / 2 > FINAL_AFTER_H => (published.value.get(), "final"),
        Some(published) => (published.value.get(), "provisional"),
    }
}

pub(crate) fn half_hours(from: i64, to: i64, value: impl Fn(i64) -> Option<Intensity>) -> CarbonSeries {
    let slot = |half: i64| {
        let start = at(0) + TimeDelta::minutes(30 * half);
        Slot::new(start, start + TimeDelta::minutes(30)).expect("from < to")
    };
    CarbonSeries::from_points((from..to).filter_map(|half| Some((slot(half), value(half)?))).collect()).0
}

/// A source by its name.
pub(crate) struct Source(pub(crate) &'static str);

const LATE: Source = Source("late");

impl Provider for Source {
    fn source(&self) -> &'static str {
        self.0
    }

    fn zone(&self) -> Zone {
        Zone::new("DE").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(3600.0)
    }

    fn fetch(&self, _now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        std::future::ready(Err(ProviderError::Empty { what: "it is told what to say".to_owned() })).boxed()
    }

    fn final_after(&self) -> Seconds {
        Seconds::from_delta(HOUR * FINAL_AFTER_H as i32)
    }
}

/// What a source says at the beginning of an hour: the same of all that is ahead.
pub(crate) fn forecast(source: &Source, hour: i64, ahead: Origin, actual: CarbonSeries) -> Forecast {
    Forecast {
        zone: source.zone(),
        source: source.source().to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Lifecycle,
        issued_at: at(hour),
        retrieved_at: at(hour),
        provenance: Default::default(),
        expected: half_hours(2 * hour, 2 * hour + 48, |_| {
            Some(Intensity { value: GramsPerKwh::new(FORECAST), origin: ahead })
        }),
        actual,
    }
}

/// A node with one GPU, its source and its clock.
pub(crate) struct Node {
    pub(crate) clock: Arc<ManualClock>,
    gpu: SimulatedGpu,
    source: SourceState,
    pub(crate) feed: watch::Sender<FeedState>,
    pub(crate) state: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(at(0)));
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
        let (original_limit, idle, settling) = (range.max, Watts::new(25.0), Seconds::new(0.5));
        let gpu =
            SimulatedGpu::new(Physics { range, original_limit, idle, settling, noise: 0.0, seed: 1 }, clock.clone());
        let source = SourceState::starting(&LATE, 0, None, at(0));
        let feed = watch::Sender::new(FeedState::starting(vec![source.clone()], at(0)));
        Self { clock, gpu, source, feed, state: tempfile::tempdir().expect("a directory") }
    }

    pub(crate) async fn controller(&self) -> Controller {
        let parts = Parts {
            settings: ControlSettings { tick_s: Seconds::new(10.0), ..ControlSettings::default() },
            ..Parts::new(
                self.state.path(),
                self.clock.clone(),
                vec![Box::new(self.gpu.device(0, "Ledger"))],
                Sampling::OnRequest,
                self.feed.subscribe(),
            )
        };
        Controller::start(parts).await.expect("starts")
    }

    /// The source's answer at the beginning of an hour, and what of it is final.
    pub(crate) fn say(&mut self, hour: i64, published: impl Fn(i64, i64) -> Option<Intensity>) {
        self.say_of(hour, published, Origin::Forecast);
    }

    /// The same, where what is ahead has this origin.
    pub(crate) fn say_of(&mut self, hour: i64, published: impl Fn(i64, i64) -> Option<Intensity>, ahead: Origin) {
        let now = at(hour);
        let actual = half_hours(0, 2 * hour, |half| published(half, hour));
        let forecast = forecast(&LATE, hour, ahead, actual.clone());
        self.source = self.source.answered(forecast.into(), now, 0.5, 4.0).with_actuals(&actual, now, 4.0);
        let (state, ranks) = (self.feed.borrow().clone(), Ranks::default());
        self.feed.send_replace(state.with(0, self.source.clone(), &ranks, now));
    }

    /// An hour of work in its first 20 minutes and rest in the others, in steps of five minutes. The source speaks at
    /// its end.
    pub(crate) async fn hour(&mut self, controller: &mut Controller, hour: i64) {
        for step in 0..STEPS_AN_HOUR {
            self.pass(step);
            if step + 1 == STEPS_AN_HOUR {
                self.say(hour + 1, published);
            }
            controller.tick().await;
        }
    }

    /// Five minutes of an hour.
    pub(crate) fn pass(&self, step: i64) {
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
        let curve = LoadCurve::saturating(&range, Watts::new(280.0), Watts::new(70.0), SamplesPerSecond::new(400.0));
        self.gpu.run((step < 4).then_some(curve));
        self.clock.advance(Seconds::new(300.0));
    }

    /// As another process would read it.
    pub(crate) async fn export(&self) -> Vec<u8> {
        export(self.state.path()).await
    }
}

pub(crate) async fn export(state: &std::path::Path) -> Vec<u8> {
    let store = Store::open(state).await.expect("opens");
    let mut text = Vec::new();
    let take = |line: &str| {
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        Ok::<_, StoreError>(())
    };
    store.export(take).await.expect("exported");
    store.close().await;
    text
}

pub(crate) fn verify(text: &[u8]) -> Result<VerifiedLedger, Inconsistency> {
    let mut verifier = Verifier::default();
    verifier.feed(text)?;
    verifier.finish()
}

pub(crate) async fn newest(store: &Store, hour: i64) -> Settlement {
    let versions = store.settlements_of(at(hour)).await.expect("read");
    assert!(versions.iter().enumerate().all(|(i, s)| s.version as usize == i + 1), "{versions:#?}");
    versions.last().expect("settled").clone()
}

/// Every settlement of an export, reckoned anew from its rows and its own factors with arithmetic of its own. `gone` are
/// the blocks whose rows were rolled up.
pub(crate) fn reproduce(text: &[u8], gone: u64) -> usize {
    let text = std::str::from_utf8(text).expect("text");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let time = |v: &Value| v.as_str().expect("a time").parse::<DateTime<Utc>>().expect("a time");
    let mj = |v: &Value| v.as_u64().expect("mJ") as f64;
    let mut checked = 0;
    for settlement in lines.iter().map(|line| &line["entry"]).filter(|e| e["kind"] == "settlement") {
        let (hour, through) = (time(&settlement["hour"]), settlement["through_block"].as_u64().expect("a block"));
        let within = |line: &&Value| {
            line["block"].as_u64().is_some_and(|b| b <= through) && {
                let start = time(&line["interval"]["start"]);
                hour <= start && start < hour + HOUR
            }
        };
        let rows: Vec<&Value> = lines.iter().filter(within).map(|line| &line["interval"]).collect();
        let factors = settlement["factors"].as_array().expect("factors");
        for part in settlement["parts"].as_array().expect("parts") {
            let alike = |row: &&&Value| ["device", "share", "source"].iter().all(|key| row[key] == part[key]);
            let of_part: Vec<&&Value> = rows.iter().filter(alike).collect();
            let energy = part["energy_mj"].as_array().expect("energies");
            let mut grams = 0.0;
            for (factor, energy) in factors.iter().zip(energy) {
                let (from, to) = (time(&factor["start"]), time(&factor["end"]));
                let within = |row: &&Value| {
                    let (start, end) = (time(&row["start"]), time(&row["end"]));
                    let shared = (end.min(to) - start.max(from)).max(TimeDelta::zero());
                    mj(&row["energy_mj"]) * shared.as_seconds_f64() / (end - start).as_seconds_f64()
                };
                let expected: f64 = of_part.iter().map(|row| within(row)).sum();
                if gone == 0 {
                    assert!((mj(energy) - expected).abs() <= of_part.len() as f64, "{part} {factor}");
                }
                grams += mj(energy) / 3.6e9 * factor["g_per_kwh"].as_f64().expect("g/kWh");
            }
            let published = part["carbon_ug"].as_u64().expect("µg") as f64;
            assert!((published - grams * 1e6).abs() <= 1.0, "{part}: {grams} g");
            if gone == 0 {
                let all = energy.iter().map(mj).sum::<f64>() + mj(&part["unknown_mj"]);
                assert_eq!(all, of_part.iter().map(|row| mj(&row["energy_mj"])).sum::<f64>(), "{part}");
            }
            checked += 1;
        }
    }
    checked
}

#[tokio::test]
async fn totals_follow_late_revised_taken_back_and_final_values_and_each_version_can_be_reproduced() {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    let store = controller.store();
    for hour in 0..16 {
        node.hour(&mut controller, hour).await;
        let now = hour + 1;
        let mut carbon = 0;
        for past in 0..now {
            let settled = newest(&store, past).await;
            let total = settled.total();
            carbon += total.carbon.get();
            let halves = [best(2 * past, now), best(2 * past + 1, now)];
            for (factor, (value, state)) in settled.factors.iter().zip(halves) {
                let published = json!([factor.g_per_kwh.get(), factor.state]);
                assert_eq!(published, json!([value, state]), "hour {past} at {now}: {settled:#?}");
            }
            assert_eq!((settled.factors.len(), total.unknown.get()), (2, 0), "hour {past} at {now}");
            // Work at 280 W and rest at 25 W: the halves have different energy, and each its own intensity.
            let joules =
                |half: usize| -> f64 { settled.parts.iter().map(|part| part.energy_mj[half].to_joules().get()).sum() };
            let expected: f64 = (0..2).map(|half| joules(half) / 3.6e6 * halves[half].0).sum();
            assert!((total.carbon.to_grams().get() - expected).abs() < 1e-5, "hour {past} at {now}");
            assert!((joules(0) - (280.0 * 1200.0 + 25.0 * 600.0)).abs() < 1000.0, "{} J", joules(0));
            assert!((joules(1) - 25.0 * 1800.0).abs() < 1000.0, "{} J", joules(1));
        }
        let span = Slot::new(at(0), at(24)).expect("a day");
        let of_day: u64 = store.settled_totals(&span).await.expect("read").iter().map(|b| b.total.carbon.get()).sum();
        assert_eq!(of_day, carbon, "at {now}");
    }
    // What each version of that hour used for its first half.
    let versions = store.settlements_of(at(TAKEN_BACK.0)).await.expect("read");
    let mut values: Vec<f64> = versions.iter().map(|s| s.factors[0].g_per_kwh.get()).collect();
    values.dedup();
    assert_eq!(values, [FORECAST, 303.0, 323.0, 313.0, FORECAST], "{versions:#?}");
    let text = node.export().await;
    let found = verify(&text).expect("in order");
    assert_eq!(found.differences, []);
    assert!(found.settlements > 60 && reproduce(&text, 0) as u64 >= found.settlements, "{found:?}");
    controller.shut_down().await;
    verify(&node.export().await).expect("in order");
}

#[tokio::test]
async fn a_restart_or_a_roll_up_settles_nothing_anew_and_news_afterwards_do() {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..6 {
        node.hour(&mut controller, hour).await;
    }
    let store = controller.store();
    let versions = async |store: &Store| {
        let mut versions = BTreeMap::new();
        for hour in 0..6 {
            versions.insert(hour, store.settlements_of(at(hour)).await.expect("read"));
        }
        versions
    };
    let span = Slot::new(at(0), at(24)).expect("a day");
    let (before, of_day) = (versions(&store).await, store.settled_totals(&span).await.expect("read"));
    let early = node.export().await;

    // Killed, and a new daemon whose source has said nothing yet.
    drop(controller);
    let silent = SourceState::starting(&LATE, 0, None, node.clock.utc());
    node.feed.send_replace(FeedState::starting(vec![silent], node.clock.utc()));
    let mut controller = node.controller().await;
    controller.tick().await;
    assert_eq!(versions(&controller.store()).await, before, "no source has spoken");
    node.say(6, published);
    controller.tick().await;
    assert_eq!(versions(&controller.store()).await, before, "what was said is known");

    // The minutes of four blocks go; half of an hour's energy lay in its first third.
    let rolled = controller.store().roll_up(5, 24, at(6)).await.expect("rolled up");
    assert_eq!(rolled, 4 * STEPS_AN_HOUR as u64);
    drop(controller);
    let mut controller = node.controller().await;
    controller.tick().await;
    let store = controller.store();
    assert_eq!(versions(&store).await, before, "a roll-up changes no total");
    assert_eq!(store.settled_totals(&span).await.expect("read"), of_day);
    let text = node.export().await;
    let found = verify(&text).expect("in order");
    assert_eq!(found.rolled_up, 4);
    // All that was there before is there still, but for the minutes.
    let kept: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
    for line in early.split(|b| *b == b'\n').filter(|line| line.starts_with(b"{\"seq\"")) {
        assert!(kept.contains(&line), "{}", String::from_utf8_lossy(line));
    }

    // News of a half hour whose minutes are gone: its energy is still the work's.
    node.say(7, |half, now| {
        let changed = Intensity { value: GramsPerKwh::new(250.0), origin: Origin::Measured };
        if half == 2 { Some(changed) } else { published(half, now) }
    });
    controller.tick().await;
    let (old, new) = (before[&1].last().expect("settled"), newest(&store, 1).await);
    assert_eq!((new.version, new.factors[0].g_per_kwh.get()), (old.version + 1, 250.0));
    let energies = |s: &Settlement| s.parts.iter().map(|part| part.energy_mj.clone()).collect::<Vec<_>>();
    assert_eq!(energies(&new), energies(old));
    let text = node.export().await;
    verify(&text).expect("in order");
    reproduce(&text, 4);
    controller.shut_down().await;
}

#[tokio::test]
async fn a_daemon_ends_with_hours_to_settle_and_the_next_one_settles_them() {
    const HOURS: i64 = 60;
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..HOURS {
        node.hour(&mut controller, hour).await;
    }
    // All that was said so far was wrong.
    let value = |hour: i64| (1000 + hour) as f64;
    node.say(HOURS, |half, _| Some(Intensity { value: GramsPerKwh::new(value(half / 2)), origin: Origin::Measured }));
    let settled = async |store: &Store| {
        let mut settled = Vec::new();
        for hour in 0..HOURS {
            let newest = newest(store, hour).await;
            settled.extend(newest.factors.iter().all(|f| f.g_per_kwh.get() == value(hour)).then_some(hour));
        }
        settled
    };
    controller.tick().await;
    let in_one_step = settled(&controller.store()).await;
    assert!(!in_one_step.is_empty() && in_one_step.len() < HOURS as usize / 2, "{in_one_step:?}");
    controller.shut_down().await;

    let store = Store::open(node.state.path()).await.expect("opens");
    let at_the_end = settled(&store).await;
    assert_eq!(at_the_end.len(), 2 * in_one_step.len(), "one step more");
    let left: Vec<(DateTime<Utc>, DueReason)> =
        (0..HOURS).filter(|hour| !at_the_end.contains(hour)).map(|hour| (at(hour), DueReason::Intensity)).collect();
    assert_eq!(store.due_hours().await.expect("read"), left);
    store.close().await;

    let mut controller = node.controller().await;
    controller.tick().await;
    assert_eq!(settled(&controller.store()).await, (0..HOURS).collect::<Vec<_>>());
    let text = node.export().await;
    verify(&text).expect("in order");
    controller.shut_down().await;
}

/// Whether the change of a ledger is found, and said to be in this line.
#[track_caller]
fn found_in(line: usize, what: &str, state: &Verifier, rest: &[&[u8]]) {
    let mut verifier = state.clone();
    let result = rest.iter().try_for_each(|bytes| verifier.feed(bytes)).and_then(|()| verifier.finish().map(drop));
    let place = result.expect_err(what).place;
    let named = format!("line {line}");
    assert!(place == named || place.starts_with(&format!("{named} ")), "{what}: {place} in place of {named}");
}

#[tokio::test]
async fn one_changed_byte_anywhere_is_found_and_its_line_named() {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..3 {
        node.hour(&mut controller, hour).await;
    }
    controller.store().roll_up(2, 1, at(3)).await.expect("rolled up");
    // Rows of a block that is still open stand at the end.
    for _ in 0..3 {
        node.clock.advance(Seconds::new(300.0));
        controller.tick().await;
    }
    let text = node.export().await;
    let found = verify(&text).expect("in order");
    assert!(found.rolled_up == 1 && found.intervals > found.blocks, "{found:?}");
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    // What a change did not break at once goes on to the end.
    let mut state = Verifier::default();
    for (i, line) in lines.iter().enumerate() {
        let after = &text[lines[..=i].concat().len()..];
        for (place, byte) in line.iter().enumerate() {
            // All bits of some lines, one bit of each byte of the others.
            let bits = if i % 7 == 0 { 0..8 } else { (place % 8)..(place % 8 + 1) };
            for bit in bits {
                let mut changed = line.to_vec();
                changed[place] = byte ^ (1 << bit);
                let what = format!("bit {bit} of byte {place} of line {}", i + 1);
                found_in(i + 1, &what, &state, &[&changed, after]);
            }
        }
        let number = i + 1;
        let next = lines.get(i + 1).copied().unwrap_or_default();
        if !after.is_empty() {
            let mut verifier = state.clone();
            assert!(
                verifier.feed(after).and_then(|()| verifier.finish().map(drop)).is_err(),
                "line {number} is missing"
            );
            // A row may stand a line earlier; what it then stands before is found.
            let swapped = [next, line, &after[next.len()..]].concat();
            let mut verifier = state.clone();
            let place = verifier.feed(&swapped).expect_err("two lines changed places").place;
            let near = [number, number + 1].map(|n| format!("line {n} ("));
            assert!(near.iter().any(|n| place.starts_with(n)), "lines {number} and the next changed places: {place}");
        }
        found_in(number + 1, "a line stands there twice", &state, &[line, line, after]);
        let carriage = [&line[..line.len() - 1], b"\r\n"].concat();
        found_in(number, "a line end of another kind", &state, &[&carriage, after]);
        let cut = if i + 1 == lines.len() { &line[..line.len() - 1] } else { *line };
        let mut verifier = state.clone();
        assert!(verifier.feed(cut).and_then(|()| verifier.finish().map(drop)).is_err(), "cut off in line {number}");
        state.feed(line).expect("in order");
    }
    state.finish().expect("in order");
    controller.shut_down().await;
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_a_ledger_that_verifies_and_it_can_be_read_meanwhile() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\ntick_s = 0.05\ninterval_s = 1\n";
    let mut entries = 0;
    for round in 0..6u64 {
        let command = Daemon::command_set(&driver, state.path(), settings);
        let daemon = Daemon::start(command, state.path()).await;
        for _ in 0..3 {
            let found = verify(&export(state.path()).await).expect("in order while it is written");
            assert!(found.entries >= entries, "{found:?}");
            entries = found.entries;
        }
        tokio::time::sleep(Duration::from_millis(137 * round)).await;
        daemon.kill();
        let found = verify(&export(state.path()).await).expect("in order after a kill");
        assert_eq!(found.differences, [], "round {round}");
    }
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), settings), state.path()).await;
    assert!(daemon.stop("TERM").await.success());
    let found = verify(&export(state.path()).await).expect("in order after the end");
    assert!(found.blocks >= 6 && found.settlements >= 1 && found.differences.is_empty(), "{found:?}");
    assert!(!found.energy.to_joules().get().is_nan() && found.energy.get() > 0, "{found:?}");
}
