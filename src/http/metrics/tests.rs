use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::*;
use crate::controller::view::{
    ActualView, BasisLevel, CarbonView, Circuit, Concern, CpuView, CpuZoneKind, CpuZoneView, EnergyMethod, GpuState,
    GpuView, IntensityKind, IntensityOrigin, IntensityScope, IntervalView, JobView, LedgerView, Mode, ObjectiveView,
    PastForecastView, PlanningView, PresentPrice, RecordedView, SavedView, ScoreView, SettledView, SignalFreshness,
    SourceView, StorageView,
};
use crate::controller::{CapView, Phase};
use crate::cpu::CpuSource;
use crate::providers::Contribution;
use crate::recurring::{ArmView, RecurringStage};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn carbon() -> CarbonView {
    CarbonView {
        zone: Some("GB".into()),
        source: Some("uk".into()),
        kind: Some(IntensityKind::Average),
        scope: Some(IntensityScope::Operational),
        intensity_g_per_kwh: Some(143.5),
        origin: Some(IntensityOrigin::Estimated),
        basis: BasisLevel::Source,
        basis_since: at(5_000),
        planned_with_g_per_kwh: 140.0,
        freshness: SignalFreshness::Fresh,
        stale_since: None,
        fetched_at: Some(at(9_940)),
        next_poll_at: None,
        last_error: None,
        followed: Some(0.75),
        bias_g_per_kwh: Some(-3.5),
        fallback_g_per_kwh: 400.0,
        past_forecasts: [(1.0, 141.5), (24.0, 160.0)].map(|(h, g)| past_forecasts(h, g)).to_vec(),
        outcome: Some(ActualView {
            start: at(7_200),
            end: at(9_000),
            intensity_g_per_kwh: 138.0,
            origin: IntensityOrigin::Measured,
            past_forecasts: vec![past_forecasts(1.0, 139.5)],
        }),
        notes: Vec::new(),
        sources: vec![source()],
        scores: vec![ScoreView {
            source: "uk".into(),
            zone: "GB".into(),
            horizon_h: 24.0,
            mape_pct: Some(8.5),
            bias_g_per_kwh: Some(-3.5),
            rank_correlation: Some(0.85),
            caught_gain: Some(0.9),
            hours: 320.0,
        }],
    }
}

fn ahead() -> [WindowAhead; 2] {
    [
        WindowAhead { duration_h: 4, start: at(20_000), saving: 0.125, loss_probability: Some(0.0625) },
        WindowAhead { duration_h: 24, start: at(10_000), saving: 0.0, loss_probability: None },
    ]
}

fn past_forecasts(horizon_h: f64, intensity_g_per_kwh: f64) -> PastForecastView {
    PastForecastView { horizon_h, intensity_g_per_kwh }
}

fn source() -> SourceView {
    SourceView {
        source: "uk".into(),
        rank: 1,
        followed: true,
        contributes: Contribution::Both,
        zone: Some("GB".into()),
        kind: Some(IntensityKind::Average),
        scope: Some(IntensityScope::Operational),
        freshness: SignalFreshness::Fresh,
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
        circuit: Circuit::Closed,
        requests_last_hour: Some(4),
        requests_last_day: Some(96),
        requests_allowed_per_hour: Some(60),
        quarantined: None,
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
        state: GpuState::Job,
        problems: Vec::new(),
        detail: None,
        owner: Some("j-1".into()),
        observed_jobs: Vec::new(),
        power_limit_requested_w: Some(550.0),
        power_limit_enforced_w: Some(540.0),
        power_limit_wanted_w: Some(550.0),
        clock_limit_mhz: Some(1_110),
        clock_limit_wanted_mhz: Some(1_200),
        clock_limit_min_mhz: Some(210),
        clock_limit_max_mhz: Some(1_980),
        clocks_left_alone: None,
        power_limit_original_w: Some(700.0),
        power_limit_default_w: Some(700.0),
        power_limit_min_w: Some(200.0),
        power_limit_max_w: Some(700.0),
        external_limits: 2,
        restore_failed: false,
        restore_failures: 1,
        out_of_band_cap_w: Some(540.0),
        override_until: None,
        override_by: None,
        power_w: Some(523.25),
        energy_age_s: Some(0.05),
        energy_j: 1_234.5,
        energy_source: EnergyMethod::Counter,
        counter_resets: 1,
        counter_over_power: Some(1.01),
        temperature_c: Some(61.0),
        sm_clock_mhz: Some(1_755),
        event_reasons: Some(vec!["sw_power_cap"]),
        persistence: Some(true),
        driver: "580.95.05".into(),
    }
}

/// A GPU without any value.
fn mute() -> GpuView {
    GpuView {
        index: 1,
        uuid: "GPU-bb".into(),
        state: GpuState::Lost,
        problems: vec![Concern::Answer],
        owner: None,
        out_of_band_cap_w: None,
        power_limit_requested_w: None,
        power_limit_enforced_w: None,
        power_limit_wanted_w: None,
        clock_limit_mhz: None,
        clock_limit_wanted_mhz: None,
        clock_limit_min_mhz: None,
        clock_limit_max_mhz: None,
        power_limit_original_w: None,
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
        progress_source: None,
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
        processes: None,
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
        energy_by_device_j: [("gpu".to_owned(), 900.0), ("cpu".to_owned(), 100.0)].into(),
        saved_g: Some(IntervalView { low: -0.5, mean: 1.25, high: 3.0 }),
        registered_at: at(9_000),
        started_at: Some(at(9_010)),
        resume_at: None,
        wanted: None,
        until: None,
        key: None,
        continues: None,
        start: None,
        suspend: None,
        expected_end: Some(at(90_000)),
        plan_made_at: Some(at(9_700)),
        planned_carbon_g: Some(850.0),
        planned_carbon_at_max_g: Some(1_000.0),
        ended_at: None,
        end_reason: None,
        broken_promises: 0,
        warnings: Vec::new(),
    }
}

fn recurring() -> RecurringView {
    let arm = |batch_size, runs: usize, mean_cost_j: Option<f64>| ArmView {
        batch_size,
        favourite: batch_size == 64,
        runs,
        reached: runs.min(2),
        mean_cost_j,
        deviation_j: mean_cost_j.map(|mean| mean / 10.0),
        mean_cost_g: mean_cost_j.map(|mean| mean / 1e5),
    };
    let spec = serde_json::json!({"batch_sizes": [32, 64, 128], "default_batch_size": 64, "max_power_w": 300.0,
        "target_metric": 0.6, "max_epochs": 100});
    RecurringView {
        name: "resnet50".into(),
        created_at: at(500),
        spec: serde_json::from_value(spec).expect("a specification"),
        stage: RecurringStage::Exploring,
        favourite: 64,
        trials: 4,
        running: 1,
        arms: vec![arm(32, 1, Some(5e6)), arm(64, 2, Some(4e6)), arm(128, 0, None)],
    }
}

fn ledger() -> LedgerView {
    let recorded = |device: &str, share: &str, source: &str, energy_j| RecordedView {
        device: device.into(),
        share: share.into(),
        source: source.into(),
        energy_j,
    };
    LedgerView {
        closed_at: Some(at(7_200)),
        recorded: vec![
            recorded("GPU-aa", "job", "counter", 1_200.5),
            recorded("GPU-aa", "unattributed", "counter_gap", 34.0),
            recorded("cpu:package-0", "idle", "counter", 90.25),
        ],
        recorded_of_jobs: BTreeMap::new(),
        gaps: 1,
        unknown_gaps: 2,
        gaps_last_day: Some(3),
        unknown_gaps_last_day: Some(1),
        gap_j: 34.0,
        difference_j: 0.0,
        settlements: 12,
        pending_hours: 2,
        settled: Some(SettledView {
            forecast_j: 10.0,
            provisional_j: 200.0,
            final_j: 1_000.0,
            unknown_j: 24.5,
            carbon_g: 0.05,
        }),
        saved: Some(SavedView {
            saved_g: Some(IntervalView { low: 10.0, mean: 12.5, high: 15.0 }),
            known_jobs: 3,
            jobs: 5,
        }),
    }
}

fn cpu() -> CpuView {
    let zone = |device: &str, zone: &str, kind, power_w| CpuZoneView {
        device: device.into(),
        zone: zone.into(),
        kind,
        path: "/sys/class/powercap/intel-rapl:0".into(),
        power_w,
        energy_age_s: None,
        energy_j: Some(321.5),
        energy_in_gaps_j: 0.0,
        counter_turns: 0,
        counter_resets: 0,
        counter_jumps: 0,
        counter_changes: 0,
        problem: power_w.is_none().then(|| "cannot be read".into()),
    };
    CpuView {
        source: CpuSource::Rapl,
        simulated: false,
        cores: Some(64),
        zones: vec![
            zone("cpu:package-0", "package-0", CpuZoneKind::Package, Some(88.5)),
            zone("dram:package-0", "dram-0", CpuZoneKind::Dram, None),
        ],
        problems: Vec::new(),
    }
}

fn status() -> StatusView {
    StatusView {
        pid_namespace: None,
        version: "0.1.0",
        mode: Mode::Control,
        simulated: false,
        started_at: at(1_000),
        now: at(10_000),
        clock_speed: 1.0,
        carbon: carbon(),
        price: Some(PresentPrice { zone: "GB".into(), currency: "EUR".into(), price_per_mwh: -4.5 }),
        carbon_budget: None,
        ledger: ledger(),
        cpu: Some(cpu()),
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
        storage: StorageView {
            fault: None,
            journal_fault: Some("the disk is full".into()),
            unwritten_intervals: 3,
            audit_records_lost: 2,
        },
        gpus: vec![gpu(), mute()],
        jobs: vec![job()],
        jobs_left_out: 0,
        problems: vec!["a GPU is lost".into()],
        problems_left_out: 0,
    }
}

#[test]
fn series_of_jobs_and_tags_are_bounded() {
    let one = |number: usize| {
        let tags = [("team".to_owned(), "vision".to_owned()), (format!("key-{number}"), "odd".to_owned())];
        JobView { job_id: format!("j-{number}"), control: number == 3, tags: tags.into(), ..job() }
    };
    let all = StatusView { jobs: (0..700).map(one).collect(), ..status() };
    let text = encode(&all, &[], None).expect("text");
    let series = |name: &str| text.lines().filter(|line| line.starts_with(&format!("wattune_{name}{{"))).count();
    assert_eq!(series("job_info"), 100);
    assert_eq!(series("job_phase"), 700);
    for line in ["jobs 700.0", "jobs_left_out 600.0", "jobs_tag_keys_left_out 85.0"] {
        assert!(text.contains(&format!("\nwattune_{line}\n")), "{line}");
    }
    // Jobs whose GPUs wattune controls are shown first, then the newest jobs. The tag that all jobs have becomes a
    // label.
    let shown = |id: &str| text.contains(&format!("wattune_job_info{{job_id=\"{id}\""));
    assert_eq!(["j-3", "j-4", "j-600", "j-601", "j-699"].map(shown), [true, false, false, true, true]);
    assert_eq!(text.matches("tag_team=\"vision\"").count(), 100);
    assert_eq!(text.matches("=\"odd\"").count(), 15);

    // If two keys become the same label, the more frequent key is shown, and the other one is counted as left out.
    let clash = |number: usize| {
        let key = if number == 0 { "a-b" } else { "a_b" };
        JobView { job_id: format!("j-{number}"), tags: [(key.to_owned(), format!("of {key}"))].into(), ..job() }
    };
    let text = encode(&StatusView { jobs: (0..3).map(clash).collect(), ..status() }, &[], None).expect("text");
    assert_eq!(text.matches("tag_a_b=\"of a_b\"").count(), 2, "{text}");
    assert!(!text.contains("of a-b") && text.contains("\nwattune_jobs_tag_keys_left_out 1.0\n"), "{text}");

    let event = all.at_most(50);
    assert_eq!((event.jobs.len(), event.jobs_left_out), (50, 650));
    assert_eq!((&*event.jobs[0].job_id, &*event.jobs[49].job_id), ("j-3", "j-699"));
}

#[test]
fn the_metrics_of_a_busy_daemon() {
    insta::assert_snapshot!(encode(&status(), &ahead(), Some((&[recurring()], 3))).expect("text"));
}

/// The documentation's reference of metrics is generated from the snapshot of this daemon, so each metric must be in
/// it.
#[test]
fn the_busy_daemon_shows_every_metric() {
    assert_eq!(families(&status(), &ahead(), Some((&[recurring()], 3))).without_series(), [""; 0]);
}

/// Checks names like Prometheus's own linter: base units, no type in a name, `_total` for counters only.
#[test]
fn names_follow_prometheus_conventions() {
    let text = encode(&status(), &ahead(), Some((&[recurring()], 3))).expect("text");
    let plain = super::plain(&text);
    let mut kinds = BTreeMap::new();
    for line in plain.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["#", "TYPE", name, kind] => assert!(kinds.insert(*name, *kind).is_none(), "{name} twice"),
            ["#", "HELP", name, help @ ..] => assert!(help.join(" ").len() > 5, "{name} needs words"),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let kind = kinds.get(name).unwrap_or_else(|| panic!("{name} is not declared before it is used"));
                assert!(name.starts_with("wattune_") && name.to_lowercase() == name, "{name}");
                assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
                let parts: Vec<&str> = name.split('_').collect();
                for bad in
                    ["counter", "gauge", "histogram", "summary", "minutes", "hours", "milliwatts", "kwatts", "ms"]
                {
                    assert!(!parts.contains(&bad), "{bad} in {name}");
                }
            }
        }
    }
    assert!(kinds.len() > 80 && kinds["wattune_build_info"] == "gauge", "{kinds:?}");
    assert_eq!(kinds["wattune_gpu_energy_joules_total"], "counter");
    let values = |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(values(&plain), values(&text));
}

#[test]
fn series_of_recurring_jobs_are_bounded() {
    let large = RecurringView { arms: vec![recurring().arms[0].clone(); 100], ..recurring() };
    let many = vec![large; 50];
    let text = encode(&status(), &ahead(), Some((&many, 70))).expect("text");
    let series = text.lines().filter(|l| l.starts_with("wattune_recurring_pulls{")).count();
    assert!((1..=400).contains(&series), "{series}");
    assert!(text.contains("wattune_recurring_jobs 70.0\n"), "{text}");
    assert!(text.contains(&format!("wattune_recurring_jobs_left_out {}.0\n", 70 - series / 100)), "{text}");
}

/// A job's counters show what was recorded, even if a correction has taken energy away since.
#[test]
fn a_correction_lowers_no_counter() {
    let value = |text: &str, series: &str| -> f64 {
        let line =
            text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {text}"));
        line.trim().parse().expect("a number")
    };
    let id = job().job_id;
    let series = [
        format!("wattune_job_energy_joules_total{{job_id=\"{id}\"}}"),
        format!("wattune_job_device_energy_joules_total{{job_id=\"{id}\",kind=\"gpu\"}}"),
    ];
    let mut status = status();
    let before = encode(&status, &[], None).expect("text");
    status.ledger.recorded_of_jobs = [(id, status.jobs[0].energy_by_device_j.clone())].into();
    status.jobs[0].energy_j = Some(150.0);
    status.jobs[0].energy_by_device_j = [("gpu".to_owned(), 50.0), ("cpu".to_owned(), 100.0)].into();
    let after = encode(&status, &[], None).expect("text");
    assert_eq!(series.each_ref().map(|of| value(&before, of)), [1_000.0, 900.0]);
    assert_eq!(series.each_ref().map(|of| value(&after, of)), [1_000.0, 900.0]);
}

/// Checks that the Job dashboard knows every phase: a phase that it lacks would show as no data.
#[test]
fn the_job_dashboard_asks_for_every_phase() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/queries.json");
    let queries = std::fs::read_to_string(path).expect("a readable file");
    let queries: Vec<serde_json::Value> = serde_json::from_str(&queries).expect("a list");
    let phases: std::collections::BTreeSet<&str> = super::job::PHASES.iter().map(|(_, name)| *name).collect();
    let highest = (phases.len() - 1) as f64;
    let asked: Vec<_> = queries.iter().filter(|q| q["dashboard"] == "job" && q["panel"] == "Phase").collect();
    assert_eq!(asked.len(), 2, "{asked:#?}");
    for query in asked {
        let expr = query["expr"].as_str().expect("a query");
        let named = expr.split("phase=\"").skip(1).filter_map(|rest| rest.split('"').next());
        assert_eq!(named.collect::<std::collections::BTreeSet<_>>(), phases, "{query}");
        assert_eq!(query["high"].as_f64(), Some(highest), "{query}");
    }
}

/// Checks that the names in Grafana's panels and alerts exist.
#[test]
fn names_in_rules_and_dashboards_exist() {
    let text = plain(&encode(&status(), &ahead(), Some((&[recurring()], 3))).expect("text"));
    let known: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let mut asked = std::collections::BTreeSet::new();
    for below in ["grafana", "prometheus"] {
        for entry in std::fs::read_dir(folder.join(below)).expect("dashboards").map(|e| e.expect("an entry").path()) {
            if entry.is_file() {
                let text = std::fs::read_to_string(&entry).expect("a readable file");
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
                asked.extend(words.filter(|w| w.starts_with("wattune_")).map(str::to_owned));
            }
        }
    }
    assert!(asked.len() > 40, "{asked:?}");
    let unknown: Vec<&String> = asked.iter().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?} are asked for and not there");
}

#[test]
fn absent_values_have_no_series() {
    let mut status = status();
    status.jobs[0].ended_at = Some(at(9_999));
    status.gpus = vec![mute()];
    status.price = None;
    status.cap = None;
    status.cpu = None;
    status.planning = PlanningView::default();
    status.ledger = LedgerView::default();
    status.carbon = CarbonView {
        zone: None,
        source: None,
        kind: None,
        scope: None,
        intensity_g_per_kwh: None,
        origin: None,
        freshness: SignalFreshness::None,
        fetched_at: None,
        followed: None,
        past_forecasts: Vec::new(),
        outcome: None,
        sources: Vec::new(),
        scores: Vec::new(),
        ..carbon()
    };
    let text = encode(&status, &[], None).expect("text");
    for name in [
        "wattune_job_",
        "gpu_power",
        "temperature",
        "carbon_intensity",
        "signal_age",
        "NaN",
        "carbon_signal_info",
        "event_reason",
        "carbon_source",
        "carbon_forecast",
        "carbon_outcome",
        "intensity_origin",
        "recurring",
        "ledger_closed",
        "ledger_recorded",
        "ledger_settled_",
        "forecast_error",
        "electricity_price",
        "cpu",
        "wattune_when",
    ] {
        assert!(!text.contains(name), "{name} in\n{text}");
    }
    assert!(text.contains("wattune_carbon_signal_fresh 0.0\n"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
