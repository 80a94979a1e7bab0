use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::*;
use crate::clock::{ManualClock, SystemClock};
use crate::providers::{Answer, Freshness, Requests};
use wattune_core::domain::{CarbonSeries, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::GramsPerKwh;

fn start() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
}

fn answer(source: &str, now: DateTime<Utc>, value: f64) -> Answer {
    let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
    let slot = Slot::new(now, now + TimeDelta::hours(2)).expect("two hours");
    let forecast = Forecast {
        zone: Zone::new("Z/1").expect("a zone"),
        source: source.to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Operational,
        issued_at: now,
        retrieved_at: now,
        provenance: Default::default(),
        expected: CarbonSeries::from_points(vec![(slot, intensity)]).0,
        actual: CarbonSeries::default(),
    };
    forecast.into()
}

/// A source that answers with the given values in turn. It fails for each `None`, and after the last value.
struct Scripted {
    name: &'static str,
    values: Mutex<VecDeque<Option<f64>>>,
    cadence: Seconds,
}

impl Scripted {
    fn new(values: &[Option<f64>]) -> Arc<Self> {
        Self::named("scripted", values)
    }

    fn named(name: &'static str, values: &[Option<f64>]) -> Arc<Self> {
        Arc::new(Self { name, values: Mutex::new(values.iter().copied().collect()), cadence: Seconds::new(1800.0) })
    }
}

impl Provider for Scripted {
    fn source(&self) -> &'static str {
        self.name
    }

    fn zone(&self) -> Zone {
        Zone::new("Z/1").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        self.cadence
    }

    fn is_constant(&self) -> bool {
        self.name == "constant"
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let value = self.values.lock().expect("not poisoned").pop_front().flatten();
        let failure = ProviderError::ServerError { status: 500, message: "no message".to_owned() };
        std::future::ready(value.map(|value| answer(self.name, now, value)).ok_or(failure)).boxed()
    }
}

/// Makes a feed of groups of sources, whose answers are stored in `directory`.
async fn feed(groups: &[&[Arc<Scripted>]], directory: Option<&Path>, at: DateTime<Utc>) -> Feed {
    let options = FeedOptions { cache_dir: directory.map(Path::to_path_buf), ..FeedOptions::default() };
    let group = |g: &&[Arc<Scripted>]| g.iter().map(|s| Arc::clone(s) as Arc<dyn Provider>).collect();
    Feed::start(groups.iter().map(group).collect(), options, moment(at)).await
}

async fn one(source: Arc<Scripted>, directory: Option<&Path>, at: DateTime<Utc>) -> Feed {
    feed(&[&[source]], directory, at).await
}

fn moment(utc: DateTime<Utc>) -> Now {
    Now { utc, monotonic: Monotonic::default().after(Seconds::from_delta(utc - start()).max(Seconds::ZERO)) }
}

/// Polls the first source, even if it is not due.
async fn poll(feed: &mut Feed, at: DateTime<Utc>) -> FeedState {
    let answer = feed.members[0].provider.fetch(at).await;
    feed.take(0, answer, moment(at)).await;
    feed.state()
}

fn value_at(state: &FeedState, t: DateTime<Utc>) -> Option<f64> {
    state.forecast.as_ref()?.best_at(t).map(|(_, i)| i.value.get())
}

#[tokio::test]
async fn the_cache_survives_a_restart_with_its_age() {
    let directory = tempfile::tempdir().expect("a directory");
    let inside = directory.path().join("not yet there");
    let mut feed = one(Scripted::new(&[Some(5.0)]), Some(&inside), start()).await;
    assert_eq!(feed.state().freshness(start()), Freshness::None);
    poll(&mut feed, start()).await;

    let later = start() + TimeDelta::minutes(90);
    let mut feed = one(Scripted::new(&[None, Some(6.0)]), Some(&inside), later).await;
    let state = feed.state();
    assert!(state.sources[0].from_cache);
    assert_eq!(feed.members[0].stored_at, Some(start()));
    assert_eq!((value_at(&state, later), state.sources[0].fetched_at), (Some(5.0), Some(start())));
    assert_eq!(state.freshness(later), Freshness::Stale { since: start() + TimeDelta::minutes(60) });
    let state = poll(&mut feed, later).await;
    assert!(state.sources[0].from_cache && state.sources[0].last_error.is_some(), "a failure leaves what was stored");
    let state = poll(&mut feed, later).await;
    assert_eq!((state.sources[0].from_cache, value_at(&state, later)), (false, Some(6.0)));

    let before = one(Scripted::new(&[]), Some(&inside), start()).await;
    assert!(before.state().forecast.is_none(), "stored in the future: the clock is wrong, or was");
}

#[tokio::test]
async fn a_corrupt_cache_is_ignored_and_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("carbon-scripted-Z_1.json");
    let wrong_order = {
        let mut forecast = serde_json::to_value(answer("scripted", start(), 1.0).forecast).expect("plain data");
        forecast["expected"]["points"][0][0]["end"] = forecast["expected"]["points"][0][0]["start"].clone();
        serde_json::json!({ "version": 1, "forecast": forecast }).to_string()
    };
    for content in ["", "{", "{\"version\":1}", "\u{0}\u{1}", &wrong_order] {
        std::fs::write(&path, content).expect("written");
        let mut feed = one(Scripted::new(&[Some(5.0)]), Some(directory.path()), start()).await;
        assert!(feed.state().forecast.is_none(), "{content}");
        poll(&mut feed, start()).await;
        let again = one(Scripted::new(&[]), Some(directory.path()), start()).await;
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
    let mut feed = one(Scripted::new(&[Some(5.0), Some(6.0)]), Some(&file), start()).await;
    poll(&mut feed, start()).await;
    assert_eq!(value_at(&poll(&mut feed, start()).await, start()), Some(6.0));
}

#[tokio::test]
async fn a_task_polls_when_due_and_until_cancelled() {
    let cancel = CancellationToken::new();
    let clock = Arc::new(SystemClock::start());
    let values = Mutex::new([Some(1.0), Some(2.0)].into());
    let quick = Scripted { name: "scripted", values, cadence: Seconds::new(0.05) };
    let group = vec![Arc::new(quick) as Arc<dyn Provider>];
    let mut handle = Feed::spawn(vec![group], FeedOptions::default(), clock.clone(), cancel.clone()).await;
    handle.state.wait_for(|s| value_at(s, clock.utc()) == Some(2.0)).await.expect("polls again");
    handle.state.wait_for(|s| s.sources[0].consecutive_failures == 1).await.expect("a failure is a state");
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(5), handle.task).await.expect("ends").expect("without a panic");
}

#[tokio::test]
async fn a_clock_set_back_does_not_silence_the_feed() {
    let cancel = CancellationToken::new();
    let clock = Arc::new(ManualClock::at(start()));
    let quick =
        Scripted { name: "scripted", values: Mutex::new([Some(1.0), Some(2.0)].into()), cadence: Seconds::new(0.05) };
    let mut handle = Feed::spawn(
        vec![vec![Arc::new(quick) as Arc<dyn Provider>]],
        FeedOptions::default(),
        clock.clone(),
        cancel.clone(),
    )
    .await;
    handle.state.wait_for(|s| s.sources[0].fetched_at.is_some()).await.expect("polls");
    clock.jump(TimeDelta::days(-1));
    // The feed sleeps in real time. When it wakes, the manual clock is past the monotonic due time of the next poll.
    clock.advance(Seconds::new(2.0));
    let polled = handle.state.wait_for(|s| s.sources[0].fetched_at.is_some_and(|t| t < start()));
    tokio::time::timeout(Duration::from_secs(10), polled).await.expect("polls again").expect("still there");
    cancel.cancel();
}

fn following(state: &FeedState) -> Option<&'static str> {
    state.source().map(|s| s.source)
}

#[tokio::test]
async fn the_chain_falls_over_and_comes_back() {
    let (first, second) =
        (Scripted::named("first", &[Some(1.0), None, None]), Scripted::named("second", &[Some(2.0); 9]));
    let mut feed = feed(&[&[Arc::clone(&first)], &[second]], None, start()).await;
    let minutes = |m| moment(start() + TimeDelta::minutes(m));
    let state = feed.poll_due(minutes(0)).await;
    assert_eq!((following(&state), value_at(&state, start())), (Some("first"), Some(1.0)));
    let mut state = state;
    for m in (1..=65).step_by(4) {
        state = feed.poll_due(minutes(m)).await;
    }
    let late = start() + TimeDelta::minutes(65);
    assert_eq!((following(&state), value_at(&state, late)), (Some("second"), Some(2.0)), "the first is stale");
    assert!(state.sources[0].consecutive_failures >= 3 && state.sources[0].failing_since.is_some());
    first.values.lock().expect("not poisoned").extend([Some(3.0); 9]);
    for m in (66..=100).step_by(4) {
        state = feed.poll_due(minutes(m)).await;
    }
    assert_eq!((following(&state), state.sources[0].consecutive_failures), (Some("first"), 0));
}

#[tokio::test]
async fn a_constant_replaces_no_forecast_that_covers_now() {
    let (first, constant) = (Scripted::named("first", &[Some(1.0)]), Scripted::named("constant", &[Some(2.0); 9]));
    let mut feed = feed(&[&[first], &[constant]], None, start()).await;
    for (minutes, source) in [(0, "first"), (35, "first"), (65, "first"), (125, "constant")] {
        let now = start() + TimeDelta::minutes(minutes);
        let state = feed.poll_due(moment(now)).await;
        assert_eq!(following(&state), Some(source), "after {minutes} min");
        let is_stale = matches!(state.sources[0].freshness(now), Freshness::Stale { .. });
        assert_eq!(is_stale, minutes == 65, "after {minutes} min");
    }
}

#[test]
fn an_answer_without_a_value_names_the_setting_that_selects_values() {
    let refused = |table: &str, contributes| {
        let past = answer("file", start() - TimeDelta::hours(9), 1.0);
        usable(past, contributes, table, start()).expect_err("all past").to_string()
    };
    assert!(refused("price", Contribution::Forecast).ends_with("and price.file.contributes is \"forecast\""));
    assert!(refused("carbon", Contribution::Actual).ends_with("and carbon.file.contributes is \"actual\""));
    assert!(!refused("price", Contribution::Both).contains("contributes"));
}

#[tokio::test]
async fn equals_are_ordered_by_what_they_caught() {
    let sources = [Scripted::named("first", &[Some(1.0); 9]), Scripted::named("second", &[Some(2.0); 9])];
    let mut feed = feed(&[&sources], None, start()).await;
    assert_eq!(following(&feed.poll_due(moment(start())).await), Some("first"));
    let rank = |first: f64, second: f64| {
        *feed.ranks.lock().expect("not poisoned") = Ranks::from([("first", first), ("second", second)]);
        feed.choose(start());
        following(&feed.state())
    };
    assert_eq!(rank(0.70, 0.74), Some("first"), "hardly better");
    assert_eq!(rank(0.70, 0.80), Some("second"));
    assert_eq!(rank(0.78, 0.80), Some("second"));
    assert_eq!(rank(0.90, 0.80), Some("first"));
}

#[tokio::test]
async fn without_any_answer_there_is_no_forecast() {
    let mut feed = one(Scripted::new(&[]), None, start()).await;
    let state = feed.poll_due(moment(start())).await;
    assert_eq!((state.active, &state.forecast, state.freshness(start())), (None, &None, Freshness::None));
}

#[tokio::test]
async fn actual_values_of_a_time_without_daemon_are_fetched() {
    let mut feed = one(Scripted::new(&[Some(1.0)]), None, start()).await;
    let known = poll(&mut feed, start()).await.sources[0].clone();
    let hours_ago = |hours: i64| start() - TimeDelta::hours(hours);
    let from = |spans: &[(i64, i64)], stored_at: Option<DateTime<Utc>>, final_until: Option<DateTime<Utc>>| {
        let hours = spans.iter().flat_map(|(from, to)| *from..*to).filter_map(|h| {
            let slot = Slot::new(start() + TimeDelta::hours(h), start() + TimeDelta::hours(h + 1))?;
            Some((slot, Intensity { value: GramsPerKwh::new(1.0), origin: Origin::Measured }))
        });
        let mut forecast = Forecast::clone(known.forecast.as_ref().expect("an answer"));
        forecast.actual = CarbonSeries::from_points(hours.collect()).0;
        let state = SourceState { forecast: Some(Arc::new(forecast)), final_until, ..known.clone() };
        (start() - actuals_start(&state, stored_at, start())).num_hours()
    };
    let with = |spans: &[(i64, i64)]| from(spans, None, None);
    assert_eq!(with(&[]), 28 * 24);
    assert_eq!(with(&[(-48, 0)]), 28 * 24, "too little to learn from");
    assert_eq!(with(&[(-27 * 24, 0)]), 72, "what is not final");
    assert_eq!(with(&[(-27 * 24, -100), (-97, 0)]), 72, "hours that the source does not know");
    assert_eq!(with(&[(-27 * 24, -240), (-24, 0)]), 240 + 72, "the values before the gap were not final");
    assert_eq!(with(&[(-27 * 24, -26 * 24), (-24, 0)]), 26 * 24 + 72);
    // The earlier run fetched up to 6 hours before its last answer.
    assert_eq!(from(&[(-27 * 24, 0)], Some(hours_ago(12)), None), 12 + 6 + 72);
    assert_eq!(from(&[(-27 * 24, -240), (-24, 0)], Some(hours_ago(238)), None), 238 + 6 + 72);
    // A run that has fetched needs to read the gap only.
    let fetched = Some(hours_ago(78));
    assert_eq!(from(&[(-27 * 24, 0)], Some(hours_ago(240)), fetched), 78);
    assert_eq!(from(&[(-27 * 24, -240), (-24, 0)], None, fetched), 240);
    assert_eq!(from(&[(-27 * 24, 0)], None, Some(hours_ago(-240))), 72, "the clock was ahead then");
}

fn hours(from: i64, to: i64, value: f64) -> CarbonSeries {
    let slots = (from..to).filter_map(|h| Slot::new(start() + TimeDelta::hours(h), start() + TimeDelta::hours(h + 1)));
    let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Measured };
    CarbonSeries::from_points(slots.map(|slot| (slot, intensity)).collect()).0
}

/// A source with hourly actual values, except in the hours `without`, of which it answers a week per request.
struct Weekly {
    without: std::ops::Range<i64>,
    allowed_per_hour: u32,
    requests: Mutex<Vec<i64>>,
}

impl Provider for Weekly {
    fn source(&self) -> &'static str {
        "weekly"
    }

    fn zone(&self) -> Zone {
        Zone::new("Z/1").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(3600.0)
    }

    fn requests(&self, _now: DateTime<Utc>) -> Option<Requests> {
        Some(Requests { last_hour: 0, last_day: 0, allowed_per_hour: self.allowed_per_hour })
    }

    fn fetch(&self, _now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        std::future::ready(Err(ProviderError::Empty { what: "no forecast".to_owned() })).boxed()
    }

    fn fetch_actuals(&self, span: Slot, _now: DateTime<Utc>) -> BoxFuture<'_, Actuals<GramsPerKwh>> {
        let [from, to] = [span.start(), span.end()].map(|t| (t - start()).num_hours());
        self.requests.lock().expect("not poisoned").push(from);
        let mut actuals = hours(from, to.min(from + 7 * 24), 1.0);
        let [from, to] = [self.without.start, self.without.end].map(|h| start() + TimeDelta::hours(h));
        actuals.remove(Slot::new(from, to).expect("some hours"));
        let none = || ProviderError::Empty { what: "none".to_owned() };
        let answer = (!actuals.is_empty()).then_some(Some(actuals)).ok_or_else(none);
        std::future::ready(answer).boxed()
    }

    fn actuals_window(&self) -> Option<TimeDelta> {
        Some(TimeDelta::days(7))
    }
}

#[tokio::test]
async fn a_window_without_values_does_not_end_the_fetch() {
    let day = |n: i64| 24 * n;
    let fetch = async |without, allowed_per_hour, known: Option<CarbonSeries>| {
        let source = Weekly { without, allowed_per_hour, requests: Mutex::default() };
        let from = start() - TimeDelta::days(28);
        let actuals = fetch_actuals::<GramsPerKwh>(&source, known.as_ref(), from, start()).await;
        let actuals = actuals.expect("answers").expect("a history");
        (actuals, source.requests.into_inner().expect("not poisoned"))
    };
    let around = |value: Option<f64>| {
        let mut around = hours(day(-28), 0, 1.0);
        around.remove(Slot::new(start() - TimeDelta::days(20), start() - TimeDelta::days(6)).expect("two weeks"));
        around.overwrite(&value.map(|value| hours(day(-20), day(-6), value)).unwrap_or_default());
        around
    };
    let windows = [-28, -21, -20, -13, -6].map(day).to_vec();
    assert_eq!(fetch(day(-20)..day(-6), 100, None).await, (around(None), windows.clone()), "an outage");
    let known = Some(hours(day(-28), 0, 5.0));
    assert_eq!(fetch(day(-20)..day(-6), 100, known).await, (around(Some(5.0)), windows), "withdraws nothing");
    let young = (hours(day(-10), 0, 1.0), [-28, -21, -14, -7].map(day).to_vec());
    assert_eq!(fetch(day(-28)..day(-10), 100, None).await, young, "a history of ten days");
    let (actuals, requests) = fetch(0..1, 6, None).await;
    assert_eq!((actuals, requests.len()), (hours(day(-28), day(-7), 1.0), 3), "half of the quota");
    assert_eq!(fetch(0..1, 1, None).await.1.len(), 1);
}

#[tokio::test]
async fn a_clock_that_ran_ahead_does_not_delay_the_next_fetch() {
    let mut feed = one(Scripted::new(&[Some(1.0)]), None, start()).await;
    feed.options.fetch_actuals = true;
    poll(&mut feed, start()).await;
    let now = moment(start() + TimeDelta::minutes(1));
    for (due_in, is_asked) in [(TimeDelta::hours(5), 0), (TimeDelta::days(10), 1)] {
        feed.members[0].actuals_due_at = now.utc + due_in;
        let mut requests = JoinSet::new();
        feed.ask(0, now, &mut requests);
        assert_eq!(requests.len(), is_asked, "{due_in}");
    }
}

#[tokio::test]
async fn an_answer_without_actual_values_makes_none_final() {
    let mut feed = one(Scripted::new(&[Some(1.0)]), None, start()).await;
    poll(&mut feed, start()).await;
    feed.apply_actuals(0, Ok(Some(CarbonSeries::default())), moment(start())).await;
    assert_eq!(feed.state().sources[0].final_until, None, "the source may have values later");
    feed.apply_actuals(0, Ok(None), moment(start())).await;
    let final_until = Some(start() - TimeDelta::hours(72));
    assert_eq!(feed.state().sources[0].final_until, final_until, "the source has no more than its answers");
    feed.apply_actuals(0, Ok(Some(CarbonSeries::default())), moment(start() + TimeDelta::hours(6))).await;
    assert_eq!(feed.state().sources[0].final_until, final_until);
}
