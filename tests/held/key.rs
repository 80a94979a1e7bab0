//! Keys: the same command takes a job up again after its starter has died.

use wattune::controller::{Caller, ControlError, Wanted};
use wattune_core::domain::{JobKey, Work};

use super::*;

fn keyed(hours: f64) -> NewJob {
    let mut new = held("keyed", hours);
    new.offers.key = Some(JobKey::new("nightly").expect("a key"));
    new.work = Work::TotalSamples(samples(1.0));
    new
}

#[tokio::test]
async fn a_lapsed_job_is_taken_up_with_its_request_and_its_latest_start() {
    let mut world = World::start(sunny).await;
    let first = world.register(keyed(12.0)).await;
    let refused = world.controller.register(keyed(12.0)).await.expect_err("open");
    let ControlError::KeyTaken(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains(first.as_str()) && why.contains("replaces"), "{why}");
    let replacing = NewJob { replaces: Some(first.clone()), ..keyed(12.0) };
    let replaced = first;
    let first = world.register(replacing).await;
    assert_eq!(
        world.view(&first).await.continues,
        Some(replaced.to_string()),
        "a dead starter's job is taken up at once"
    );

    world.controller.begin(&first, Caller::Local, None).await.expect("begins");
    world.train(0, true);
    world.train_until(&first, 0, Phase::Planned).await;
    let done = world.view(&first).await.samples.expect("reported");
    world.train(0, false);
    // The machine reboots: no report comes for longer than the lease, and a daemon starts again.
    world.clock.advance(Seconds::new(5000.0));
    let mut world = world.kill().await;
    for _ in 0..100 {
        world.pass(10.0).await;
    }
    assert_eq!(world.view(&first).await.end_reason.as_deref(), Some("lease expired"));

    let again = world.register(keyed(12.0)).await;
    let view = world.view(&again).await;
    assert_eq!(view.continues, Some(first.to_string()));
    let start = view.start.expect("held");
    assert_eq!((start.asked_at, start.latest_start), (begin(), hour(12)), "both are inherited");
    assert!(view.wanted == Some(Wanted::Hold), "{:?}", view.wanted);
    assert!(done > 0.0);
    // A scheduler takes a held job back to its queue; a job that its owner ends while it runs is not taken up.
    world.controller.end(&again, Caller::Local).await.expect("ended");
    let requeued = world.register(keyed(12.0)).await;
    assert_eq!(world.view(&requeued).await.continues, Some(again.to_string()));
    world.controller.begin(&requeued, Caller::Local, None).await.expect("begins");
    world.controller.end(&requeued, Caller::Local).await.expect("ended");
    let anew = world.register(keyed(12.0)).await;
    let view = world.view(&anew).await;
    assert_eq!((view.continues, view.key.as_deref()), (None, Some("nightly")));
    world.verify().await;
}
