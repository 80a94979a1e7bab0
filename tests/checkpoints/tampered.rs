//! Checkpoints and intervals that somebody changed between two daemons.

use super::*;

/// Changes the database between two daemons.
fn change(world: &World, statements: &[&str]) {
    let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
    for statement in statements {
        assert!(db.execute(statement, []).expect("done") > 0, "{statement} changes nothing");
    }
}

/// What verification of the state directory says is wrong.
async fn wrong(world: &World) -> Option<String> {
    let store = Store::open_read_only(world.state.path()).await.expect("opens");
    let found = store.verify(Verifier::default()).await.expect("read");
    store.close().await;
    found.err().map(|wrong| wrong.to_string())
}

#[tokio::test]
async fn a_checkpoint_that_was_changed_is_not_continued_from() {
    for (statement, is_killed) in [
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000", false),
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000", true),
        ("UPDATE checkpoints SET counter_mj = counter_mj - 4000000, base_mj = base_mj - 4000000, hash = NULL", false),
        ("UPDATE checkpoints SET at_us = at_us - 3600000000", false),
        ("UPDATE checkpoints SET holders = '[]'", false),
        ("UPDATE checkpoints SET hash = NULL", true),
        ("UPDATE checkpoints SET device = 'GPU-other'", false),
        ("DELETE FROM checkpoints", false),
        ("DELETE FROM checkpoints", true),
    ] {
        let mut world = World::new(json!({"initial_energy_j": 50_000}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 60.0, true)).await;
        world.run(&mut controller, 90, &[&id]).await;
        let store = controller.store();
        match is_killed {
            true => drop(controller),
            false => drop(controller.shut_down().await),
        }
        store.close().await;
        change(&world, &[statement]);
        assert!(wrong(&world).await.is_some_and(|why| why.starts_with("table checkpoints, row of device ")));
        let before = world.recorded(id.as_str()).await;
        for _ in 0..2 {
            world.pass(3.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 10, &[&id]).await;
            controller.shut_down().await;
        }
        // The three seconds before the first of these starts are unknown, those before the second are not.
        let since = world.recorded(id.as_str()).await - before;
        close(since, 23.0, 1.1);
        let lost = world.lost().await;
        let gpu = FakeDriver::uuid(0);
        let of_gpu: Vec<&Lost> = lost.iter().filter(|lost| lost.device.as_str() == gpu).collect();
        assert_eq!(of_gpu.len(), 1, "{statement}: {lost:?}");
        assert!(
            of_gpu[0].why.contains("the database was changed by another program: its checkpoint "),
            "{statement}: {lost:?}"
        );
        assert!(of_gpu[0].until - of_gpu[0].from >= TimeDelta::seconds(3), "{statement}: {lost:?}");
    }
}

#[tokio::test]
async fn intervals_that_were_changed_since_the_last_close_stay_reported() {
    for (statements, place, kept_s) in [
        (&["DELETE FROM intervals", "DELETE FROM checkpoints"][..], "table checkpoints, row of device ", 21.0),
        (&["DELETE FROM intervals"], "table open_block", 34.0),
        (&["DELETE FROM intervals WHERE id = (SELECT MAX(id) FROM intervals)"], "table open_block", 34.0),
        (&["UPDATE intervals SET energy_mj = energy_mj * 2, hash = NULL"], "ledger", 34.0),
        (&["UPDATE intervals SET energy_mj = energy_mj * 2"], "line ", 34.0),
        (&["DELETE FROM open_block"], "table open_block", 34.0),
        (&["UPDATE open_block SET line = replace(line, '\"rows\":', '\"rows\":1')"], "table open_block", 34.0),
    ] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let id = register(&mut controller, job("live", 60.0, true)).await;
        world.run(&mut controller, 130, &[&id]).await;
        let store = controller.store();
        drop(controller);
        store.close().await;
        assert_eq!(wrong(&world).await, None);
        change(&world, statements);
        let reported = wrong(&world).await.unwrap_or_else(|| panic!("{statements:?} goes unseen"));
        assert!(reported.starts_with(place), "{statements:?}: {reported}");
        let before = world.recorded(id.as_str()).await;
        for _ in 0..2 {
            world.pass(1.0);
            let mut controller = world.daemon().await;
            world.run(&mut controller, 10, &[&id]).await;
            controller.shut_down().await;
        }
        // What was open beside the intervals continues from the checkpoint.
        close(world.recorded(id.as_str()).await - before, kept_s, 1.1);
        // Rows cannot be made good; a new record can, and the ledger says that it is new.
        assert_eq!(wrong(&world).await.is_none(), statements[0].contains("open_block"), "{statements:?}");
        let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
        let sql = "SELECT COUNT(*) FROM ledger WHERE kind = 'lost' AND line LIKE '%\"why\":\"the database was changed by another program: %close%'";
        let noted: i64 = db.query_row(sql, [], |row| row.get(0)).expect("counted");
        assert_eq!(noted, 1, "{statements:?}: once for the device, not at each start");
    }
}

#[tokio::test]
async fn an_unreadable_row_is_set_aside_and_everything_else_works() {
    for (statement, is_of_job) in [
        ("UPDATE jobs SET progress = 'x' WHERE id = ?1", true),
        ("UPDATE jobs SET spec = replace(spec, '\"lease\":60.0', '\"lease\":1e300') WHERE id = ?1", true),
        ("INSERT INTO demand_response VALUES ('odd', '{}', 9000000000000000 + 0 * length(?1))", false),
    ] {
        let mut world = World::new(json!({}));
        let mut controller = world.daemon().await;
        let live = register(&mut controller, job("live", 60.0, true)).await;
        let odd = register(&mut controller, job("odd", 60.0, false)).await;
        world.run(&mut controller, 65, &[&live, &odd]).await;
        controller.shut_down().await;
        let db = Connection::open(world.state.path().join("wattune.db")).expect("opens");
        assert_eq!(db.execute(statement, [odd.as_str()]).expect("done"), 1);
        drop(db);
        let mut controller = world.daemon().await;
        let status = controller.status();
        let named = if is_of_job { odd.as_str() } else { "demand-response event odd" };
        let problems: Vec<&String> = status.problems.iter().filter(|p| p.contains("is ignored")).collect();
        assert!(problems.len() == 1 && problems[0].contains(named), "{statement}: {:?}", status.problems);
        world.run(&mut controller, 5, &[&live]).await;
        controller.shut_down().await;
        let reported = crate::report::report(world.state.path(), &["--from", "2026-01-01", "--by", "name"]);
        assert!(reported.done().contains("live"), "{reported:?}");
    }
}
