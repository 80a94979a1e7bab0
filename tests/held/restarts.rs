//! Jobs that train on while the daemon is killed and started again.

use wattune::controller::Caller;
use wattune_core::domain::{DemandResponse, EventId, Level, Objective, Work};

use super::*;

/// Passes time without a report, while the job's processes renew its lease.
async fn wait(world: &mut World, id: &JobId, seconds: u32) {
    for _ in 0..seconds / 10 {
        world.pass(10.0).await;
        world.lease(id).await;
    }
}

#[tokio::test]
async fn a_job_that_reports_seldom_does_not_count_as_standing_still_after_a_restart() {
    let mut world = World::start(sunny).await;
    let objective = Objective { deadline: Some(begin() + TimeDelta::minutes(246)), ..Objective::UNBOUND };
    let (work, lease) = (Work::TotalSamples(samples(4.0)), Some(Seconds::new(600.0)));
    let id = world.register(NewJob { work, objective, lease, ..support::job("seldom", 0.0) }).await;
    world.train(0, true);
    world.train_until(&id, 0, Phase::Planned).await;
    // Reports that are twice as far apart as the lease is long.
    for _ in 0..3 {
        wait(&mut world, &id, 1200).await;
        world.report(&id, 0).await;
    }
    wait(&mut world, &id, 300).await;
    let mut world = world.kill().await;
    for _ in 0..3 {
        for _ in 0..4 {
            wait(&mut world, &id, 300).await;
            let view = world.view(&id).await;
            assert!(view.warnings.is_empty(), "{view:#?}");
        }
        world.report(&id, 0).await;
    }
}

#[tokio::test]
async fn a_job_that_is_measured_up_to_a_cap_goes_on_below_it_after_a_restart() {
    let mut world = World::start(sunny).await;
    let from = world.clock.utc();
    // The other GPU keeps its lowest limit of 100 W.
    let event = DemandResponse {
        id: EventId::new("cap").expect("an id"),
        slot: Slot::new(from, from + TimeDelta::minutes(90)).expect("some time"),
        target: Level::Watts(Watts::new(250.0)),
        notice: None,
        ramp: Seconds::ZERO,
        rebound: None,
    };
    world.controller.announce(event, Caller::Local).await.expect("announced");
    let (work, lease) = (Work::TotalSamples(samples(8.0)), Some(Seconds::new(3600.0)));
    let id = world.register(NewJob { work, lease, ..support::job("capped", 0.05) }).await;
    world.train(0, true);
    world.train_until(&id, 0, Phase::Planned).await;
    let is_lowered = |view: &JobView| view.warnings.iter().any(|warning| warning.contains("measured up to 150 W"));
    // So little of the cap is left that a sweep that begins now waits for its end.
    while world.clock.utc() < from + TimeDelta::minutes(50) {
        world.pass(60.0).await;
        world.report(&id, 0).await;
    }
    let view = world.view(&id).await;
    assert!(is_lowered(&view), "{view:#?}");
    let mut world = world.kill().await;
    for _ in 0..5 {
        world.pass(1.0).await;
        world.report(&id, 0).await;
        let view = world.view(&id).await;
        assert!(is_lowered(&view) && view.phase == Some(Phase::Planned), "{view:#?}");
    }
    // The higher limits are measured once the cap has ended.
    while world.clock.utc() < from + TimeDelta::minutes(91) {
        world.pass(60.0).await;
        world.report(&id, 0).await;
    }
    assert!(!is_lowered(&world.view(&id).await));
    world.train_until(&id, 0, Phase::Planned).await;
    let profile = world.controller.profile_of(&id).await.expect("known");
    assert_eq!(profile.points[0].power_limits_w, [300.0]);
}
