use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::*;
use crate::controller::view::{
    CarbonView, GpuView, JobView, LedgerView, ObjectiveView, PlanningView, PresentPrice, ScoreView, SourceView,
};
use crate::controller::{CapView, Phase};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn carbon() -> CarbonView {
    CarbonView {
        zone: Some("GB".into()),
        source: Some("uk".into()),
        kind: Some("average".into()),
        scope: Some("operational".into()),
        intensity_g_per_kwh: Some(143.5),
        origin: Some("estimated".into()),
        basis: "source",
        basis_since: at(5_000),
        planned_with_g_per_kwh: 140.0,
        freshness: "fresh".into(),
        stale_since: None,
        fetched_at: Some(at(9_940)),
        next_poll_at: None,
        last_error: None,
        followed: Some(0.75),
        bias_g_per_kwh: Some(-3.5),
        fallback_g_per_kwh: 400.0,
        notes: Vec::new(),
        sources: vec![source()],
        scores: vec![ScoreView {
            source: "uk".into(),
            zone: "GB".into(),
            horizon_h: 24.0,
            mape_pct: Some(8.5),
            bias_g_per_kwh: Some(-3.5),
            rank_correlation: None,
            caught_gain: Some(0.9),
            hours: 320.0,
        }],
    }
}

fn source() -> SourceView {
    SourceView {
        source: "uk".into(),
        rank: 1,
        followed: true,
        contributes: "both".into(),
        zone: Some("GB".into()),
        kind: Some("average".into()),
        scope: Some("operational".into()),
        freshness: "fresh".into(),
        stale_since: None,
        fetched_at: Some(at(9_940)),
        from_cache: false,
        forecast_until: None,
        actual_until: None,
        final_until: None,
        next_poll_at: at(11_000),
        last_error: None,
        consecutive_failures: 0,
        failing_since: None,
        circuit: "closed",
        requests_last_hour: Some(4),
        requests_last_day: Some(96),
        requests_allowed_per_hour: Some(60),
        held_back: None,
        notes: Vec::new(),
    }
}

fn gpu() -> GpuView {
    GpuView {
        index: 0,
        uuid: "GPU-aa".into(),
        pci_bus_id: "00000000:01:00.0".into(),
        model: "NVIDIA H200".into(),
        simulated: false,
        state: "job",
        detail: None,
        owner: Some("j-1".into()),
        booked_jobs: Vec::new(),
        power_limit_requested_w: Some(550.0),
        power_limit_enforced_w: Some(550.0),
        power_limit_wanted_w: Some(550.0),
        clock_limit_mhz: Some(1_110),
        clock_limit_wanted_mhz: Some(1_200),
        clock_limit_min_mhz: Some(210),
        clock_limit_max_mhz: Some(1_980),
        clocks_left_alone: None,
        power_limit_found_w: Some(700.0),
        power_limit_default_w: Some(700.0),
        power_limit_min_w: Some(200.0),
        power_limit_max_w: Some(700.0),
        out_of_band_cap_w: None,
        override_until: None,
        power_w: Some(523.25),
        energy_j: 1_234.5,
        energy_source: "counter",
        counter_resets: 1,
        counter_over_power: Some(1.01),
        temperature_c: Some(61.0),
        sm_clock_mhz: Some(1_755),
        event_reasons: Some(vec!["sw_power_cap"]),
        persistence: Some(true),
        driver: "580.95.05".into(),
    }
}

/// A board that says nothing.
fn mute() -> GpuView {
    GpuView {
        index: 1,
        uuid: "GPU-bb".into(),
        state: "lost",
        owner: None,
        power_limit_requested_w: None,
        power_limit_enforced_w: None,
        power_limit_wanted_w: None,
        clock_limit_mhz: None,
        clock_limit_wanted_mhz: None,
        clock_limit_min_mhz: None,
        clock_limit_max_mhz: None,
        power_limit_found_w: None,
        power_limit_default_w: None,
        power_limit_min_w: None,
        power_limit_max_w: None,
        power_w: None,
        energy_j: 0.0,
        counter_over_power: None,
        temperature_c: None,
        sm_clock_mhz: None,
        event_reasons: None,
        persistence: None,
        ..gpu()
    }
}

fn job() -> JobView {
    let tags = [("team", "vision"), ("cost-centre", "4 \"x\"\\\n"), ("cost.centre", "5")];
    JobView {
        job_id: "j-1".into(),
        name: "resnet50".into(),
        gpus: vec!["GPU-aa".into()],
        batch_size: Some(256),
        total_samples: Some(1e8),
        samples: Some(123_456.0),
        objective: ObjectiveView {
            eta: 1.0,
            max_slowdown: Some(0.03),
            deadline: None,
            carbon_budget_g: None,
            price_weight: 0.0,
            pausable: None,
        },
        control: true,
        priority: 0,
        tags: tags.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect::<BTreeMap<_, _>>(),
        lease_s: 60.0,
        lease_left_s: Some(47.5),
        phase: Some(Phase::Planned),
        reason: String::new(),
        power_limit_w: Some(550.0),
        power_limits_w: vec![Some(550.0)],
        clock_limit_mhz: Some(1_200),
        slowdown: Some(0.012),
        active_s: 900.0,
        stalled_s: 12.5,
        energy_j: Some(1_000.0),
        carbon_g: Some(0.04),
        registered_at: at(9_000),
        started_at: Some(at(9_010)),
        resume_at: None,
        expected_end: Some(at(90_000)),
        ended_at: None,
        end_reason: None,
        warnings: Vec::new(),
    }
}

fn status() -> StatusView {
    StatusView {
        version: "0.1.0",
        mode: "control",
        simulated: false,
        started_at: at(1_000),
        now: at(10_000),
        carbon: carbon(),
        price: Some(PresentPrice { zone: "GB".into(), currency: "EUR".into(), price_per_mwh: -4.5 }),
        carbon_budget: None,
        ledger: LedgerView::default(),
        cap: Some(CapView {
            limit_w: Some(900.0),
            source: Some("the constant cap".into()),
            limits_sum_w: 850.0,
            headroom_w: Some(50.0),
            lowest_sum_w: 200.0,
            next_change: Some(at(20_000)),
            next_limit_w: Some(600.0),
            lead_s: 5.0,
        }),
        planning: PlanningView { last_search_s: Some(0.004), late_s: None },
        gpus: vec![gpu(), mute()],
        jobs: vec![job()],
        problems: vec!["a board is lost".into()],
    }
}

#[test]
fn the_metrics_of_a_busy_daemon() {
    insta::assert_snapshot!(encode(&status()).expect("text"));
}

#[test]
fn what_is_absent_has_no_series() {
    let mut status = status();
    status.jobs[0].ended_at = Some(at(9_999));
    status.gpus = vec![mute()];
    status.price = None;
    status.cap = None;
    status.planning = PlanningView::default();
    status.carbon = CarbonView {
        zone: None,
        source: None,
        kind: None,
        scope: None,
        intensity_g_per_kwh: None,
        origin: None,
        freshness: "none".into(),
        fetched_at: None,
        followed: None,
        sources: Vec::new(),
        scores: Vec::new(),
        ..carbon()
    };
    let text = encode(&status).expect("text");
    for name in [
        "wattune_job",
        "gpu_power",
        "temperature",
        "carbon_intensity",
        "signal_age",
        "NaN",
        "carbon_signal_info",
        "event_reason",
        "carbon_source",
        "forecast_error",
        "electricity_price",
    ] {
        assert!(!text.contains(name), "{name} in\n{text}");
    }
    assert!(text.contains("wattune_carbon_signal_fresh 0.0\n"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
