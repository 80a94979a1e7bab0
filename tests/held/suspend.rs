//! Suspended jobs: they save, exit, give their GPUs back and go on later, over restarts of the daemon.

use wattune::controller::{Caller, ControlError, Wanted};
use wattune_core::domain::{Objective, SuspendOffer, Work};

use super::*;

/// Six hours of work at the most, within sixteen.
fn suspendable() -> NewJob {
    let objective = Objective { deadline: Some(hour(16)), ..Objective::UNBOUND };
    let suspend = Some(SuspendOffer { checkpoint: Seconds::new(60.0), ..SuspendOffer::default() });
    let offers = NewOffers { suspend, ..NewOffers::default() };
    let work = Work::TotalSamples(samples(5.5));
    NewJob { objective, offers, work, lease: Some(Seconds::new(3600.0)), ..support::job("saver", 0.0) }
}

/// Trains until the job is asked to suspend.
async fn until_asked(world: &mut World, id: &JobId) -> ProgressView {
    for _ in 0..20_000 {
        let view = world.view(id).await;
        let profiling = matches!(view.phase, Some(Phase::Waiting | Phase::Profiling));
        world.pass(if profiling { 1.0 } else { 60.0 }).await;
        let reported = world.report(id, 0).await;
        if reported.wanted == Wanted::Suspend {
            return reported;
        }
    }
    panic!("never asked: {:#?}", world.view(id).await)
}

#[tokio::test]
async fn it_gives_its_gpu_back_and_goes_on_at_ten() {
    let mut world = World::start(sunny).await;
    let id = world.register(suspendable()).await;
    world.train(0, true);
    let asked = until_asked(&mut world, &id).await;
    assert_eq!((asked.phase, asked.power_limit_w), (Phase::Planned, None), "{asked:#?}");
    let until = asked.until.expect("planned");
    assert!(until >= hour(5) && until <= hour(7), "{until}");
    let view = world.view(&id).await.suspend.expect("offered");
    assert!(view.asked && view.stops == 0 && view.signal == "SIGTERM");

    // It saves for 40 s, exits, and its GPU is free at its original limit.
    world.pass(40.0).await;
    let done = world.report(&id, 0).await;
    assert_eq!(done.wanted, Wanted::Suspend);
    world.train(0, false);
    let before = world.view(&id).await;
    let left_at = world.clock.utc();
    let gone = world.controller.suspended(&id, Caller::Local).await.expect("suspended");
    assert_eq!((gone.phase, gone.wanted), (Phase::Suspended, Wanted::Suspend));
    let again = world.controller.suspended(&id, Caller::Local).await.expect("idempotent");
    assert_eq!(again.phase, Phase::Suspended);
    world.pass(10.0).await;
    let gpu = world.gpu(0);
    assert_eq!((gpu.owner.clone(), gpu.power_limit_requested_w), (None, Some(300.0)), "{gpu:#?}");
    let learned = world.view(&id).await.suspend.expect("offered");
    assert!(learned.checkpoint_s > 40.0 && learned.checkpoint_s < 60.0, "{learned:#?}");
    let energy = world.controller.account_of(&id).await.expect("known").energy_j;

    // Another job has the GPU meanwhile; its energy and its limits are its own.
    let other = world.register(support::job("other", 0.03)).await;
    world.train(0, true);
    for _ in 0..6 {
        world.pass(300.0).await;
        world.report(&other, 0).await;
        assert_eq!(world.lease(&id).await.wanted, Wanted::Suspend);
    }
    world.controller.end(&other, Caller::Local).await.expect("ended");
    world.train(0, false);
    let account = world.controller.account_of(&id).await.expect("known");
    assert!((account.energy_j - energy).abs() < 1.0, "{} and {energy}", account.energy_j);

    // The daemon dies and comes back; the job is still suspended and planned.
    let mut world = world.kill().await;
    world.pass(10.0).await;
    let view = world.view(&id).await;
    assert_eq!((view.phase, view.wanted), (Some(Phase::Suspended), Some(Wanted::Suspend)), "{view:#?}");

    let mut wanted = Wanted::Suspend;
    for _ in 0..100 {
        world.pass(300.0).await;
        wanted = world.lease(&id).await.wanted;
        if wanted == Wanted::Run {
            break;
        }
    }
    let now = world.clock.utc();
    assert!(wanted == Wanted::Run && now >= hour(5) && now <= hour(7), "{wanted:?} at {now}");
    world.controller.begin(&id, Caller::Local, None).await.expect("resumes");
    assert_eq!(world.gpu(0).owner, Some(id.to_string()));
    let view = world.view(&id).await;
    let away = (world.clock.utc() - left_at).as_seconds_f64();
    assert!((view.active_s - before.active_s - away).abs() < 60.0, "time suspended counts: {view:#?}");
    let last = view.samples.expect("reported");
    // It restarts for 100 s, from its checkpoint, some samples back.
    world.pass(100.0).await;
    let redone = ProgressReport::new(Samples::new(last - 1000.0), Some(Seconds::new(5.0)));
    world.controller.progress(&id, redone).await.expect("work is done again");
    assert_eq!(world.view(&id).await.samples, Some(last));
    let on = ProgressReport::new(Samples::new(last + 1000.0), Some(Seconds::new(10.0)));
    world.pass(5.0).await;
    world.controller.progress(&id, on).await.expect("goes on");
    let view = world.view(&id).await;
    let learned = view.suspend.expect("offered");
    assert!(learned.stops == 1 && learned.restart_s > 105.0 && learned.restart_s < 180.0, "{learned:#?}");
    assert!(view.warnings.is_empty(), "{:?}", view.warnings);
    world.controller.end(&id, Caller::Local).await.expect("ended");
    world.verify().await;
}

#[tokio::test]
async fn a_job_that_ignores_the_request_loses_nothing() {
    let mut world = World::start(sunny).await;
    let id = world.register(suspendable()).await;
    world.train(0, true);
    until_asked(&mut world, &id).await;
    let mut asked = 0;
    for _ in 0..60 {
        world.pass(60.0).await;
        let reported = world.report(&id, 0).await;
        asked += u32::from(reported.wanted == Wanted::Suspend);
    }
    assert!(asked < 30, "it is asked for {asked} minutes");
    let view = world.view(&id).await;
    assert!(view.warnings.iter().any(|w| w.contains("did not")), "{view:#?}");
    assert_eq!((view.phase, view.wanted), (Some(Phase::Planned), Some(Wanted::Run)));
    assert_eq!(view.broken_promises, 0);
}

#[tokio::test]
async fn a_wall_clock_that_is_set_does_not_end_a_request_to_suspend() {
    let mut world = World::start(sunny).await;
    let id = world.register(suspendable()).await;
    world.train(0, true);
    until_asked(&mut world, &id).await;
    world.pass(60.0).await;
    // By more than the time after which a job counts as unable to suspend.
    world.clock.jump(TimeDelta::minutes(20));
    for _ in 0..3 {
        world.pass(10.0).await;
        let reported = world.report(&id, 0).await;
        assert_eq!(reported.wanted, Wanted::Suspend, "{reported:#?}");
    }
    world.train(0, false);
    world.controller.suspended(&id, Caller::Local).await.expect("suspended");
    let view = world.view(&id).await;
    assert!(!view.warnings.iter().any(|warning| warning.contains("did not")), "{view:#?}");
    // The median of the stated 60 s and of the 90 s that it took.
    let learned = view.suspend.expect("offered").checkpoint_s;
    assert!((60.0..=90.0).contains(&learned), "{learned}");
}

#[tokio::test]
async fn only_a_job_that_offered_it_is_suspended() {
    let mut world = World::start(sunny).await;
    let id = world.register(support::job("plain", 0.03)).await;
    let refused = world.controller.suspended(&id, Caller::Local).await.expect_err("not offered");
    assert!(matches!(&refused, ControlError::Conflict(why) if why.contains("did not offer")), "{refused}");
    let begun = world.controller.begin(&id, Caller::Local, None).await.expect("nothing to do");
    assert_eq!((begun.phase, begun.wanted), (Phase::Waiting, Wanted::Run));
    let mut unbound = suspendable();
    unbound.objective = Objective::UNBOUND;
    let refused = world.controller.register(unbound).await.expect_err("no promise");
    assert!(refused.to_string().contains("needs max_slowdown or a deadline"), "{refused}");
}
