//! The whole loop on recorded input, without sockets.

use super::*;
use crate::controller::Handle;
use crate::domain::{SignalKind, SignalScope, Zone};
use crate::providers::{FileSettings, file};
use crate::simulate::power_curve;

/// Runs one job of 64 h of ResNet-50 on an A40 over the MISO trace; `None` if the traces are not there.
async fn resnet_on_miso(max_slowdown: f64, seed: u64) -> Option<Outcome> {
    let traces = std::env::var("WATTUNE_TRACES").unwrap_or_else(|_| "../shared/data".into());
    let traces = Path::new(&traces);
    if !traces.exists() {
        let required = std::env::var("WATTUNE_REQUIRE_TRACES").is_ok_and(|v| v == "1");
        assert!(!required, "the traces are required and not at {}", traces.display());
        eprintln!("skipped: no traces at {} (set WATTUNE_TRACES)", traces.display());
        return None;
    }
    let workload = "imagenet/resnet50/128".parse().expect("a workload");
    let curve = power_curve(&traces.join("zeus-traces/summary_power_a40.csv"), &workload, None).expect("usable");
    let bytes = std::fs::read(traces.join("carbon/miso_mason_city_2022-10.csv")).expect("readable");
    let parsed = file::parse(&bytes, &FileSettings::default(), None).expect("usable");
    let kind = (SignalKind::Marginal, SignalScope::Unspecified);
    let zone = Zone::new("MISO").expect("a zone");
    let start = parsed.actual.start().expect("has values");
    let scenario = Scenario {
        jobs: vec![Plot {
            name: "resnet50".into(),
            boards: 1,
            curve,
            at_ceiling: Seconds::new(64.0 * 3600.0),
            objective: Objective::slower_by(max_slowdown).expect("in range"),
        }],
        model: "A40".into(),
        grid: TraceProvider::new("trace", zone, kind, parsed.expected, parsed.actual.clone()),
        actual: parsed.actual,
        start,
        noise: 0.01,
        seed,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (_handle, requests) = Handle::queue();
    let mut world = World::build(scenario, dir.path(), requests).await.expect("starts");
    while !world.is_done() {
        world.step().await;
    }
    let outcome = world.outcomes().remove(0);
    world.end().await;
    Some(outcome)
}

/// Less carbon and more time than at the ceiling, in percent; `None` without traces.
async fn found(max_slowdown: f64, seed: u64) -> Option<(f64, f64)> {
    let found = resnet_on_miso(max_slowdown, seed).await?.against_ceiling.expect("comparable");
    let sum = found.energy_effect_pct + found.timing_effect_pct;
    assert!((sum - found.carbon_reduction_pct).abs() < 1e-9, "{found:?}");
    Some((found.carbon_reduction_pct, found.time_increase_pct))
}

// The clairvoyant bounds are 5.84, 15.03 and 18.88 %; seed 2 once made a useful limit look bad.

#[tokio::test]
async fn one_percent_of_time_buys_five_of_carbon() {
    let Some((carbon, time)) = found(0.01, 2).await else { return };
    assert!(carbon >= 5.4 && time <= 1.05, "{carbon} {time}");
}

#[tokio::test]
async fn three_percent_of_time_buy_fourteen_of_carbon() {
    let Some((carbon, time)) = found(0.03, 2).await else { return };
    assert!(carbon >= 14.6 && time <= 3.05, "{carbon} {time}");
}
