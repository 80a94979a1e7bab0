//! What a ledger keeps as sources come and go: other settings, a source that is down, and corrections take no factor back.

use std::collections::BTreeMap;

use wattune::controller::{Controller, NewJob};
use wattune::providers::{FeedState, Ranks, SourceState};
use wattune::store::{CorrectionRequest, Store};
use wattune_core::domain::{Forecast, Intensity, JobId, JobName, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::ledger::Share;
use wattune_core::ledger::entry::Settlement;
use wattune_core::ledger::report::{Grouping, ReportRequest, RowKey};
use wattune_core::units::GramsPerKwh;

use crate::ledger::{Node, Source, at, forecast, half_hours, published, reproduce, verify};
use crate::support;

fn value(grams: f64, origin: Origin) -> Option<Intensity> {
    Some(Intensity { value: GramsPerKwh::new(grams), origin })
}

/// A node after some hours, each settled by what its source told of it.
async fn kept(hours: i64) -> (Node, Controller) {
    let mut node = Node::new();
    node.say(0, published);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..hours {
        node.hour(&mut controller, hour).await;
    }
    (node, controller)
}

async fn holding(store: &Store, hours: i64) -> BTreeMap<i64, Settlement> {
    let mut found = BTreeMap::new();
    for hour in 0..hours {
        let versions = store.settlements_of(at(hour)).await.expect("read");
        let averages = versions.into_iter().rfind(|s| s.kind == SignalKind::Average);
        found.insert(hour, averages.expect("settled"));
    }
    found
}

/// The feed with these answers, the preferred source first; those without one have said nothing yet.
fn answered(hour: i64, answers: Vec<(Source, Option<Forecast>)>) -> FeedState {
    let start = |(place, (source, _)): (usize, &(Source, Option<Forecast>))| {
        SourceState::starting(source, place, None, at(hour))
    };
    let states: Vec<SourceState> = answers.iter().enumerate().map(start).collect();
    let mut feed = FeedState::starting(states.clone(), at(hour));
    for (place, (state, (_, answer))) in states.into_iter().zip(answers).enumerate() {
        if let Some(answer) = answer {
            feed = feed.with(place, state.answered(answer.into(), at(hour), 0.5, 4.0), &Ranks::default(), at(hour));
        }
    }
    feed
}

fn factors(settled: &Settlement) -> Vec<(String, String, f64)> {
    let of = |f: &wattune_core::ledger::entry::Factor| (f.source.clone(), f.zone.to_string(), f.g_per_kwh.get());
    settled.factors.iter().map(of).collect()
}

#[tokio::test]
async fn other_settings_take_nothing_back_and_what_they_say_replaces() {
    const HOURS: i64 = 6;
    const NAMES: [&str; 2] = ["late", "new"];
    for (name, zone, kind, scope) in [
        (NAMES[1], "DE", SignalKind::Average, SignalScope::Lifecycle),
        (NAMES[0], "FR", SignalKind::Average, SignalScope::Lifecycle),
        (NAMES[0], "DE", SignalKind::Average, SignalScope::Operational),
        (NAMES[0], "DE", SignalKind::Unspecified, SignalScope::Unspecified),
        (NAMES[0], "DE", SignalKind::Unspecified, SignalScope::Lifecycle),
        (NAMES[0], "DE", SignalKind::Marginal, SignalScope::Lifecycle),
    ] {
        let case = format!("{name} {zone} {kind:?} {scope:?}");
        let (node, controller) = kept(HOURS).await;
        controller.shut_down().await;
        // The source tells of the hours in `tells`, and of none before.
        let said = |now: i64, tells: std::ops::Range<i64>| {
            let actual = half_hours(2 * tells.start, 2 * tells.end, |_| value(200.0, Origin::Measured));
            let said = forecast(&Source(name), now, Origin::Forecast, actual);
            let said = Forecast { zone: Zone::new(zone).expect("a zone"), kind, scope, ..said };
            answered(now, vec![(Source(name), Some(said))])
        };
        node.feed.send_replace(said(HOURS, 0..0));
        let mut controller = node.controller().await;
        let before = holding(&controller.store(), HOURS).await;
        for _ in 0..3 {
            controller.tick().await;
        }
        let store = controller.store();
        assert_eq!(holding(&store, HOURS).await, before, "{case}: it says nothing of these hours");
        node.feed.send_replace(said(HOURS, 4..HOURS));
        controller.tick().await;
        let after = holding(&store, HOURS).await;
        for hour in 0..HOURS {
            if hour < 4 || kind == SignalKind::Marginal {
                assert_eq!(after[&hour], before[&hour], "{case}");
            } else {
                let new = (name.to_owned(), zone.to_owned(), 200.0);
                assert_eq!(factors(&after[&hour]), [new.clone(), new], "{case}, hour {hour}");
            }
        }
        let text = node.export().await;
        verify(&text).expect("in order");
        reproduce(&text, 0);
        controller.shut_down().await;
    }
}

#[tokio::test]
async fn a_fallback_in_an_outage_takes_no_place_of_what_the_preferred_source_said() {
    const HOURS: i64 = 6;
    const FALLBACK: Source = Source("fallback");
    for alike in [true, false] {
        let node = Node::new();
        let says = |hour: i64, preferred: bool| {
            let actual = half_hours(0, 2 * hour, |half| published(half, hour));
            let first = preferred.then(|| forecast(&Source("late"), hour, Origin::Forecast, actual));
            let mut second = forecast(&FALLBACK, hour, Origin::Fallback, half_hours(0, 0, |_| None));
            second.expected = half_hours(2 * hour - 48, 2 * hour + 48, |_| value(475.0, Origin::Fallback));
            if !alike {
                (second.kind, second.scope) = (SignalKind::Unspecified, SignalScope::Unspecified);
            }
            answered(hour, vec![(Source("late"), first), (FALLBACK, Some(second))])
        };
        node.feed.send_replace(says(0, true));
        let mut controller = node.controller().await;
        controller.tick().await;
        let id = JobId::new(controller.register(watched()).await.expect("free").job_id).expect("an id");
        for hour in 0..HOURS {
            for step in 0..crate::ledger::STEPS_AN_HOUR {
                node.pass(step);
                if step + 1 == crate::ledger::STEPS_AN_HOUR {
                    node.feed.send_replace(says(hour + 1, true));
                }
                controller.tick().await;
            }
        }
        let figure = controller.jobs()[0].carbon_g.expect("known");
        controller.shut_down().await;
        // Before anybody has said anything.
        let silent = answered(HOURS, vec![(Source("late"), None), (FALLBACK, None)]);
        node.feed.send_replace(silent);
        let mut controller = node.controller().await;
        let before = holding(&controller.store(), HOURS).await;
        assert!(before.values().all(|s| factors(s).iter().all(|(source, ..)| source == "late")), "{before:#?}");
        controller.tick().await;
        assert_eq!(holding(&controller.store(), HOURS).await, before, "alike: {alike}");
        let same = |controller: &Controller| {
            let shown = controller.jobs()[0].carbon_g.expect("the ledger has it");
            assert!((shown / figure - 1.0).abs() < 1e-6, "{shown} {figure}, alike: {alike}");
        };
        same(&controller);
        let account = controller.account_of(&id).await.expect("runs").carbon_g.expect("the ledger has it");
        assert!((account / figure - 1.0).abs() < 1e-6, "{account} {figure}, alike: {alike}");
        // Only the fallback answers.
        node.feed.send_replace(says(HOURS, false));
        for _ in 0..3 {
            controller.tick().await;
        }
        assert_eq!(holding(&controller.store(), HOURS).await, before, "alike: {alike}");
        same(&controller);
        // The same from the start on.
        controller.shut_down().await;
        let mut controller = node.controller().await;
        controller.tick().await;
        assert_eq!(holding(&controller.store(), HOURS).await, before, "alike: {alike}");
        same(&controller);
        // The preferred source is back, and tells what it told.
        node.feed.send_replace(says(HOURS, true));
        for _ in 0..3 {
            controller.tick().await;
        }
        assert_eq!(holding(&controller.store(), HOURS).await, before, "alike: {alike}");
        same(&controller);
        controller.shut_down().await;
        verify(&node.export().await).expect("in order");
    }
}

fn watched() -> NewJob {
    let tags = [("team".to_owned(), "x".to_owned())].into();
    NewJob { control: false, tags, ..support::job("kept", 0.03) }
}

#[tokio::test]
async fn a_correction_after_a_change_of_source_moves_energy_and_no_factor() {
    const HOURS: i64 = 12;
    let (node, mut controller) = kept(HOURS).await;
    let id = JobId::new(controller.register(watched()).await.expect("free").job_id).expect("an id");
    controller.shut_down().await;
    let says = |now: i64, tells: bool| {
        let actual = half_hours(0, 2, |_| value(200.0, Origin::Measured).filter(|_| tells));
        let said = forecast(&Source("new"), now, Origin::Forecast, actual);
        answered(now, vec![(Source("new"), Some(said))])
    };
    node.feed.send_replace(says(HOURS, false));
    let mut controller = node.controller().await;
    controller.tick().await;
    let store = controller.store();
    let before = holding(&store, HOURS).await;
    assert!(before[&0].is_final() && !before[&11].is_final(), "both kinds of hours");
    let wish = |from: Share, to: Share| CorrectionRequest {
        device: None,
        span: Slot::new(at(0), at(HOURS)).expect("from < to"),
        from,
        to,
        who: "somebody".into(),
        why: "a test".into(),
        at: at(HOURS),
    };
    store.correct(&wish(Share::Unattributed, Share::Job(id.clone()))).await.expect("corrected");
    // Its own time is later: in these hours it has energy all the same, with its name.
    let wanted = |by| ReportRequest {
        by,
        span: Slot::new(at(0), at(9)).expect("from < to"),
        unit: None,
        restated_by_pct: 5.0,
        now: at(HOURS),
    };
    // Meanwhile something is told of the first hour.
    node.feed.send_replace(says(HOURS, true));
    for step in 0..3 {
        node.pass(step);
        controller.tick().await;
    }
    let after = holding(&store, HOURS).await;
    for hour in 0..HOURS {
        let (before, after) = (&before[&hour], &after[&hour]);
        let of_job = |s: &Settlement| -> u64 {
            let its = s.parts.iter().filter(|part| part.share == Share::Job(id.clone()));
            its.map(|part| part.carbon_ug.get()).sum()
        };
        assert_eq!(of_job(before), 0);
        assert!(of_job(after) > 0, "hour {hour}: {after:#?}");
        if hour == 0 {
            assert!(factors(after).iter().all(|(source, _, grams)| (source.as_str(), *grams) == ("new", 200.0)));
        } else {
            assert_eq!(after.factors, before.factors, "hour {hour}");
            assert!(after.total().carbon.get().abs_diff(before.total().carbon.get()) <= 4, "hour {hour}, to roundings");
            assert_eq!(after.reason, "corrected");
        }
    }
    // The version between has the old factors of the first hour, too.
    let first = store.settlements_of(at(0)).await.expect("read");
    let corrected = first.iter().find(|s| s.reason == "corrected");
    assert_eq!(corrected.expect("a version of its own").factors, before[&0].factors, "{first:#?}");
    assert_eq!(store.due_hours().await.expect("read"), []);
    for (by, key) in [
        (Grouping::Name, RowKey::Name(JobName::new("kept").expect("a name"))),
        (Grouping::Job, RowKey::Job(JobName::new("kept").expect("a name"), id.clone())),
        (Grouping::Tag("team".into()), RowKey::Tag("x".into())),
    ] {
        let report = store.report(wanted(by.clone())).await.expect("read");
        let row = report.rows.iter().find(|row| row.key == key);
        let row = row.unwrap_or_else(|| panic!("{by}: {:?}", report.rows.iter().map(|r| &r.key).collect::<Vec<_>>()));
        assert_eq!((row.jobs, row.ended, row.total.unknown.get()), (1, 0, 0), "{by}");
        assert!(row.total.energy.get() > 0 && row.occupied.get() == 0.0, "{by}");
    }
    // The running job's own figures have the corrected energy without a restart.
    let span = Slot::new(at(0), at(HOURS + 1)).expect("from < to");
    let all = ReportRequest { span, now: at(HOURS + 1), ..wanted(Grouping::Job) };
    let report = store.report(all).await.expect("read");
    let key = RowKey::Job(JobName::new("kept").expect("a name"), id.clone());
    let recorded = report.rows.iter().find(|row| row.key == key).expect("a row").total;
    let (energy, carbon) = (recorded.energy.to_joules().get(), recorded.carbon.to_grams().get());
    let shown = controller.jobs();
    let (shown_j, shown_g) = (shown[0].energy_j.expect("recorded"), shown[0].carbon_g.expect("known"));
    assert!((shown_j / energy - 1.0).abs() < 1e-6, "{shown_j} J shown, {energy} J recorded");
    assert!((shown_g / carbon - 1.0).abs() < 1e-6, "{shown_g} g shown, {carbon} g recorded");
    let by_job = store.report(wanted(Grouping::Job)).await.expect("read").total.jobs;
    for by in [Grouping::Name, Grouping::Device, Grouping::Day, Grouping::Month] {
        assert_eq!(store.report(wanted(by.clone())).await.expect("read").total.jobs, by_job, "{by}");
    }
    let text = node.export().await;
    verify(&text).expect("in order");
    controller.shut_down().await;
}

#[tokio::test]
async fn a_correction_takes_energy_from_a_running_job_and_lowers_no_counter() {
    const HOURS: i64 = 3;
    let (node, mut controller) = kept(HOURS).await;
    let id = JobId::new(controller.register(watched()).await.expect("free").job_id).expect("an id");
    let shares = [Share::Unattributed, Share::Job(id.clone())];
    let mut seen = Vec::new();
    for (step, (from, to)) in [(0, (0, 1)), (1, (1, 0))] {
        let request = CorrectionRequest {
            device: None,
            span: Slot::new(at(0), at(HOURS)).expect("from < to"),
            from: shares[from].clone(),
            to: shares[to].clone(),
            who: "somebody".into(),
            why: "a test".into(),
            at: at(HOURS),
        };
        controller.store().correct(&request).await.expect("corrected");
        node.pass(step);
        controller.tick().await;
        let recorded: f64 = controller.status().ledger.recorded_of_jobs[id.as_str()].values().sum();
        seen.push((controller.jobs()[0].energy_j.expect("recorded"), recorded));
    }
    let [(with, counter), (without, after)] = seen[..] else { panic!("{seen:?}") };
    assert!(without < with / 2.0 && (counter / with - 1.0).abs() < 1e-6, "{seen:?}");
    assert!(after > counter, "it goes on with what is recorded: {seen:?}");
    controller.shut_down().await;
}

#[tokio::test]
async fn a_file_whose_values_were_all_blanked_goes_back_to_its_forecast() {
    const HOURS: i64 = 3;
    let node = Node::new();
    let file = || Source("file");
    let says = |before: &SourceState, hour: i64, tells: bool, rows: bool| {
        let actual = half_hours(0, 2 * hour, |_| value(300.0, Origin::Measured).filter(|_| tells));
        let mut said = forecast(&file(), hour, Origin::Forecast, actual);
        said.expected = half_hours(if rows { 0 } else { 2 * hour }, 96, |_| value(400.0, Origin::Forecast));
        before.answered(said.into(), at(hour), 0.5, 4.0)
    };
    let sent = |state: &SourceState, hour: i64| {
        let feed = FeedState::starting(vec![state.clone()], at(hour));
        node.feed.send_replace(feed.with(0, state.clone(), &Ranks::default(), at(hour)));
    };
    let mut state = says(&SourceState::starting(&file(), 0, None, at(0)), 0, true, true);
    sent(&state, 0);
    let mut controller = node.controller().await;
    controller.tick().await;
    for hour in 0..HOURS {
        for step in 0..crate::ledger::STEPS_AN_HOUR {
            node.pass(step);
            if step + 1 == crate::ledger::STEPS_AN_HOUR {
                state = says(&state, hour + 1, true, true);
                sent(&state, hour + 1);
            }
            controller.tick().await;
        }
    }
    let used = async |store: &Store| -> Vec<f64> {
        let settled = holding(store, HOURS).await;
        settled.values().flat_map(|s| s.factors.iter().map(|f| f.g_per_kwh.get())).collect()
    };
    let of = |grams: f64| vec![grams; 2 * HOURS as usize];
    assert_eq!(used(&controller.store()).await, of(300.0));
    // While the daemon runs: without rows of the past nothing is taken back, with blank ones all is.
    for (rows, grams) in [(false, 300.0), (true, 400.0)] {
        state = says(&state, HOURS, false, rows);
        sent(&state, HOURS);
        controller.tick().await;
        assert_eq!(used(&controller.store()).await, of(grams), "rows: {rows}");
    }
    // While it is down.
    state = says(&state, HOURS, true, true);
    sent(&state, HOURS);
    controller.tick().await;
    assert_eq!(used(&controller.store()).await, of(300.0));
    controller.shut_down().await;
    // After a start, the first forecast makes the actual values look like outliers: they are ignored, not taken back.
    let mut said =
        forecast(&file(), HOURS, Origin::Forecast, half_hours(0, 2 * HOURS, |_| value(300.0, Origin::Measured)));
    let expected = |half: i64| if half < 2 * HOURS { 400.0 } else { 1300.0 };
    said.expected = half_hours(0, 96, |half| value(expected(half), Origin::Forecast));
    state = SourceState::starting(&file(), 0, None, at(HOURS)).answered(said.into(), at(HOURS), 0.5, 4.0);
    assert!(state.quarantined.is_some() && state.forecast.as_ref().is_some_and(|f| f.actual.is_empty()), "{state:?}");
    sent(&state, HOURS);
    let mut controller = node.controller().await;
    for _ in 0..2 {
        controller.tick().await;
    }
    assert_eq!(used(&controller.store()).await, of(300.0), "ignored after a start");
    // The next answer has no outliers, so values that it lacks are taken back, and given again.
    for (tells, grams) in [(false, 400.0), (true, 300.0)] {
        state = says(&state, HOURS, tells, true);
        sent(&state, HOURS);
        controller.tick().await;
        assert_eq!((state.quarantined, used(&controller.store()).await), (None, of(grams)), "tells: {tells}");
    }
    controller.shut_down().await;
    for (rows, grams) in [(false, 300.0), (true, 400.0)] {
        state = says(&SourceState::starting(&file(), 0, None, at(HOURS)), HOURS, false, rows);
        sent(&state, HOURS);
        let mut controller = node.controller().await;
        for _ in 0..2 {
            controller.tick().await;
        }
        assert_eq!(used(&controller.store()).await, of(grams), "rows: {rows}, after a start");
        controller.shut_down().await;
    }
    verify(&node.export().await).expect("in order");
}
