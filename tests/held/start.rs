//! Held jobs: the start follows the forecast, survives restarts, and comes by the latest start.

use wattune::controller::view::WindowView;
use wattune::controller::{BeginReason, Caller, ControlError, StartBound, Wanted, WhenRequest};
use wattune_core::domain::{JobName, Work};

use super::*;

#[tokio::test]
async fn a_held_job_waits_for_the_clean_hours_without_its_gpu() {
    let mut world = World::start(sunny).await;
    let id = world.register(held("patient", 12.0)).await;
    let view = world.view(&id).await;
    assert_eq!((view.phase, view.wanted), (Some(Phase::Held), Some(Wanted::Hold)), "{view:#?}");
    let start = view.start.expect("held");
    assert_eq!((start.asked_at, start.latest_start, start.begun_at), (begin(), hour(12), None));
    let at = start.start_at.expect("chosen");
    assert!(at >= hour(6) && at <= hour(11), "{at}");
    assert!(start.expected_saving_pct.expect("known") > 50.0, "{start:#?}");
    assert!(start.saving_low_pct <= start.expected_saving_pct && start.expected_saving_pct <= start.saving_high_pct);
    assert_eq!(view.until, Some(at));

    // It holds no GPU: another job may have it, and its limits are not the held job's.
    let gpu = world.gpu(0);
    assert_eq!((gpu.owner, gpu.observed_jobs.len()), (None, 0));
    let other = world.register(support::job("other", 0.03)).await;
    assert_eq!(world.gpu(0).owner, Some(other.to_string()));
    world.controller.end(&other, Caller::Local).await.expect("ended");

    for _ in 0..24 {
        world.pass(600.0).await;
        let answer = world.lease(&id).await;
        assert_eq!((answer.wanted, answer.latest_start), (Wanted::Hold, Some(hour(12))));
        assert!(answer.power_limit_w.is_none());
        let start = answer.start.expect("held");
        assert_eq!((start.start_at, &start.reason), (answer.until, &answer.reason));
    }
    let refused = world.controller.progress(&id, ProgressReport::new(samples(0.1), None)).await.expect_err("held");
    assert!(refused.to_string().contains("is held and has not begun"), "{refused}");
    let refused = world.controller.suspended(&id, Caller::Local).await.expect_err("held");
    assert!(matches!(&refused, ControlError::Conflict(why) if why.contains("/begin")), "{refused}");

    let mut wanted = Wanted::Hold;
    for _ in 0..72 {
        world.pass(300.0).await;
        wanted = world.lease(&id).await.wanted;
        if wanted == Wanted::Run {
            break;
        }
    }
    assert_eq!(wanted, Wanted::Run);
    let now = world.clock.utc();
    assert!(now >= hour(6) && now <= hour(12), "{now}");
    let account = world.controller.account_of(&id).await.expect("an account");
    assert_eq!(account.energy_j, 0.0, "a held job uses no energy");

    let begun = world.controller.begin(&id, Caller::Local, Some(BeginReason::Planned)).await.expect("begins");
    assert_eq!((begun.phase, begun.wanted, begun.start.is_some()), (Phase::Waiting, Wanted::Run, false));
    assert_eq!(world.gpu(0).owner, Some(id.to_string()));
    let again = world.controller.begin(&id, Caller::Local, None).await.expect("idempotent");
    assert_eq!(again.phase, Phase::Waiting);
    assert_eq!(world.view(&id).await.start.expect("offered").begun_at, Some(now));
    world.train(0, true);
    world.train_until(&id, 0, Phase::Planned).await;
    let account = world.controller.end(&id, Caller::Local).await.expect("ended");
    assert!(account.energy_j > 0.0);
    world.verify().await;
}

#[tokio::test]
async fn the_start_follows_a_forecast_that_changes() {
    let mut world = World::start(sunny).await;
    let id = world.register(held("patient", 12.0)).await;
    let before = world.view(&id).await.start.expect("held").start_at.expect("chosen");
    assert!(before >= hour(6), "{before}");
    // Now the next hours are the clean ones.
    world.grid.set(Some(|h| match h {
        ..0 => sunny(h),
        0..4 => 200.0,
        _ => 500.0,
    }));
    let mut wanted = Wanted::Hold;
    for _ in 0..60 {
        world.pass(300.0).await;
        wanted = world.lease(&id).await.wanted;
        if wanted == Wanted::Run {
            break;
        }
    }
    assert_eq!(wanted, Wanted::Run, "{:#?}", world.view(&id).await);
    assert!(world.clock.utc() < hour(4));
}

#[tokio::test]
async fn a_constant_grid_and_a_past_latest_start_mean_now() {
    let mut world = World::start(|_| 300.0).await;
    for (name, hours) in [("flat", 12.0), ("late", 0.0)] {
        let id = world.register(held(name, hours)).await;
        let view = world.view(&id).await;
        assert_eq!((view.phase, view.wanted), (Some(Phase::Held), Some(Wanted::Run)), "{view:#?}");
        world.controller.end(&id, Caller::Local).await.expect("ended");
    }
}

#[tokio::test]
async fn the_latest_start_holds_whatever_else() {
    let mut world = World::start(|h| if h < 30 { 500.0 } else { 200.0 }).await;
    let id = world.register(held("patient", 6.0)).await;
    // The source dies, and the daemon with it, and is back after the latest start.
    world.grid.set(None);
    world.pass(3600.0).await;
    world.lease(&id).await;
    let mut world = world.restart().await;
    let view = world.view(&id).await;
    assert_eq!(view.phase, Some(Phase::Held), "{view:#?}");
    let start = view.start.expect("held");
    assert_eq!((start.asked_at, start.latest_start), (begin(), hour(6)));
    for _ in 0..30 {
        world.pass(600.0).await;
        world.lease(&id).await;
    }
    assert_eq!(world.clock.utc(), hour(6));
    assert_eq!(world.lease(&id).await.wanted, Wanted::Run);
    world.controller.begin(&id, Caller::Local, Some(BeginReason::LatestStart)).await.expect("begins");
    let before = world.view(&id).await.start.expect("offered");
    let world = world.kill().await;
    let view = world.view(&id).await;
    let start = view.start.expect("offered");
    assert_eq!((view.phase, start.begun_at), (Some(Phase::Waiting), Some(hour(6))));
    assert!(!start.reason.is_empty() && start.expected_saving_pct.is_some(), "{start:#?}");
    assert_eq!(start.expected_saving_pct, before.expected_saving_pct, "what was expected stays known");
    assert_eq!(world.gpu(0).owner, Some(id.to_string()), "it keeps its GPU over a kill");
}

#[tokio::test]
async fn a_dead_source_is_said_so() {
    let mut world = World::start(sunny).await;
    world.grid.set(None);
    for _ in 0..(60 * 6) {
        world.pass(600.0).await;
    }
    let id = world.register(held("patient", 12.0)).await;
    let view = world.view(&id).await;
    assert!(view.warnings.iter().any(|w| w.contains("no source forecasts")), "{view:#?}");
    assert!(view.start.expect("held").start_at.is_some());
}

#[tokio::test]
async fn two_held_jobs_do_not_take_one_gpu_at_once() {
    let mut world = World::start(sunny).await;
    let first = world.register(held("first", 12.0)).await;
    let second = world.register(held("second", 12.0)).await;
    let start = |view: JobView| view.start.expect("held").start_at.expect("chosen");
    let (a, b) = (start(world.view(&first).await), start(world.view(&second).await));
    assert!((a - b).abs() >= TimeDelta::hours(1), "{a} and {b}");
    // The first one's departure lets the second one choose again.
    world.controller.end(&first, Caller::Local).await.expect("cancelled");
    world.pass(60.0).await;
    let alone = start(world.view(&second).await);
    assert!(alone >= hour(6) && alone <= hour(11), "{alone}");
}

#[tokio::test]
async fn a_held_job_that_finds_its_gpu_taken_runs_without_control() {
    let mut world = World::start(|_| 300.0).await;
    let id = world.register(held("late", 6.0)).await;
    let owner = world.register(support::job("owner", 0.03)).await;
    let begun = world.controller.begin(&id, Caller::Local, Some(BeginReason::StartNow)).await.expect("begins");
    assert_eq!(begun.phase, Phase::Observing, "{begun:#?}");
    assert!(begun.warnings.iter().any(|w| w.contains("another job controlled")), "{:?}", begun.warnings);
    let gpu = world.gpu(0);
    assert_eq!((gpu.owner, gpu.observed_jobs), (Some(owner.to_string()), vec![id.to_string()]));
    let world = world.restart().await;
    assert_eq!(world.gpu(0).owner, Some(owner.to_string()), "after a restart, too");
}

#[tokio::test]
async fn a_held_job_without_a_known_duration_is_refused() {
    let mut world = World::start(sunny).await;
    let mut new = held("unknown", 12.0);
    if let Some(start) = &mut new.offers.start {
        start.duration = None;
    }
    let refused = world.controller.register(new).await.expect_err("refused");
    let ControlError::Invalid(invalid) = refused else { panic!("{refused:?}") };
    assert_eq!(invalid.field, "start.duration_s");
    assert!(invalid.why.contains("give the expected duration"), "{}", invalid.why);
    assert_eq!(world.controller.jobs().len(), 0);
}

#[tokio::test]
async fn a_held_job_whose_starter_dies_ends_with_its_lease() {
    let mut world = World::start(sunny).await;
    let id = world.register(held("orphan", 12.0)).await;
    for _ in 0..100 {
        world.pass(10.0).await;
    }
    let view = world.view(&id).await;
    assert_eq!(view.end_reason.as_deref(), Some("lease expired"));
    world.verify().await;
}

#[tokio::test]
async fn a_recurring_jobs_limits_are_chosen_together_with_its_start() {
    let mut world = World::start(sunny).await;
    let first =
        world.register(NewJob { work: Work::TotalSamples(samples(2.0)), ..support::job("nightly", 0.03) }).await;
    world.train(0, true);
    world.train_until(&first, 0, Phase::Planned).await;
    world.train(0, false);
    world.controller.end(&first, Caller::Local).await.expect("ended");

    let by_name = WhenRequest {
        name: Some(JobName::new("nightly").expect("a name")),
        latest: Some(StartBound::Within(Seconds::new(12.0 * 3600.0))),
        ..WhenRequest::default()
    };
    let planned = world.controller.when(&by_name, None).await.expect("known");
    let power = planned.power_w.expect("measured");
    let stated = WhenRequest { duration: Some(Seconds::new(2.0 * 3600.0)), power: Some(Watts::new(power)), ..by_name };
    let constant = world.controller.when(&stated, None).await.expect("known");
    // Two hours of work, with 3 % of slack, in which lower limits save energy.
    assert!((planned.duration_s / constant.duration_s - 1.03).abs() < 0.01, "{} s", planned.duration_s);
    let carbon = |window: &WindowView| window.carbon_g.expect("the power is known");
    for (planned, constant) in [(&planned.at_once, &constant.at_once), (&planned.best, &constant.best)] {
        let ratio = carbon(planned) / carbon(constant);
        assert!(ratio > 0.7 && ratio < 0.97, "{ratio}");
    }
    assert!(planned.start >= hour(6) && planned.start <= hour(10), "{}", planned.start);

    // A held job that states nothing but its work is planned the same way.
    let mut open = held("nightly", 12.0);
    open.work = Work::TotalSamples(samples(2.0));
    if let Some(start) = &mut open.offers.start {
        (start.duration, start.power) = (None, None);
    }
    let id = world.register(open).await;
    let start = world.view(&id).await.start.expect("held");
    let saving = start.expected_saving_pct.expect("known");
    assert!((saving - planned.expected_saving_pct).abs() < 1.0, "{saving} and {}", planned.expected_saving_pct);
    assert!(start.start_at.expect("chosen") >= hour(6), "{start:#?}");
}
