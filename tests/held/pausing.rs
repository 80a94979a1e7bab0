//! A job that pauses on its GPU: it waits for noon, over a restart of the daemon.

use chrono::{DateTime, TimeDelta, Utc};
use wattune::controller::ControlError;
use wattune::controller::view::{JobView, ProgressView};
use wattune_core::domain::{Objective, Pausing, Work};

use super::*;

/// Clean from ten to four, more so than [`sunny`].
fn bright(h: i64) -> f64 {
    if sunny(h) < 300.0 { 100.0 } else { 500.0 }
}

/// A job that pauses when it is asked to.
struct Waiting {
    world: World,
    job: JobId,
}

impl Waiting {
    /// Six hours of work at the most, within sixteen.
    async fn start() -> Self {
        let mut world = World::start(bright).await;
        world.train(0, true);
        let objective = Objective {
            deadline: Some(hour(16)),
            pausable: Some(Pausing { idle_power: Watts::new(25.0), ..Pausing::default_for(1) }),
            ..Objective::UNBOUND
        };
        let work = Work::TotalSamples(samples(5.5));
        let job = world
            .register(NewJob { work, objective, lease: Some(Seconds::new(600.0)), ..support::job("patient", 0.0) })
            .await;
        Self { world, job }
    }

    /// Time passes; the job does what the answer says.
    async fn step(&mut self, span: f64) -> ProgressView {
        self.world.pass(span).await;
        let reported = self.world.report(&self.job, 0).await;
        self.world.train(0, reported.phase != Phase::Paused);
        self.world.controller.tick().await;
        reported
    }

    /// Passes time until this phase: a second at a time while the job is profiled.
    async fn until(&mut self, phase: Phase) -> ProgressView {
        for _ in 0..20_000 {
            let profiling = matches!(self.view().await.phase, Some(Phase::Waiting | Phase::Profiling));
            let reported = self.step(if profiling { 1.0 } else { 60.0 }).await;
            if reported.phase == phase {
                return reported;
            }
        }
        panic!("never {phase:?}: {:#?}", self.view().await)
    }

    async fn view(&self) -> JobView {
        self.world.view(&self.job).await
    }
}

#[tokio::test]
async fn it_waits_for_noon_and_over_a_restart() {
    let mut waiting = Waiting::start().await;
    let reported = waiting.until(Phase::Paused).await;
    let ten: DateTime<Utc> = "2025-06-01T10:00:00Z".parse().expect("a moment");
    assert_eq!(reported.resume_at, Some(ten), "{reported:#?}");
    assert!(reported.reason.starts_with("Paused: "), "{}", reported.reason);
    assert!(reported.warnings.is_empty(), "{:?}", reported.warnings);
    let profile = waiting.world.controller.profile_of(&waiting.job).await.expect("a profile");
    let lowest = profile.points.iter().map(|p| p.power_limits_w[0]).fold(f64::INFINITY, f64::min);
    assert_eq!(reported.power_limit_w, Some(lowest));
    let plan = waiting.world.controller.plan_of(&waiting.job).expect("a plan");
    let doings: Vec<_> = plan.segments.iter().map(|s| s.activity.as_str()).collect();
    assert!(plan.applied && doings.starts_with(&["paused"]) && doings.contains(&"resuming"), "{doings:?}");

    let before = waiting.view().await;
    for _ in 0..6 {
        let reported = waiting.step(600.0).await;
        assert_eq!((reported.phase, reported.resume_at), (Phase::Paused, Some(ten)));
    }
    let after = waiting.view().await;
    assert_eq!(after.stalled_s, before.stalled_s, "waiting as asked is no stall");
    assert!((after.active_s - before.active_s - 3600.0).abs() < 1.0, "{} to {}", before.active_s, after.active_s);
    assert!(after.slowdown > before.slowdown, "it counts");
    let again = waiting.world.controller.profile_of(&waiting.job).await.expect("a profile");
    assert_eq!(format!("{:?}", again.points), format!("{:?}", profile.points), "nothing is learned from a pause");

    // The next daemon knows that it pauses, and since when.
    let mut waiting = Waiting { world: waiting.world.restart().await, job: waiting.job };
    let reported = waiting.step(60.0).await;
    assert_eq!((reported.phase, reported.resume_at), (Phase::Paused, Some(ten)), "{reported:#?}");

    let reported = waiting.until(Phase::Planned).await;
    let late = waiting.world.clock.utc() - ten;
    assert!(reported.resume_at.is_none() && late >= TimeDelta::zero() && late < TimeDelta::minutes(1), "{late}");
    let reported = waiting.until(Phase::Observing).await;
    assert!(reported.reason.contains("All samples are done"), "{}", reported.reason);
    let (now, deadline) = (waiting.world.clock.utc(), hour(16));
    assert!(now <= deadline && now > ten + TimeDelta::hours(4), "{now}");
}

#[tokio::test]
async fn work_that_goes_on_all_the_same_counts() {
    let mut waiting = Waiting::start().await;
    waiting.until(Phase::Paused).await;
    let before = waiting.view().await;
    waiting.world.train(0, true);
    let done = |view: &JobView| view.samples.expect("reported");
    for _ in 0..10 {
        waiting.world.clock.advance(Seconds::new(60.0));
        waiting.world.controller.tick().await;
        waiting.world.report(&waiting.job, 0).await;
    }
    let after = waiting.view().await;
    assert!(done(&after) > done(&before) + 600.0 * 100.0);
    assert!((after.active_s - before.active_s - 600.0).abs() < 1.0);
    let plan = waiting.world.controller.plan_of(&waiting.job).expect("a plan");
    let planned: f64 = plan.segments.iter().map(|s| s.samples_per_s * (s.end - s.start).as_seconds_f64()).sum();
    let total = 400.0 * 5.5 * 3600.0;
    assert!((planned + done(&after) - total).abs() < 0.02 * total, "{planned} after {}", done(&after));
}

#[tokio::test]
async fn a_price_weight_needs_prices() {
    let mut waiting = Waiting::start().await;
    let asked = Objective { price_weight: 0.5, ..Objective::DEFAULT };
    let refused = waiting
        .world
        .controller
        .register(NewJob { objective: asked, ..support::job("patient", 0.0) })
        .await
        .expect_err("refused");
    let ControlError::Invalid(invalid) = refused else { panic!("{refused:?}") };
    assert_eq!(invalid.field, "objective.price_weight");
    assert!(invalid.why.contains("set source in [price]"), "{}", invalid.why);
}
