//! What the next start continues from: clean ends, failing starts, unreadable and half-written checkpoints.

use super::*;

#[tokio::test]
async fn a_clean_end_records_what_is_open_once() {
    for fields in [json!({}), json!({"energy_supported": false})] {
        let mut world = World::new(fields);
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 30.0, true)).await;
        for _ in 0..3 {
            world.run(&mut controller, 33, &[&id]).await;
            controller.shut_down().await;
            let before = world.recorded(id.as_str()).await;
            controller = world.daemon().await;
            assert_eq!(world.recorded(id.as_str()).await, before, "nothing was left open");
        }
        controller.shut_down().await;
        close(world.recorded(id.as_str()).await, 99.0, 0.3);
        assert_eq!(world.recorded("unattributed").await, 0);
    }
}

#[tokio::test]
async fn between_a_clean_end_and_a_start_energy_is_its_whose_lease_was_not_over() {
    for (away_s, its) in [(4.0, true), (40.0, false)] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 10.0, true)).await;
        world.run(&mut controller, 33, &[&id]).await;
        controller.shut_down().await;
        world.pass(away_s);
        let mut controller = world.daemon().await;
        world.run(&mut controller, 2, &[&id]).await;
        controller.shut_down().await;
        close(world.recorded(id.as_str()).await, 35.0 + if its { away_s } else { 0.0 }, 0.01);
        close(world.recorded("unattributed").await, if its { 0.0 } else { away_s }, 0.01);
    }
}

#[tokio::test]
async fn what_was_left_open_is_recorded_once_however_often_a_start_fails() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    let id = register(&mut controller, job("live", 30.0, true)).await;
    world.run(&mut controller, 47, &[&id]).await;
    drop(controller);
    let store = Store::open_read_only(world.state.path()).await.expect("opens");
    store.verify(Verifier::default()).await.expect("read").expect("in order with what is open beside it");
    store.close().await;
    let mut recorded = Vec::new();
    for _ in 0..3 {
        let store = Store::open(world.state.path()).await.expect("opens");
        let taken = store.recover_open_intervals().await.expect("taken up");
        assert!(taken.last_seen.is_some_and(|seen| seen.leases.contains_key(&id)));
        store.close().await;
        recorded.push(world.recorded(id.as_str()).await);
    }
    close(recorded[0], 47.0, 2.0);
    assert_eq!(recorded[1..], [recorded[0], recorded[0]]);
    let mut controller = world.daemon().await;
    world.run(&mut controller, 3, &[&id]).await;
    controller.shut_down().await;
    close(world.recorded(id.as_str()).await, 50.0, 0.01);
    assert_eq!(world.lost().await, []);
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_read_costs_no_start_and_no_joule_of_a_counter() {
    let mut world = World::new(json!({}));
    let mut controller = world.daemon().await;
    world.run(&mut controller, 47, &[]).await;
    let store = controller.store();
    drop(controller);
    store.close().await;
    let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
    assert_eq!(db.execute("UPDATE open_books SET line = 'nonsense'", []).expect("spoilt"), 1);
    db.execute("UPDATE last_seen SET line = '{}'", []).expect("spoilt");
    drop(db);
    world.pass(1.0);
    world.daemon().await.shut_down().await;
    assert_eq!(world.recorded("idle").await + world.recorded("unattributed").await, 48 * DRAW_MW);
}

#[tokio::test]
async fn whatever_ends_daemons_when_no_joule_is_recorded_twice() {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;
    for seed in 0..6 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::new(json!({"initial_energy_j": 77.7}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 20.0, true)).await;
        let mut guest = None;
        for _ in 0..12 {
            match random.random_range(0..4) {
                0 if guest.is_none() => guest = Some(register(&mut controller, job("guest", 20.0, false)).await),
                1 => {
                    if let Some(id) = guest.take() {
                        controller.end(&id, Caller::Local).await.expect("ended");
                    }
                }
                2 => world.clock.jump(TimeDelta::milliseconds(random.random_range(-5_000_000..5_000_000))),
                _ => {}
            }
            let jobs: Vec<&JobId> = [&id].into_iter().chain(&guest).collect();
            world.run(&mut controller, random.random_range(0..130), &jobs).await;
            match random.random_range(0..3) {
                0 => drop(controller.shut_down().await),
                _ => drop(controller),
            }
            world.pass(random.random_range(0.0..4.0));
            controller = world.daemon().await;
        }
        controller.shut_down().await;
        assert_eq!(world.lost().await, [], "seed {seed}");
        let (rows, checkpoint) = LedgerFile::open(world.state.path()).of(0);
        let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
        assert_eq!(recorded, checkpoint.expect("there") - 77_700, "seed {seed}");
        // Within every lease: nobody's is only what came before the first job.
        let nobodys: i64 = rows.iter().filter(|r| r.job.is_none()).map(|r| r.energy_mj).sum();
        assert_eq!(nobodys, 0, "seed {seed}: {rows:#?}");
    }
}

#[tokio::test]
async fn a_kill_while_a_checkpoint_is_written_leaves_the_one_before_or_all_of_it() {
    let still = json!({"demand_w": 0, "initial_energy_j": 5_000});
    let driver = Arc::new(FakeDriver::new(&[still, json!({"energy_supported": false})]));
    let state = tempfile::tempdir().expect("a directory");
    // Written at every tick, so that kills meet it.
    let settings = "[control]\nobserve = true\ntick_s = 0.05\ncheckpoint_s = 0.1\n";
    let start = || Daemon::command_set(&driver, state.path(), settings);
    let mut daemon = Daemon::start(start(), state.path()).await;
    let ledger = LedgerFile::open(state.path());
    eventually("the first look", LONG, async || ledger.of(0).1).await;
    driver.set(0, json!({"demand_w": 250}));
    let new = json!({"name": "live", "gpus": [0, 1], "work": {"total_samples": 1e9}, "lease_s": 60});
    let id = daemon.register(&new).await;
    for round in 0..8_u64 {
        tokio::time::sleep(Duration::from_millis(250 + 137 * round % 500)).await;
        daemon.kill();
        let store = Store::open_read_only(state.path()).await.expect("opens");
        store.verify(Verifier::default()).await.expect("read").expect("in order");
        store.close().await;
        daemon = Daemon::start(start(), state.path()).await;
    }
    assert!(daemon.stop("TERM").await.success());
    let (rows, checkpoint) = ledger.of(0);
    let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
    assert_eq!(recorded, checkpoint.expect("there") - 5_000_000, "{rows:#?}");
    // Only what was drawn right before the job came is nobody's.
    let first = rows.iter().position(|r| r.job.is_some()).expect("its energy");
    assert!(rows[first..].iter().all(|r| r.job.as_deref() == Some(&id)), "{rows:#?}");
    assert!(rows[..first].iter().all(|r| r.end_us < rows[0].start_us + 1_000_000), "{rows:#?}");
    // What was integrated does not overlap, either.
    let rows = ledger.of(1).0;
    assert!(rows.windows(2).all(|w| w[1].start_us >= w[0].end_us), "{rows:#?}");
}

#[tokio::test]
async fn a_killed_daemon_in_real_time_keeps_a_live_jobs_energy() {
    let driver = Arc::new(FakeDriver::new(&[json!({"demand_w": 250}), json!({"energy_supported": false})]));
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\nobserve = true\n";
    let start = || Daemon::command_set(&driver, state.path(), settings);
    let daemon = Daemon::start(start(), state.path()).await;
    let new = json!({"name": "live", "gpus": [0, 1], "work": {"total_samples": 1e9}, "lease_s": 10});
    let id = daemon.register(&new).await;
    let begun = driver.counter_j(0);
    let training = support::Training::start_at(daemon.base(), &id, &driver, |_| 100.0, 0.0);
    tokio::time::sleep(Duration::from_secs(14)).await;
    daemon.kill();
    let killed = driver.counter_j(0);
    let daemon = Daemon::start(start(), state.path()).await;
    training.report_to(daemon.base());
    let ledger = LedgerFile::open(state.path());
    let of_job = async |gpu| -> i64 {
        let rows = ledger.of(gpu).0;
        rows.iter().filter(|r| r.job.as_deref() == Some(&id)).map(|r| r.energy_mj).sum()
    };
    eventually("the gap's energy", LONG, async || {
        (of_job(0).await as f64 / 1e3 >= (killed - begun) * 0.98).then_some(())
    })
    .await;
    let seen = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(seen["samples"].as_f64().expect("reported") >= 900.0, "the last report is known: {seen}");
    assert!(of_job(1).await as f64 / 260e3 >= 14.0 - LOST_S as f64, "{:?}", ledger.of(1));
    training.stop().await;
    assert!(daemon.stop("TERM").await.success());
    let rows = ledger.of(0).0;
    let nobodys: i64 = rows.iter().filter(|r| r.share == "unattributed").map(|r| r.energy_mj).sum();
    assert_eq!(nobodys, 0, "{rows:#?}");
}
