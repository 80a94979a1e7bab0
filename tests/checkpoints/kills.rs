//! Whose energy it is, and what is lost, when a daemon is killed.

use super::*;

#[tokio::test]
async fn a_job_keeps_its_energy_over_kills_within_its_lease() {
    for (lease_s, away_s, kills) in [(10.0, 0.3, 1), (10.0, 0.3, 5), (60.0, 30.0, 2), (2.0, 0.5, 3), (1.0, 0.3, 3)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", lease_s, true)).await;
        for _ in 0..kills {
            world.run(&mut controller, 47, &[&id]).await;
            drop(controller);
            world.pass(away_s);
            controller = world.daemon().await;
        }
        world.run(&mut controller, 3, &[&id]).await;
        let (_, reported) = controller.metered(&id).await.expect("known");
        let expected = f64::from(kills) * (47.0 + away_s) + 3.0;
        close((reported.get() * 1e3) as i64, expected, 0.01);
        controller.shut_down().await;
        assert_eq!((world.recorded("unattributed").await, world.lost().await), (0, Vec::new()), "lease {lease_s}");
        close(world.recorded(id.as_str()).await, expected, 0.01);
    }
}

#[tokio::test]
async fn jobs_on_one_gpu_share_what_a_kill_leaves() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    let a = register(&mut controller, job("a", 10.0, true)).await;
    let b = register(&mut controller, job("b", 10.0, false)).await;
    let gone = register(&mut controller, job("gone", 10.0, false)).await;
    world.run(&mut controller, 20, &[&a, &b, &gone]).await;
    controller.end(&gone, Caller::Local).await.expect("ended");
    world.run(&mut controller, 20, &[&a, &b]).await;
    // One that ends right before the kill keeps what it had, and gets no more.
    let late = register(&mut controller, job("late", 10.0, false)).await;
    world.run(&mut controller, 9, &[&a, &b, &late]).await;
    controller.end(&late, Caller::Local).await.expect("ended");
    drop(controller);
    world.pass(1.0);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 5, &[&a, &b]).await;
    controller.shut_down().await;
    for (id, seconds) in [(&gone, 20.0 / 3.0), (&late, 3.0)] {
        close(world.recorded(id.as_str()).await, seconds, 0.01);
    }
    for id in [&a, &b] {
        close(world.recorded(id.as_str()).await, 20.0 / 3.0 + 10.0 + 3.0 + 3.0, 0.01);
    }
    assert_eq!(world.recorded("unattributed").await, 0);
}

#[tokio::test]
async fn what_a_gpu_used_before_the_kill_is_whose_it_was_then() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    // No job has the GPU, then one that ends.
    world.run(&mut controller, 30, &[]).await;
    let id = register(&mut controller, job("short", 10.0, true)).await;
    world.run(&mut controller, 10, &[&id]).await;
    controller.end(&id, Caller::Local).await.expect("ended");
    world.run(&mut controller, 10, &[]).await;
    drop(controller);
    world.pass(2.0);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 1, &[]).await;
    controller.shut_down().await;
    close(world.recorded(id.as_str()).await, 10.0, 0.01);
    close(world.recorded("idle").await, 41.0, LOST_S as f64);
    close(world.recorded("unattributed").await, 2.0, LOST_S as f64);
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 43 * DRAW_MW);
}

#[tokio::test]
async fn beyond_its_lease_a_job_has_what_it_used_before_the_kill() {
    for (silent_s, away_s) in [(0, 11.0), (0, 300.0), (7, 6.0)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("gone", 10.0, true)).await;
        world.run(&mut controller, 47, &[&id]).await;
        world.run(&mut controller, silent_s, &[]).await;
        drop(controller);
        world.pass(away_s);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 11, &[]).await;
        controller.shut_down().await;
        let all =
            world.recorded(id.as_str()).await + world.recorded("unattributed").await + world.recorded("idle").await;
        assert_eq!(all, ((58.0 + f64::from(silent_s) + away_s) * DRAW_MW as f64) as i64);
        // The new daemon waits for it for as long as its lease is.
        let its = 47.0 + f64::from(silent_s) + 10.5;
        close(world.recorded(id.as_str()).await, its, LOST_S as f64);
        close(world.recorded("unattributed").await, away_s, LOST_S as f64);
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_meanwhile_changes_nobodys_share() {
    for jump in [-7_200, -3, 3, 3_600] {
        for while_away in [false, true] {
            let mut world = World::new(json!({}));
            let mut controller = world.daemon().await;
            let id = register(&mut controller, job("live", 10.0, true)).await;
            world.run(&mut controller, 40, &[&id]).await;
            if !while_away {
                world.clock.jump(TimeDelta::seconds(jump));
                world.run(&mut controller, 7, &[&id]).await;
            }
            drop(controller);
            if while_away {
                world.clock.jump(TimeDelta::seconds(jump));
            }
            world.pass(1.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 5, &[&id]).await;
            controller.shut_down().await;
            let expected = if while_away { 46.0 } else { 53.0 };
            close(world.recorded(id.as_str()).await, expected, 0.01);
            assert_eq!(world.recorded("unattributed").await, 0, "{jump} s, {while_away}");
        }
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_years_ahead_meanwhile_makes_no_gap_of_years() {
    for has_counter in [true, false] {
        let mut world = World::new(json!({"energy_supported": has_counter}));
        let mut controller = world.daemon().await;
        world.run(&mut controller, 40, &[]).await;
        drop(controller);
        world.clock.jump(TimeDelta::days(20 * 365));
        world.pass(10.0);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 2, &[]).await;
        controller.shut_down().await;
        let rows = LedgerFile::open(world.state.path()).of(0).0;
        let gap: Vec<_> = rows.iter().filter(|r| r.source == "counter_gap").collect();
        let lost = world.lost().await;
        let seconds = if has_counter {
            assert!((1..=2).contains(&gap.len()), "cut at a full hour at most: {} rows", gap.len());
            assert_eq!(rows.iter().map(|r| r.energy_mj).sum::<i64>(), 52 * DRAW_MW);
            (gap[gap.len() - 1].end_us - gap[0].start_us) as f64 / 1e6
        } else {
            assert_eq!((gap.len(), lost.len()), (0, 1), "{lost:#?}");
            (lost[0].until - lost[0].from).as_seconds_f64()
        };
        assert!((9.9..10.0 + LOST_S as f64).contains(&seconds), "{seconds} s");
    }
}

#[tokio::test]
async fn a_job_that_came_right_before_the_kill_has_what_it_used() {
    for jump in [0, 3_600] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        world.run(&mut controller, 40, &[]).await;
        world.pass(0.5);
        let id = register(&mut controller, job("late", 10.0, true)).await;
        world.pass(0.5);
        drop(controller);
        world.clock.jump(TimeDelta::seconds(jump));
        world.pass(4.0);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 3, &[&id]).await;
        controller.shut_down().await;
        let its = world.recorded(id.as_str()).await;
        close(its, 7.5 + 0.25, 2.3);
        assert!(its >= 7_500 * DRAW_MW / 1000 - 1, "{its}");
        assert_eq!(its + world.recorded("idle").await + world.recorded("unattributed").await, 48 * DRAW_MW);
    }
}

#[tokio::test]
async fn a_counter_that_is_reset_meanwhile_is_said_and_nothing_is_recorded_twice() {
    let mut world = World::new(json!({"initial_energy_j": 5_000}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    world.run(&mut controller, 47, &[&id]).await;
    drop(controller);
    world.pass(1.0);
    world.set(json!({"energy_resets": 1}));
    world.pass(0.1);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 5, &[&id]).await;
    controller.shut_down().await;
    let recorded = world.recorded(id.as_str()).await;
    assert!(recorded <= 53_100 * DRAW_MW / 1000, "{recorded}");
    close(recorded, 52.0, LOST_S as f64);
    let lost = world.lost().await;
    assert_eq!(lost.len(), 1, "{lost:#?}");
    assert!(lost[0].why.contains("reset"), "{lost:#?}");
}

#[tokio::test]
async fn without_a_counter_a_kill_loses_seconds_and_says_so() {
    let mut world = World::new(json!({"energy_supported": false}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    let (kills, mut ran) = (5, 0);
    for round in 0..kills {
        let seconds = 31 + 19 * round;
        world.run(&mut controller, seconds, &[&id]).await;
        ran += i64::from(seconds);
        drop(controller);
        world.pass(0.4);
        controller = world.daemon().await;
    }
    controller.shut_down().await;
    let recorded = world.recorded(id.as_str()).await;
    assert!(
        recorded <= ran * DRAW_MW && recorded >= (ran - i64::from(kills) * LOST_S) * DRAW_MW,
        "{recorded} of {ran} s"
    );
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 0);
    let lost = world.lost().await;
    assert_eq!(lost.len(), kills as usize, "{lost:#?}");
    // Together with what is flagged, all of it is accounted for.
    let flagged: f64 = lost.iter().map(|l| (l.until - l.from).as_seconds_f64()).sum();
    close(recorded, world.elapsed - flagged, 0.5);
    for of in lost {
        assert!(!of.why.contains("was not read"), "it was read: {of:#?}");
        assert!((of.until - of.from).as_seconds_f64() <= LOST_S as f64 + 0.4, "{of:#?}");
    }
}

#[tokio::test]
async fn a_kill_right_after_the_start_is_flagged_too() {
    let mut world = World::new(json!({"energy_supported": false}));
    let mut controller = world.daemon().await;
    world.run(&mut controller, 1, &[]).await;
    drop(controller);
    world.pass(0.5);
    world.daemon().await.shut_down().await;
    let (recorded, lost) = (world.recorded("idle").await, world.lost().await);
    let flagged: f64 = lost.iter().map(|l| (l.until - l.from).as_seconds_f64()).sum();
    close(recorded, world.elapsed - flagged, 0.3);
}
