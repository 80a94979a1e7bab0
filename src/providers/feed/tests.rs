use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::*;
use crate::clock::{ManualClock, SystemClock};
use crate::domain::{CarbonSeries, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use crate::providers::{Answer, Freshness};
use crate::units::GramsPerKwh;

fn start() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
}

fn answer(now: DateTime<Utc>, value: f64) -> Answer {
    let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
    let slot = Slot::new(now, now + TimeDelta::hours(2)).expect("two hours");
    let forecast = Forecast {
        zone: Zone::new("Z/1").expect("a zone"),
        source: "scripted".to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Operational,
        issued_at: now,
        retrieved_at: now,
        expected: CarbonSeries::from_points(vec![(slot, intensity)]).0,
        actual: CarbonSeries::default(),
    };
    forecast.into()
}

/// Answers with the values it is given, and fails where it is given none and when it has no more.
struct Scripted {
    values: Mutex<VecDeque<Option<f64>>>,
    cadence: Seconds,
}

impl Scripted {
    fn new(values: &[Option<f64>]) -> Arc<Self> {
        Arc::new(Self { values: Mutex::new(values.iter().copied().collect()), cadence: Seconds::new(1800.0) })
    }
}

impl CarbonProvider for Scripted {
    fn source(&self) -> &'static str {
        "scripted"
    }

    fn zone(&self) -> Zone {
        Zone::new("Z/1").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        self.cadence
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let value = self.values.lock().expect("not poisoned").pop_front().flatten();
        let failure = ProviderError::ServerError { status: 500, message: "no message".to_owned() };
        std::future::ready(value.map(|value| answer(now, value)).ok_or(failure)).boxed()
    }
}

fn value_at(state: &FeedState, t: DateTime<Utc>) -> Option<f64> {
    state.forecast.as_ref()?.best_at(t).map(|(_, i)| i.value.get())
}

#[tokio::test]
async fn the_cache_survives_a_restart_with_its_age() {
    let directory = tempfile::tempdir().expect("a directory");
    let inside = directory.path().join("not yet there");
    let mut feed = Feed::start(Scripted::new(&[Some(5.0)]), Some(&inside), start()).await;
    assert_eq!(feed.state().freshness(start()), Freshness::None);
    feed.poll_once(start()).await;

    let later = start() + TimeDelta::minutes(90);
    let mut feed = Feed::start(Scripted::new(&[None, Some(6.0)]), Some(&inside), later).await;
    let state = feed.state();
    assert!(state.from_cache);
    assert_eq!((value_at(&state, later), state.fetched_at), (Some(5.0), Some(start())));
    assert_eq!(state.freshness(later), Freshness::Stale { since: start() + TimeDelta::minutes(60) });
    let state = feed.poll_once(later).await;
    assert!(state.from_cache && state.last_error.is_some(), "a failure leaves what was stored");
    let state = feed.poll_once(later).await;
    assert_eq!((state.from_cache, value_at(&state, later)), (false, Some(6.0)));

    let before = Feed::start(Scripted::new(&[]), Some(&inside), start()).await;
    assert!(before.state().forecast.is_none(), "stored in the future: the clock is wrong, or was");
}

#[tokio::test]
async fn a_corrupt_cache_is_ignored_and_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("carbon-scripted-Z_1.json");
    let wrong_order = {
        let mut forecast = serde_json::to_value(answer(start(), 1.0).forecast).expect("plain data");
        forecast["expected"]["points"][0][0]["end"] = forecast["expected"]["points"][0][0]["start"].clone();
        serde_json::json!({ "version": 1, "forecast": forecast }).to_string()
    };
    for content in ["", "{", "{\"version\":1}", "\u{0}\u{1}", &wrong_order] {
        std::fs::write(&path, content).expect("written");
        let mut feed = Feed::start(Scripted::new(&[Some(5.0)]), Some(directory.path()), start()).await;
        assert!(feed.state().forecast.is_none(), "{content}");
        feed.poll_once(start()).await;
        let again = Feed::start(Scripted::new(&[]), Some(directory.path()), start()).await;
        assert_eq!(value_at(&again.state(), start()), Some(5.0));
    }
    let files = std::fs::read_dir(directory.path()).expect("readable").count();
    assert_eq!(files, 1, "no temporary file is left");
}

#[tokio::test]
async fn an_unwritable_cache_does_not_stop_the_feed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a file");
    std::fs::write(&file, "").expect("written");
    let mut feed = Feed::start(Scripted::new(&[Some(5.0), Some(6.0)]), Some(&file), start()).await;
    feed.poll_once(start()).await;
    assert_eq!(value_at(&feed.poll_once(start()).await, start()), Some(6.0));
}

#[tokio::test]
async fn a_task_polls_at_once_on_request_and_until_cancelled() {
    let cancel = CancellationToken::new();
    let clock = Arc::new(SystemClock::start());
    let provider = Scripted::new(&[Some(1.0), Some(2.0)]);
    let mut handle = Feed::spawn(provider, None, clock.clone(), cancel.clone()).await;
    let first = handle.state.wait_for(|s| s.fetched_at.is_some()).await.expect("polls").clone();
    assert_eq!(value_at(&first, clock.utc()), Some(1.0));
    handle.poll_now();
    let second = handle.state.wait_for(|s| value_at(s, clock.utc()) == Some(2.0)).await.expect("polls again").clone();
    assert!(second.next_poll_at > clock.utc());
    handle.poll_now();
    handle.state.wait_for(|s| s.consecutive_failures == 1).await.expect("a failure is a state");
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(5), handle.task).await.expect("ends").expect("without a panic");
}

#[tokio::test]
async fn a_clock_set_back_does_not_silence_the_feed() {
    let cancel = CancellationToken::new();
    let clock = Arc::new(ManualClock::at(start()));
    let quick = Scripted { values: Mutex::new([Some(1.0), Some(2.0)].into()), cadence: Seconds::new(0.05) };
    let mut handle = Feed::spawn(Arc::new(quick), None, clock.clone(), cancel.clone()).await;
    handle.state.wait_for(|s| s.fetched_at.is_some()).await.expect("polls");
    clock.jump(TimeDelta::days(-1));
    // The nap of the first round is real time; after it the manual clock says that enough has passed.
    clock.advance(Seconds::new(2.0));
    let polled = handle.state.wait_for(|s| s.fetched_at.is_some_and(|t| t < start()));
    tokio::time::timeout(Duration::from_secs(10), polled).await.expect("polls again").expect("still there");
    cancel.cancel();
}
