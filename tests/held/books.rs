//! Accounts of jobs that waited: the four effects, their sum, reserved GPUs, and the ledger's entries.

use wattune::controller::view::{AccountView, SavingFigures, SavingView};
use wattune::controller::{BeginReason, Caller};
use wattune::store::Store;
use wattune_core::domain::{JobKey, Work};
use wattune_core::ledger::entry::Entry;

use super::*;

fn known(account: &AccountView) -> &SavingFigures {
    match &account.savings.against_original {
        SavingView::Known(figures) => figures,
        SavingView::Unknown(why) => panic!("{}", why.unknown),
    }
}

/// Holds a job of an hour of work until its start, trains it to its end, and waits for actual intensities.
async fn held_and_trained(idle_power: Watts) -> (World, JobId) {
    let mut world = World::start(sunny).await;
    let mut new = held("patient", 12.0);
    new.work = Work::TotalSamples(samples(1.5));
    if let Some(start) = &mut new.offers.start {
        start.idle_power = idle_power;
    }
    let id = world.register(new).await;
    for _ in 0..80 {
        world.pass(600.0).await;
        if world.lease(&id).await.wanted == wattune::controller::Wanted::Run {
            break;
        }
    }
    world.controller.begin(&id, Caller::Local, Some(BeginReason::Planned)).await.expect("begins");
    world.train(0, true);
    world.train_until(&id, 0, Phase::Observing).await;
    world.train(0, false);
    world.controller.end(&id, Caller::Local).await.expect("ended");
    for _ in 0..30 {
        world.pass(600.0).await;
    }
    (world, id)
}

#[tokio::test]
async fn the_effects_of_a_later_start_add_up() {
    let (mut world, id) = held_and_trained(Watts::ZERO).await;
    let account = world.controller.account_of(&id).await.expect("an account");
    let saving = known(&account);
    let start = saving.start_effect_pct.expect("it waited");
    // It ran at 200 g/kWh instead of 500.
    assert!(start.mean > 55.0 && start.mean < 62.0, "{saving:#?}");
    let suspension = saving.suspension_effect_pct.expect("it offered to wait").mean;
    assert!(suspension.abs() < 1e-9, "{suspension}");
    let (energy, timing) = (saving.energy_effect_pct.expect("known"), saving.timing_effect_pct.expect("known"));
    let sum = start.mean + suspension + energy.mean + timing.mean;
    assert!((sum - saving.carbon_reduction_pct.mean).abs() < 1e-9, "{saving:#?}");
    assert!(!saving.provisional, "all intensities are measured by now");
    let World { controller, state, .. } = world;
    controller.shut_down().await;
    let store = Store::open_read_only(state.path()).await.expect("opens");
    let entries = store.presence_of(&id).await.expect("read");
    let [Entry::StartRequest(request), Entry::Presence(begun)] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((request.asked_at, request.latest_start), (begin(), Some(hour(12))));
    assert!(begun.at >= hour(6) && begun.why.contains("planned"), "{begun:?}");
}

#[tokio::test]
async fn the_idle_energy_of_a_reserved_gpu_is_the_jobs() {
    let (mut world, id) = held_and_trained(Watts::new(25.0)).await;
    let account = world.controller.account_of(&id).await.expect("an account");
    let (mut free, other) = held_and_trained(Watts::ZERO).await;
    let without = free.controller.account_of(&other).await.expect("an account");
    // At least six hours at 25 W.
    let more = account.energy_j - without.energy_j;
    assert!(more > 25.0 * 6.0 * 3600.0 * 0.95, "{more}");
    let (reserved, free_saving) = (known(&account), known(&without));
    let start = |figures: &SavingFigures| figures.start_effect_pct.expect("it waited").mean;
    assert!(start(reserved) < start(free_saving) - 10.0, "{reserved:#?}");
    let effects = [
        reserved.start_effect_pct,
        reserved.suspension_effect_pct,
        reserved.energy_effect_pct,
        reserved.timing_effect_pct,
    ];
    let sum: f64 = effects.into_iter().map(|effect| effect.expect("known").mean).sum();
    assert!((sum - reserved.carbon_reduction_pct.mean).abs() < 1e-9, "{reserved:#?}");
    world.verify().await;
}

/// Returns the hours for which a job had a GPU by the ledger's report of its day.
async fn held_h(world: World, id: &JobId) -> f64 {
    let day = ["--from", "2025-06-01", "--to", "2025-06-02", "--format", "json"];
    let report = world.report_of(&day).await.json();
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["job_id"] == id.as_str()).expect("its row");
    row["held_s"].as_f64().expect("reported") / 3600.0
}

#[tokio::test]
async fn a_job_occupies_its_gpu_while_it_holds_it_or_reserves_it() {
    let (world, id) = held_and_trained(Watts::ZERO).await;
    let held = held_h(world, &id).await;
    assert!(held > 1.4 && held < 2.5, "{held} h, without the wait of six hours");
    let (world, id) = held_and_trained(Watts::new(25.0)).await;
    let reserved = held_h(world, &id).await;
    assert!(reserved > held + 5.5, "{reserved} h, with the wait");
}

#[tokio::test]
async fn the_parts_of_a_job_are_one_job() {
    let mut world = World::start(sunny).await;
    let keyed = || {
        let mut new = held("parts", 12.0);
        new.offers.key = Some(JobKey::new("parts").expect("a key"));
        new.offers.suspend = Some(Default::default());
        new.work = Work::TotalSamples(samples(3.0));
        new
    };
    let first = world.register(keyed()).await;
    world.controller.begin(&first, Caller::Local, None).await.expect("begins");
    world.train(0, true);
    world.train_until(&first, 0, Phase::Planned).await;
    world.controller.suspended(&first, Caller::Local).await.expect("suspended");
    world.train(0, false);
    // A scheduler requeues it for longer than its lease lasts.
    for _ in 0..100 {
        world.pass(60.0).await;
    }
    assert_eq!(world.view(&first).await.end_reason.as_deref(), Some("lease expired"));
    let second = world.register(keyed()).await;
    world.controller.begin(&second, Caller::Local, None).await.expect("resumes");
    world.train(0, true);
    for _ in 0..20 {
        world.pass(60.0).await;
        world.report(&second, 0).await;
    }
    world.train(0, false);
    let part = world.controller.account_of(&first).await.expect("an account");
    assert_eq!(part.with_earlier_parts, None, "it took none up");
    let account = world.controller.end(&second, Caller::Local).await.expect("ended");
    let whole = account.with_earlier_parts.expect("it took one up");
    assert_eq!(whole.job_ids, [first.to_string(), second.to_string()]);
    assert!(part.energy_j > 0.0 && account.energy_j > 0.0);
    assert!((whole.energy_j - part.energy_j - account.energy_j).abs() < 1e-6, "{whole:?}");
    let sum = part.carbon_g.expect("known") + account.carbon_g.expect("known");
    assert!((whole.carbon_g.expect("known") - sum).abs() < 1e-6 * sum, "{whole:?}");

    let energy = whole.energy_j;
    let day = ["--from", "2025-06-01", "--to", "2025-06-02", "--format", "json"];
    let report = world.report_of(&day).await.json();
    let rows: Vec<_> = report["rows"].as_array().expect("rows").iter().filter(|row| !row["job_id"].is_null()).collect();
    let [row] = rows.as_slice() else { panic!("{rows:#?}") };
    assert_eq!((&row["job_id"], &row["jobs"]), (&first.as_str().into(), &1.into()));
    assert!((row["energy_j"].as_f64().expect("recorded") - energy).abs() < 1.0, "{row}");
}
