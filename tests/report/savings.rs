//! Savings of jobs that a crash has cut in parts, and of jobs whose energy is corrected.

use std::path::Path;

use serde_json::{Value, json};
use wattune::controller::{Caller, Controller, NewJob, NewOffers, NewStart, ProgressReport, Settings, StartBy};
use wattune::store::{CorrectionRequest, Store};
use wattune_core::domain::{Continuation, JobId, JobKey, Offers, Slot};
use wattune_core::ledger::Share;
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::report::{Grouping, ReportRequest};
use wattune_core::units::{GramsCo2e, Samples, SamplesPerSecond, Seconds, Watts};

use super::sample::{KWH, at, job, ledger, outcome, report, row, slot, stored};
use crate::support;
use crate::support::one_gpu::{self, OneGpu};

const SECOND: Seconds = Seconds::new(1.0);

/// The small ledger with a job in two parts, the first one of the first day, the second one of the next. `saved` holds
/// the outcome of each part that has ended, and `ended` the end of the second part.
async fn in_two_parts(ended: Option<f64>, saved: &[Value]) -> tempfile::TempDir {
    let dir = ledger().await;
    let store = Store::open(dir.path()).await.expect("opens");
    let key = Some(JobKey::new("parts").expect("a key"));
    let mut first = stored("c", "part", None, 0.5, Some(1.5));
    first.spec.offers.key.clone_from(&key);
    let continues = Some(Continuation {
        job: first.id.clone(),
        asked_at: at(0.5),
        done: Samples::new(2e6),
        emitted: GramsCo2e::ZERO,
        first: None,
    });
    let mut second = stored("d", "part", None, 26.0, ended);
    second.spec.offers = Offers { key, continues, ..Offers::default() };
    store.save_jobs(&[first, second]).await.expect("saved");
    for (id, saved) in ["c", "d"].into_iter().zip(saved) {
        store.append_entry(&outcome(id, 1, saved.clone())).await.expect("noted");
    }
    store.append(&[row("GPU-0", job("c"), 3.8, 3.9, KWH)], &[]).await.expect("written");
    store.close().await;
    dir
}

/// The figures of a day's total: jobs, ended jobs, jobs with a known saving, and the saving.
fn figures(dir: &Path, day: &str) -> [Value; 4] {
    let found = report(dir, &["--from", day, "--to", day, "--by", "job", "--format", "json"]).json();
    ["jobs", "ended_jobs", "saved_of_jobs", "saved_g"].map(|field| found["total"][field].clone())
}

fn badge(dir: &Path) -> String {
    let elsewhere = tempfile::tempdir().expect("a directory");
    let svg = elsewhere.path().join("badge.svg");
    report(dir, &["badge", "--job", "c", "--svg", svg.to_str().expect("UTF-8")]).done();
    std::fs::read_to_string(svg).expect("written")
}

#[tokio::test]
async fn a_job_in_parts_ends_with_its_last_part_and_has_the_saving_of_all() {
    let unknown = || json!({ "unknown": "no reference" });
    let none = Value::Null;
    for (ended, saved, expected) in [
        (None, vec![json!(120.5)], [json!(2), json!(0), json!(0), none.clone()]),
        (Some(27.0), vec![json!(120.5), json!(30.0)], [json!(2), json!(1), json!(1), json!(150.5)]),
        (Some(27.0), vec![unknown(), json!(30.0)], [json!(2), json!(1), json!(0), none.clone()]),
        (Some(27.0), vec![json!(120.5), unknown()], [json!(2), json!(1), json!(0), none.clone()]),
    ] {
        let dir = in_two_parts(ended, &saved).await;
        // Of the first day's jobs, one has ended for good; the first part has not.
        assert_eq!(figures(dir.path(), "2026-03-01"), [json!(3), json!(1), json!(0), none.clone()], "{saved:?}");
        assert_eq!(figures(dir.path(), "2026-03-02"), expected, "{saved:?}");
        let is_known = expected[2] == 1;
        assert_eq!(badge(dir.path()).contains(" · 150.5 g saved"), is_known, "{saved:?}");
        assert_eq!(badge(dir.path()).contains("saved"), is_known, "{saved:?}");
    }
}

async fn register(controller: &mut Controller, new: NewJob) -> JobId {
    JobId::new(controller.register(new).await.expect("registered").job_id).expect("an id")
}

/// Trains for some minutes at the original limit, with a report each second.
async fn train(bench: &mut OneGpu, controller: &mut Controller, id: &JobId) {
    bench.gpu.run(Some(one_gpu::load(Watts::new(680.0), SamplesPerSecond::new(100.0))));
    for _ in 0..400 {
        let report = ProgressReport::new(bench.gpu.work_done(), None);
        controller.progress(id, report).await.expect("taken");
        bench.pass(SECOND, controller).await;
    }
    bench.gpu.run(None);
}

/// A daemon that sets no limits, so that nothing is saved by them.
async fn observing() -> (OneGpu, Controller) {
    let bench = OneGpu::new(Settings { observe: true, ..Settings::default() }).await;
    let controller = bench.start().await;
    (bench, controller)
}

#[tokio::test]
async fn the_outage_after_a_crash_is_no_saving() {
    let within = NewStart {
        by: StartBy::Within(Seconds::new(12.0 * 3600.0)),
        duration: Some(Seconds::new(600.0)),
        power: Some(Watts::new(680.0)),
        min_gain: None,
        max_loss_probability: None,
        idle_power: Watts::ZERO,
    };
    for start in [None, Some(within)] {
        let (mut bench, mut controller) = observing().await;
        let keyed = || {
            let key = Some(JobKey::new("crash").expect("a key"));
            let offers = NewOffers { key, start, ..NewOffers::default() };
            NewJob { offers, lease: Some(Seconds::new(60.0)), ..support::job("crashes", 0.05) }
        };
        let mut parts = Vec::new();
        for part in 0..2 {
            let id = register(&mut controller, keyed()).await;
            if start.is_some() {
                controller.begin(&id, Caller::Local, None).await.expect("begins");
            }
            train(&mut bench, &mut controller, &id).await;
            parts.push(id);
            if part == 0 {
                // It has crashed, and goes on six hours later.
                for _ in 0..70 {
                    bench.pass(SECOND, &mut controller).await;
                }
                for _ in 0..36 {
                    bench.pass(Seconds::new(600.0), &mut controller).await;
                }
            }
        }
        let [first, second] = parts.as_slice() else { panic!("{parts:?}") };
        assert_eq!(controller.job(first).await.expect("known").end_reason.as_deref(), Some("lease expired"));
        assert_eq!(controller.job(second).await.expect("known").continues.as_deref(), Some(first.as_str()));
        let account = controller.end(second, Caller::Local).await.expect("ended");
        let saving = serde_json::to_value(&account.savings).expect("JSON")["against_original"].clone();
        let effects = [&saving["start_effect_pct"], &saving["suspension_effect_pct"]];
        match start {
            None => {
                assert_eq!(effects, [&Value::Null; 2], "{saving:#}");
                assert_eq!(saving["carbon_reduction_pct"]["mean"], 0.0, "{saving:#}");
            }
            // It started when asked; a few seconds passed before its first reports.
            Some(_) => {
                let effect = effects[0]["mean"].as_f64().expect("it offered to wait");
                assert!(effect.abs() < 2.0, "{saving:#}");
            }
        }
        controller.shut_down().await;
    }
}

/// The saving of the day's jobs, and the number of jobs with a known one.
async fn saved(controller: &Controller) -> Option<(f64, u64)> {
    let (by, unit, restated_by_pct) = (Grouping::Job, None, 5.0);
    let request = ReportRequest { by, span: slot(0.0, 24.0), unit, restated_by_pct, now: controller.now().utc };
    let total = controller.store().report(request).await.expect("read").total;
    total.saved.map(|(saved, jobs)| (saved.mean.get(), jobs))
}

#[tokio::test]
async fn the_saving_of_an_ended_job_is_estimated_again_after_a_correction() {
    let (mut bench, mut controller) = observing().await;
    let id = register(&mut controller, support::job("corrected", 0.05)).await;
    let registered = controller.now().utc;
    for _ in 0..120 {
        bench.pass(SECOND, &mut controller).await;
    }
    let reported = controller.now().utc;
    train(&mut bench, &mut controller, &id).await;
    controller.end(&id, Caller::Local).await.expect("ended");
    // The hour's block is closed, and all intensities of the job's time are published.
    for _ in 0..18 {
        bench.pass(Seconds::new(600.0), &mut controller).await;
    }
    let before = saved(&controller).await;
    assert_eq!(before.map(|(_, jobs)| jobs), Some(1));
    // The energy before the first report is no part of the comparison, so the saving remains the same.
    let request = CorrectionRequest {
        device: None,
        span: Slot::new(registered, reported).expect("two minutes"),
        from: Share::Job(id.clone()),
        to: Share::Idle,
        who: "ada".into(),
        why: "the job had not begun".into(),
        at: controller.now().utc,
    };
    controller.store().correct(&request).await.expect("corrected");
    assert_eq!(saved(&controller).await, None, "an estimate from before a correction does not count");
    for _ in 0..2 {
        bench.pass(Seconds::new(60.0), &mut controller).await;
    }
    assert_eq!(saved(&controller).await, before);
    let outcomes = controller.store().entries_of("outcome", &id).await.expect("read");
    let Some(Entry::Outcome(newest)) = outcomes.last() else { panic!("{outcomes:#?}") };
    assert_eq!(newest.why, "its energy was corrected");
    controller.shut_down().await;
}
