use futures_util::future::BoxFuture;
use proptest::prelude::*;

use super::*;
use crate::providers::testing::values;
use wattune_core::domain::{CarbonSeries, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};

const CADENCE: Seconds = Seconds::new(1800.0);

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
}

fn half_hours(from: i64, to: i64, value: f64) -> CarbonSeries {
    let slots = (from..to).filter_map(|i| Slot::new(at(30 * i), at(30 * i + 30)));
    let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
    CarbonSeries::from_points(slots.map(|slot| (slot, intensity)).collect()).0
}

fn forecast(now: i64, expected: CarbonSeries, actual: CarbonSeries) -> Forecast {
    Forecast {
        zone: Zone::new("GB").expect("a zone"),
        source: "test".to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Operational,
        issued_at: at(now),
        retrieved_at: at(now),
        provenance: Default::default(),
        expected,
        actual,
    }
}

fn unreachable() -> ProviderError {
    ProviderError::Unreachable { host: "host".to_owned(), why: "refused".to_owned() }
}

/// A source that is never polled: the tests use only its properties, such as the cadence.
struct Named;

impl Provider for Named {
    fn source(&self) -> &'static str {
        "test"
    }

    fn zone(&self) -> Zone {
        Zone::new("GB").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        CADENCE
    }

    fn fetch(&self, _now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        Box::pin(std::future::ready(Err(unreachable())))
    }
}

fn starting(stored: Option<Forecast>) -> SourceState {
    SourceState::starting(&Named, 0, stored, at(0))
}

fn answered(state: &SourceState, answer: Forecast, minutes: i64, jitter: f64) -> SourceState {
    state.answered(answer.into(), at(minutes), jitter, 1000.0)
}

fn fed() -> SourceState {
    answered(&starting(None), forecast(0, half_hours(0, 6, 1.0), half_hours(-2, 0, 9.0)), 0, 0.0)
}

/// Each answer of this source covers slots that no earlier answer covered.
#[test]
fn a_source_that_never_repeats_itself_does_not_fill_the_memory() {
    let scattered = |answer: i64| {
        let start = |i: i64| at(60) + TimeDelta::milliseconds(40 * i + answer);
        let slots = (0..20_000).filter_map(|i| Slot::new(start(i), start(i) + TimeDelta::milliseconds(1)));
        let intensity = Intensity { value: GramsPerKwh::new(100.0), origin: Origin::Forecast };
        CarbonSeries::from_points(slots.map(|slot| (slot, intensity)).collect()).0
    };
    let mut state = fed();
    let mut most = 0;
    for i in 0..12 {
        state = answered(&state, forecast(0, scattered(i), scattered(i)), 0, 0.0);
        state = state.with_actuals(&scattered(i + 12), at(0), 1000.0);
        let known = state.forecast.as_ref().expect("answered");
        most = most.max(known.expected.points().len()).max(known.actual.points().len());
        assert!(known.expected.points().len() >= 20_000 && known.actual.points().len() >= 20_000);
    }
    assert!(most <= 20_000 + MOST_REMEMBERED, "{most} slots are known");
    let known = state.forecast.as_ref().expect("answered").actual.clone();
    assert_eq!(state.with_actuals(&CarbonSeries::default(), at(0), 1000.0).forecast.expect("answered").actual, known);
}

#[test]
fn a_newer_answer_wins_ahead_but_not_behind() {
    let mut second = forecast(60, half_hours(2, 4, 3.0), half_hours(-1, 2, 8.0));
    second.expected.insert(Slot::new(at(0), at(30)).expect("a slot"), half_hours(0, 1, 7.0).points()[0].1);
    second.expected.insert(Slot::new(at(-30), at(0)).expect("a slot"), half_hours(0, 1, 7.0).points()[0].1);
    let state = answered(&fed(), second, 60, 0.0);
    let known = state.forecast.clone().expect("two answers");
    assert_eq!(values(&known.expected), [7.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0], "only the hole behind is filled");
    assert_eq!(values(&known.actual), [9.0, 8.0, 8.0, 8.0], "what came may be revised");
    assert_eq!((state.fetched_at, known.retrieved_at), (Some(at(60)), at(60)));
}

#[test]
fn the_newest_value_that_came_can_be_taken_back_too() {
    let first = forecast(60, half_hours(-2, 4, 3.0), half_hours(-2, 2, 8.0));
    let known = |expected: CarbonSeries, actual: CarbonSeries| {
        let state = answered(&answered(&fed(), first.clone(), 60, 0.0), forecast(61, expected, actual), 61, 0.0);
        values(&state.forecast.expect("two answers").actual)
    };
    let before = known(half_hours(-2, 4, 3.0), half_hours(-2, 2, 8.0));
    let fewer = known(half_hours(-2, 4, 3.0), half_hours(-2, 1, 8.0));
    assert_eq!(fewer.len() + 1, before.len(), "it speaks of that slot, and does not say what came");
    let ahead_only = known(half_hours(2, 4, 3.0), half_hours(-2, 1, 8.0));
    assert_eq!(ahead_only, before, "it does not speak of it");
    assert_eq!(known(half_hours(-2, 4, 3.0), CarbonSeries::default()), before, "no past takes nothing back");
}

#[test]
fn a_file_whose_values_were_all_blanked_takes_them_back_and_one_without_rows_does_not() {
    let of_file = |expected, actual| Forecast { source: "file".into(), ..forecast(61, expected, actual) };
    let first = of_file(half_hours(-2, 4, 3.0), half_hours(-2, 2, 8.0));
    let known = |expected: CarbonSeries| {
        let state = answered(&starting(None), first.clone(), 61, 0.0);
        let state = answered(&state, of_file(expected, CarbonSeries::default()), 61, 0.0);
        values(&state.forecast.expect("two answers").actual)
    };
    assert_eq!(known(half_hours(-2, 4, 3.0)), [0.0; 0]);
    assert_eq!(known(half_hours(0, 4, 3.0)), [8.0; 2], "the rows before are gone, and say nothing");
    assert_eq!(known(half_hours(2, 4, 3.0)), [8.0; 4]);
    assert_eq!(known(CarbonSeries::default()), [8.0; 4]);
}

#[test]
fn values_of_another_zone_for_the_same_coordinates_are_dropped() {
    let of_zone = |minutes: i64, value: f64, zone: Option<&str>| {
        let mut answer = forecast(minutes, half_hours(2, 4, value), CarbonSeries::default());
        answer.provenance.zone = zone.map(str::to_owned);
        answer
    };
    let first = answered(&fed(), of_zone(1, 2.0, Some("DK")), 1, 0.0);
    assert!(first.notes.is_empty(), "an earlier version stored no zone");
    let same = answered(&first, of_zone(2, 3.0, Some("DK")), 2, 0.0);
    assert_eq!(values(&same.forecast.expect("joined").expected), [1.0, 1.0, 3.0, 3.0, 1.0, 1.0]);
    let split = answered(&first, of_zone(2, 3.0, Some("DK-DK2")), 2, 0.0);
    assert_eq!(values(&split.forecast.expect("the second").expected), [3.0, 3.0]);
    assert!(split.notes[0].contains("another zone, kind or scope"));
}

#[test]
fn series_of_different_kinds_are_never_joined() {
    let mut second = forecast(60, half_hours(2, 4, 3.0), CarbonSeries::default());
    second.kind = SignalKind::Marginal;
    let state = answered(&fed(), second, 60, 0.0);
    assert_eq!(values(&state.forecast.expect("the second").expected), [3.0, 3.0]);
    assert!(state.notes[0].contains("another zone, kind or scope"));
}

#[test]
fn a_failure_keeps_the_forecast_and_the_time_since_which_it_is_stale() {
    let state = fed();
    assert_eq!(state.freshness(at(60)), Freshness::Fresh);
    let state = state.failed(&unreachable(), at(31), 0.5);
    assert_eq!((state.consecutive_failures, state.stale_since), (1, None));
    assert_eq!(state.freshness(at(31)), Freshness::Fresh, "one failure does not make it old");
    let state = state.failed(&unreachable(), at(70), 0.5);
    assert_eq!((state.consecutive_failures, state.stale_since), (2, Some(at(60))));
    assert_eq!(state.freshness(at(70)), Freshness::Stale { since: at(60) });
    assert_eq!(state.freshness(at(180)), Freshness::None, "the last slot has ended");
    assert!(state.last_error.as_deref().is_some_and(|e| e.contains("cannot be reached")));
    assert!(state.forecast.is_some());

    let again = answered(&state, forecast(75, half_hours(2, 4, 3.0), CarbonSeries::default()), 75, 0.0);
    assert_eq!((again.consecutive_failures, again.stale_since, &again.last_error), (0, None, &None));
}

#[test]
fn answers_without_a_forecast_do_not_renew_the_one_that_is_known() {
    let poll = |state: &SourceState, minutes: i64, expected: CarbonSeries| {
        answered(state, forecast(minutes, expected, half_hours(0, minutes / 30, 9.0)), minutes, 0.0)
    };
    let state = poll(&fed(), 65, CarbonSeries::default());
    assert_eq!((state.fetched_at, state.forecast_at, state.stale_since), (Some(at(65)), Some(at(0)), Some(at(60))));
    assert_eq!(state.freshness(at(65)), Freshness::Stale { since: at(60) });
    let stored = state.to_store().expect("answered");
    assert_eq!((stored.retrieved_at, stored.actual.end()), (at(0), Some(at(60))), "nor does a restart");
    let renewed = poll(&state, 66, half_hours(2, 6, 3.0));
    assert_eq!((renewed.freshness(at(66)), renewed.stale_since), (Freshness::Fresh, None));
    assert_eq!(renewed.to_store().map(|stored| stored.retrieved_at), Some(at(66)));
    let history = poll(&state, 190, CarbonSeries::default());
    assert_eq!(history.freshness(at(190)), Freshness::Fresh, "the forecast has ended, and the history is new");
}

#[test]
fn an_answer_of_a_service_that_has_not_changed_confirms_no_outlier() {
    let poll = |state: &SourceState, minutes: i64, issued: i64, content: &str| {
        let mut newest = forecast(issued, half_hours(0, 6, 9000.0), CarbonSeries::default());
        newest.provenance.responses.extend((!content.is_empty()).then(|| content.to_owned()));
        state.answered(newest.into(), at(minutes), 0.0, 4.0)
    };
    // By the content, and by the time of issue where no content is known.
    for [first, second, third] in [[(1, "a"), (1, "b"), (1, "c")], [(1, ""), (2, ""), (3, "")]] {
        let requests = Some(Requests { last_hour: 1, last_day: 1, allowed_per_hour: 12 });
        let mut state = SourceState { requests, ..fed() };
        for (minutes, (issued, content), times) in
            [(1, first, Some(1)), (2, first, Some(1)), (3, second, Some(2)), (4, second, Some(2)), (5, third, None)]
        {
            state = poll(&state, minutes, issued, content);
            assert_eq!(state.quarantined.map(|q| q.times), times, "{minutes}: {content}");
            assert!(state.quarantined.is_none_or(|q| q.since == at(1)));
        }
    }
    // A file is read again.
    let mut state = fed();
    for (minutes, times) in [(1, Some(1)), (2, Some(2)), (3, None)] {
        state = poll(&state, minutes, 1, "a");
        assert_eq!(state.quarantined.map(|q| q.times), times, "{minutes}");
    }
}

#[test]
fn a_clock_that_ran_ahead_leaves_no_values_final_that_are_new() {
    let days = |n: i64| 24 * 60 * n;
    let ahead = fed().with_actuals(&CarbonSeries::default(), at(days(10)), 4.0);
    assert_eq!(ahead.final_until, Some(at(days(7))));
    let right = Some(at(30 - days(3)));
    assert_eq!(ahead.final_by(at(30)), right);
    assert_eq!(ahead.with_actuals(&half_hours(-2, 0, 8.0), at(30), 4.0).final_until, right);
    let answer = forecast(30, half_hours(1, 7, 1.0), CarbonSeries::default());
    assert_eq!(answered(&ahead, answer, 30, 0.0).final_until, right);
}

#[test]
fn a_stored_forecast_keeps_its_age() {
    let stored = forecast(-120, half_hours(-4, 6, 1.0), CarbonSeries::default());
    let state = starting(Some(stored));
    assert!(state.from_cache && state.next_poll_at == at(0));
    assert_eq!(state.freshness(at(0)), Freshness::Stale { since: at(-60) });
    assert_eq!(state.stale_since, Some(at(-60)));
}

#[test]
fn polls_come_just_after_the_source_renews() {
    let due = |now: i64, jitter| {
        fed()
            .answered(forecast(now, half_hours(0, 6, 1.0), CarbonSeries::default()).into(), at(now), jitter, 4.0)
            .next_poll_at
    };
    assert_eq!(due(0, 0.0), at(30) + TimeDelta::seconds(30));
    assert_eq!(due(29, 1.0), at(30) + TimeDelta::seconds(90));
    let empty = ProviderError::Empty { what: "nothing".to_owned() };
    assert_eq!(fed().failed(&empty, at(10), 0.0).next_poll_at, at(30) + TimeDelta::seconds(30));
}

#[test]
fn patience_fits_the_failure() {
    let wait = |error: &ProviderError| (fed().failed(error, at(0), 0.0).next_poll_at - at(0)).num_seconds();
    assert_eq!(wait(&ProviderError::Refused { status: 401, message: String::new(), advice: String::new() }), 3600);
    assert_eq!(wait(&ProviderError::RateLimited { retry_after: Some(Seconds::new(120.0)) }), 120);
    assert_eq!(wait(&ProviderError::RateLimited { retry_after: None }), 60);
    assert_eq!(wait(&ProviderError::Unavailable { retry_after: Seconds::new(90.0) }), 90);
    assert_eq!(wait(&unreachable()), 7);
    let missing =
        ProviderError::Unreadable { table: "carbon", path: "carbon.csv".to_owned(), why: "not found".to_owned() };
    assert_eq!(wait(&missing), 15);
}

proptest! {
    #[test]
    fn backoff_stays_within_its_bounds(failures in 1u32..100_000, jitter in 0.0f64..1.0, cadence in 1.0f64..90_000.0) {
        let delay = retry_delay(&unreachable(), failures, Seconds::new(cadence), jitter).get();
        let longest = if failures < BREAKER { cadence.clamp(15.0, 900.0) } else { cadence.clamp(15.0, 1800.0) };
        prop_assert!((7.5..=longest).contains(&delay));
        if failures > 10 {
            prop_assert!(delay >= longest / 2.0);
        }
    }

    #[test]
    fn the_next_poll_lies_ahead(seconds in 0i64..4_000_000_000, jitter in 0.0f64..1.0, cadence in 0.0f64..90_000.0) {
        let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        let wait = (after_next_answer(now, Seconds::new(cadence), jitter) - now).as_seconds_f64();
        prop_assert!(wait > 0.0 && wait <= cadence.max(1.0) + 90.0);
    }

    #[test]
    fn merging_covers_what_either_covered(a in 0i64..20, n in 1i64..20, b in 0i64..20, m in 1i64..20, now in 0i64..600) {
        let old = forecast(0, half_hours(a, a + n, 1.0), CarbonSeries::default());
        let new = forecast(now, half_hours(b, b + m, 2.0), CarbonSeries::default());
        let known = merged(&old, new.clone(), at(now)).expected;
        for i in 0..40 {
            let t = at(30 * i + 1);
            let said = known.at(t).map(|(_, v)| v.value.get());
            let (first, second) = (old.expected.at(t), new.expected.at(t));
            let right = match (first, second) {
                (Some(_), Some(_)) if 30 * i + 30 <= now => Some(1.0),
                (_, Some(_)) => Some(2.0),
                (Some(_), None) => Some(1.0),
                (None, None) => None,
            };
            prop_assert_eq!(said, right);
        }
    }
}
