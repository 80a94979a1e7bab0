//! Tests of the changes (`SignalUpdate`) that new responses of the carbon feed cause.

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::watch;

use super::*;
use crate::providers::{CarbonSettings, FixedProvider, SourceState};
use wattune_core::domain::{CarbonSeries, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

fn at(hours: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::hours(hours)
}

fn now(seconds: i64) -> Now {
    let monotonic = Monotonic::default().after(Seconds::from_delta(TimeDelta::seconds(seconds)));
    Now { utc: at(0) + TimeDelta::seconds(seconds), monotonic }
}

/// Hours from `from` to `to`, all with this value.
fn hours(from: i64, to: i64, value: f64, origin: Origin) -> CarbonSeries {
    let slot = |h| Slot::new(at(h), at(h + 1)).expect("an hour");
    let value = GramsPerKwh::new(value);
    CarbonSeries::from_points((from..to).map(|h| (slot(h), Intensity { value, origin })).collect()).0
}

fn said(expected: f64, came: CarbonSeries) -> Arc<Forecast> {
    Arc::new(Forecast {
        zone: Zone::new("DE").expect("a zone"),
        source: "fixed".into(),
        kind: SignalKind::Average,
        scope: SignalScope::Lifecycle,
        issued_at: at(0),
        retrieved_at: at(0),
        provenance: Default::default(),
        expected: hours(0, 24, expected, Origin::Forecast),
        actual: came,
    })
}

/// Returns the state of a feed with one source, whose newest response is `forecast`.
fn feed(forecast: &Arc<Forecast>) -> FeedState {
    let source = SourceState::starting(
        &FixedProvider::new(&Default::default(), &CarbonSettings::default().shared(None)),
        0,
        None,
        at(0),
    );
    let mut state = FeedState::starting(vec![SourceState { forecast: Some(forecast.clone()), ..source }], at(0));
    state.forecast = Some(forecast.clone());
    state
}

fn owner(state: FeedState) -> (watch::Sender<FeedState>, Signal) {
    let (publish, feed) = watch::channel(state);
    let fallback = GramsPerKwh::new(475.0);
    (publish, Signal::new(feed, None, fallback, SharedRanks::default(), at(0)))
}

#[tokio::test]
async fn an_answer_is_news_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let came = hours(-24, 0, 300.0, Origin::Measured);
    let (publish, mut signal) = owner(feed(&said(400.0, came.clone())));
    let update = signal.update(&store, now(0)).await;
    assert!(update.is_first && update.is_other_series && update.faults.is_empty(), "{update:?}");
    assert_eq!((update.reported.len(), update.replan), (24, Some(ReplanReason::NewForecast)));
    assert_eq!(signal.basis().value, GramsPerKwh::new(400.0));

    let update = signal.update(&store, now(1)).await;
    assert!(
        !update.is_first && !update.is_other_series && update.reported.is_empty() && update.replan.is_none(),
        "{update:?}"
    );

    // The actual value of one hour is published, and the forecast stays the same.
    let mut later = came.clone();
    later.overwrite(&hours(0, 1, 410.0, Origin::Measured));
    publish.send_replace(feed(&said(400.0, later)));
    let update = signal.update(&store, now(3600)).await;
    assert_eq!((update.reported.len(), update.revised.len(), update.replan), (1, 1, None), "{update:?}");

    publish.send_replace(feed(&said(200.0, came)));
    let update = signal.update(&store, now(3601)).await;
    assert_eq!(update.replan, Some(ReplanReason::NewForecast));
    assert!(!update.is_first, "{update:?}");
}

#[tokio::test]
async fn the_basis_follows_the_forecast_into_its_next_slot() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let mut forecast = Arc::unwrap_or_clone(said(400.0, CarbonSeries::default()));
    forecast.expected.overwrite(&hours(1, 24, 200.0, Origin::Forecast));
    let (_publish, mut signal) = owner(feed(&Arc::new(forecast)));
    for (second, value) in [(0, 400.0), (3594, 400.0), (3599, 400.0), (3600, 400.0), (3604, 200.0), (3609, 200.0)] {
        signal.update(&store, now(second)).await;
        assert_eq!(signal.basis().value, GramsPerKwh::new(value), "{second} s");
    }
}

#[tokio::test]
async fn what_is_taken_back_is_reported_and_what_is_final_is_said_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    let (publish, mut signal) = owner(feed(&said(400.0, hours(-24, 0, 300.0, Origin::Measured))));
    signal.update(&store, now(0)).await;
    // The source withdraws an actual value: its new response covers the hour but has no value for it.
    let mut kept = hours(-24, -6, 300.0, Origin::Measured);
    kept.overwrite(&hours(-5, 0, 300.0, Origin::Measured));
    publish.send_replace(feed(&said(400.0, kept.clone())));
    let update = signal.update(&store, now(1)).await;
    let gone = Slot::new(at(-6), at(-5)).expect("an hour");
    assert_eq!((update.reported.as_slice(), update.is_other_series), ([gone].as_slice(), false), "{update:?}");

    let mut state = feed(&said(400.0, kept));
    state.sources[0].final_until = Some(at(-3));
    state.sources[0].final_after = Seconds::new(3.0 * 3600.0);
    publish.send_replace(state.clone());
    let update = signal.update(&store, now(2)).await;
    assert!(update.reported.is_empty() && update.faults.is_empty(), "{update:?}");
    publish.send_replace(state);
    assert!(signal.update(&store, now(3)).await.finalised.is_empty());
    assert_eq!(store.final_until(&signal.accounting_series().sources()[0]).await.expect("read"), Some(at(-3)));
}

#[tokio::test]
async fn a_store_that_fails_is_a_fault_and_is_reported_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path()).await.expect("opens");
    store.close().await;
    let (_publish, mut signal) = owner(feed(&said(400.0, CarbonSeries::default())));
    let update = signal.update(&store, now(0)).await;
    assert!(!update.faults.is_empty() && update.is_first, "{update:?}");
    assert_eq!(signal.basis().value, GramsPerKwh::new(400.0), "planning goes on");
}
