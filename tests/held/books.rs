//! Accounts of jobs that waited: the four effects, their sum, reserved GPUs, and the ledger's entries.

use wattune::controller::BeginReason;
use wattune::controller::view::{AccountView, SavingFigures, SavingView};
use wattune::store::Store;
use wattune_core::domain::Work;
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
    world.controller.begin(&id, Some(BeginReason::Planned)).await.expect("begins");
    world.train(0, true);
    world.train_until(&id, 0, Phase::Observing).await;
    world.train(0, false);
    world.controller.end(&id).await.expect("ended");
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
