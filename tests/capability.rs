//! What a driver refuses for a while: it is asked again, nothing is lost meanwhile, and what lasts is a problem with words.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LedgerFile, Training, eventually, now};

const LONG: Duration = Duration::from_secs(60);
const ENERGY: &str = "nvmlDeviceGetTotalEnergyConsumption";
const POWER: &str = "nvmlDeviceGetPowerUsage";
const FIELDS: &str = "nvmlDeviceGetFieldValues";
const LIMIT: &str = "nvmlDeviceGetPowerManagementLimit";
const ENFORCED: &str = "nvmlDeviceGetEnforcedPowerLimit";
const CONSTRAINTS: &str = "nvmlDeviceGetPowerManagementLimitConstraints";
const DEFAULT: &str = "nvmlDeviceGetPowerManagementDefaultLimit";
const SET: &str = "nvmlDeviceSetPowerManagementLimit";
const NOT_SUPPORTED: i32 = 3;
const UNKNOWN: i32 = 999;

struct Case {
    driver: Arc<FakeDriver>,
    state: tempfile::TempDir,
    daemon: Daemon,
}

impl Case {
    async fn start(gpus: &[Value]) -> Self {
        Self::start_with(Arc::new(FakeDriver::new(gpus))).await
    }

    async fn start_with(driver: Arc<FakeDriver>) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let command = Daemon::command(&driver, state.path());
        let daemon = Daemon::start(command, state.path()).await;
        Self { driver, state, daemon }
    }

    async fn train(&self, gpu: usize) -> (String, Training) {
        let job = json!({"name": "resnet50", "gpus": [gpu], "work": {"total_samples": 1_000_000}, "lease_s": 60});
        let id = self.daemon.register(&job).await;
        let training = Training::start(self.daemon.base(), &id, &self.driver, vec![(gpu, CURVE)], 0.0);
        (id, training)
    }

    /// Has these calls on a GPU fail with a code, and no others.
    fn fail(&self, gpu: usize, calls: &[(&str, i32)]) {
        let calls: serde_json::Map<String, Value> =
            calls.iter().map(|(call, code)| ((*call).to_owned(), (*code).into())).collect();
        self.driver.set(gpu, json!({ "fail_calls": calls }));
    }

    async fn gpu(&self, what: &str, gpu: usize, when: impl Fn(&Value) -> bool) -> Value {
        eventually(what, LONG, async || Some(self.daemon.gpu(gpu).await).filter(|view| when(view))).await
    }

    async fn energy(&self, gpu: usize, least: f64) {
        self.gpu("energy", gpu, |view| view["energy_j"].as_f64().is_some_and(|e| e > least)).await;
    }

    /// Waits for a problem, and answers with all of them.
    async fn problem(&self, words: &str) -> String {
        eventually(words, LONG, async || Some(self.daemon.problems().await).filter(|all| all.contains(words))).await
    }

    async fn no_problem(&self) {
        eventually("no problems", LONG, async || self.daemon.problems().await.is_empty().then_some(())).await;
    }

    async fn limit(&self, gpu: usize, watts: f64) {
        eventually("the limit", LONG, async || (self.driver.limit_w(gpu) == Some(watts)).then_some(())).await;
    }

    async fn metric(&self, gpu: usize, kind: &str) -> f64 {
        let text = self.daemon.get("/metrics").await.text;
        let is_it = |line: &&str| {
            line.starts_with("wattune_gpu_problem{")
                && line.contains(&format!("gpu=\"{gpu}\""))
                && line.contains(&format!("kind=\"{kind}\""))
        };
        let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no series of {kind}:\n{text}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a value")
    }
}

fn kinds(view: &Value) -> Vec<&str> {
    view["problems"].as_array().expect("a list").iter().map(|kind| kind.as_str().expect("a word")).collect()
}

/// Each GPU's energy in the ledger against the last one's, which draws the same and is fine.
async fn recorded_alike(state: &tempfile::TempDir, gpus: usize) -> LedgerFile {
    recorded_within(0.02, state, gpus)
}

/// As [`recorded_alike`], with another relative tolerance.
fn recorded_within(tolerance: f64, state: &tempfile::TempDir, gpus: usize) -> LedgerFile {
    let ledger = LedgerFile::open(state.path());
    let sound = ledger.total_j(gpus - 1);
    for gpu in 0..gpus {
        let odd = ledger.total_j(gpu);
        assert!((odd / sound - 1.0).abs() < tolerance, "GPU {gpu}: {odd} J, {sound} J");
    }
    ledger
}

async fn estimated_j(ledger: &LedgerFile, gpu: usize) -> f64 {
    let rows = ledger.of(gpu).0;
    rows.iter().filter(|r| r.source == "integrated_power").map(|r| r.energy_mj as f64 / 1e3).sum()
}

#[tokio::test]
async fn a_counter_that_is_refused_for_a_moment_is_read_again() {
    let same = json!({"demand_w": 200});
    let case = Case::start(&[same.clone(), same.clone(), same]).await;
    let (id, training) = case.train(0).await;
    case.energy(0, 400.0).await;
    for (gpu, code) in [(0, NOT_SUPPORTED), (1, UNKNOWN)] {
        case.fail(gpu, &[(ENERGY, code)]);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    case.fail(0, &[]);
    case.fail(1, &[]);
    case.energy(0, 1600.0).await;
    let view = case.daemon.gpu(0).await;
    assert_eq!((&view["energy_source"], kinds(&view)), (&json!("counter"), vec![]), "{view}");
    case.no_problem().await;
    training.stop().await;
    let account = case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let of = |field: &str| account[field].as_f64().expect("reported");
    assert!(
        of("energy_j") > 800.0 && of("energy_estimated_j") > 0.0 && of("energy_estimated_j") < 0.5 * of("energy_j"),
        "{account}"
    );
    assert!(case.daemon.stop("TERM").await.success());
    recorded_alike(&case.state, 3).await;
}

#[tokio::test]
async fn a_counter_that_stays_away_is_a_problem_and_estimated_and_settled_when_it_returns() {
    let same = json!({"demand_w": 200});
    let case = Case::start(&[same.clone(), same.clone(), same]).await;
    let (id, training) = case.train(0).await;
    case.energy(0, 200.0).await;
    case.fail(0, &[(ENERGY, UNKNOWN)]);
    case.fail(1, &[(ENERGY, NOT_SUPPORTED)]);
    let since = now();
    let problems =
        case.problem("GPU 0: no energy counter (nvmlDeviceGetTotalEnergyConsumption: an internal driver error").await;
    assert!(problems.contains("integrated from power") && now() - since > chrono::TimeDelta::seconds(9), "{problems}");
    case.problem("GPU 1: no energy counter (nvmlDeviceGetTotalEnergyConsumption: not supported").await;
    assert_eq!([case.metric(0, "energy").await, case.metric(2, "energy").await], [1.0, 0.0]);
    let view = case.daemon.gpu(0).await;
    assert_eq!((&view["energy_source"], kinds(&view)), (&json!("integrated_power"), vec!["energy"]), "{view}");
    training.stop().await;
    let account = case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(account["energy_estimated_j"].as_f64().is_some_and(|estimated| estimated > 1500.0), "{account}");
    case.fail(0, &[]);
    case.fail(1, &[]);
    case.no_problem().await;
    case.gpu("the counter", 1, |view| view["energy_source"] == "counter").await;
    assert!(case.daemon.stop("TERM").await.success());
    let ledger = recorded_alike(&case.state, 3).await;
    assert!(estimated_j(&ledger, 0).await > 1500.0);
    assert_eq!(estimated_j(&ledger, 2).await, 0.0);
}

#[tokio::test]
async fn a_counter_that_is_away_over_a_kill_is_recorded_once() {
    let same = json!({"demand_w": 200});
    let Case { driver, state, daemon } = Case::start(&[same.clone(), same.clone(), same]).await;
    let case = Case { driver, state, daemon };
    case.energy(2, 400.0).await;
    case.fail(0, &[(ENERGY, NOT_SUPPORTED)]);
    case.fail(1, &[(ENERGY, NOT_SUPPORTED)]);
    // Two intervals of five seconds.
    case.energy(2, 2800.0).await;
    let Case { driver, state, daemon } = case;
    daemon.kill();
    // One counter is back by the next start, the other a while later.
    driver.set(0, json!({"fail_calls": {}}));
    let command = Daemon::command(&driver, state.path());
    let daemon = Daemon::start(command, state.path()).await;
    let case = Case { driver, state, daemon };
    case.energy(2, 1500.0).await;
    case.fail(1, &[]);
    case.gpu("the counter", 1, |view| view["energy_source"] == "counter").await;
    assert!(case.daemon.stop("TERM").await.success());
    recorded_alike(&case.state, 3).await;
}

#[tokio::test]
async fn limits_that_are_not_read_for_a_moment_are_steered_again_and_given_back() {
    for code in [NOT_SUPPORTED, UNKNOWN] {
        let case = Case::start(&[gpu()]).await;
        let (id, training) = case.train(0).await;
        case.limit(0, 230.0).await;
        case.fail(0, &[(LIMIT, code), (ENFORCED, code), (CONSTRAINTS, code), (DEFAULT, code)]);
        tokio::time::sleep(Duration::from_millis(1300)).await;
        case.fail(0, &[]);
        case.gpu("the limit reported", 0, |view| view["power_limit_requested_w"].is_number()).await;
        assert_eq!(case.daemon.gpu(0).await["state"], "job");
        case.limit(0, 180.0).await;
        // Again while the job ends: nobody wants another limit than the original then.
        case.fail(0, &[(LIMIT, code), (ENFORCED, code)]);
        training.stop().await;
        tokio::time::sleep(Duration::from_millis(1300)).await;
        case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
        case.fail(0, &[]);
        case.limit(0, 280.0).await;
        case.gpu("free", 0, |view| view["state"] == "free").await;
        case.no_problem().await;
        assert!(case.daemon.stop("TERM").await.success());
    }
}

#[tokio::test]
async fn limits_that_are_not_read_for_longer_are_a_problem_until_they_are() {
    let case = Case::start(&[gpu()]).await;
    let (_, training) = case.train(0).await;
    case.limit(0, 230.0).await;
    case.fail(0, &[(LIMIT, UNKNOWN)]);
    let problems = case.problem("GPU 0: the driver has not reported the present limit").await;
    assert!(problems.contains("an internal driver error") && case.metric(0, "limit").await == 1.0, "{problems}");
    case.fail(0, &[]);
    case.limit(0, 180.0).await;
    case.no_problem().await;
    training.stop().await;
    assert!(case.daemon.stop("TERM").await.success());
    assert_eq!(case.driver.limit_w(0), Some(280.0));
}

#[tokio::test]
async fn what_is_refused_at_the_start_is_asked_again() {
    let mut refusing = gpu();
    refusing["fail_calls"] = json!({
        ENERGY: NOT_SUPPORTED, POWER: NOT_SUPPORTED, FIELDS: NOT_SUPPORTED, LIMIT: NOT_SUPPORTED, CONSTRAINTS: NOT_SUPPORTED,
        DEFAULT: UNKNOWN, "nvmlDeviceGetMigMode": UNKNOWN, "nvmlDeviceGetSupportedMemoryClocks": NOT_SUPPORTED,
        "nvmlDeviceGetMaxClockInfo": NOT_SUPPORTED,
    });
    let case = Case::start(&[refusing]).await;
    let (_, training) = case.train(0).await;
    let problems = case.problem("GPU 0: its energy is unknown").await;
    assert!(problems.contains("no counter") && problems.contains("no power"), "{problems}");
    assert_eq!(case.daemon.gpu(0).await["state"], "observed");
    case.fail(0, &[]);
    case.limit(0, 230.0).await;
    let view = case.daemon.gpu(0).await;
    assert!(view["clock_limit_max_mhz"].is_number() && view["power_limit_max_w"] == 350.0, "{view}");
    case.no_problem().await;
    training.stop().await;
    assert!(case.daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn sets_that_are_refused_for_a_while_are_tried_again() {
    for code in [NOT_SUPPORTED, 4, UNKNOWN] {
        let case = Case::start(&[gpu()]).await;
        let (_, training) = case.train(0).await;
        case.limit(0, 230.0).await;
        case.fail(0, &[(SET, code)]);
        case.problem("GPU 0: ").await;
        assert!(case.daemon.problems().await.contains(SET), "{}", case.daemon.problems().await);
        assert_eq!(case.metric(0, "limit").await, 1.0);
        case.fail(0, &[]);
        case.no_problem().await;
        case.limit(0, 180.0).await;
        training.stop().await;
        assert!(case.daemon.stop("TERM").await.success());
        assert_eq!(case.driver.limit_w(0), Some(280.0));
    }
}

#[tokio::test]
async fn without_a_job_sets_for_the_cap_are_tried_again_too() {
    for code in [NOT_SUPPORTED, 4] {
        let mut refusing = gpu();
        refusing["fail_calls"] = json!({ SET: code });
        let driver = Arc::new(FakeDriver::new(&[refusing]));
        let state = tempfile::tempdir().expect("a directory");
        let settings = format!("{}[cap]\nlimit_w = 250\nlead_s = 0\n", Daemon::QUICK);
        let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings), state.path()).await;
        let case = Case { driver, state, daemon };
        case.problem(SET).await;
        case.fail(0, &[]);
        case.limit(0, 250.0).await;
        case.no_problem().await;
        assert!(case.daemon.stop("TERM").await.success());
    }
}

#[tokio::test]
async fn a_set_that_is_reported_as_failed_and_took_effect_is_no_external_limit() {
    let case = Case::start(&[gpu()]).await;
    case.daemon.hold(&case.driver, 0, 200.0).await;
    case.driver.set(0, json!({"fail_after_calls": {SET: UNKNOWN}}));
    // The driver looks at its script every 5 ms.
    tokio::time::sleep(Duration::from_millis(300)).await;
    case.daemon.hold(&case.driver, 0, 150.0).await;
    assert_eq!(case.driver.limits_written(0), [200.0], "the second one was reported as failed");
    // Several ticks, in which the daemon reads the limit.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let view = case.daemon.gpu(0).await;
    assert_eq!((&view["state"], &view["power_limit_original_w"]), (&json!("override"), &json!(280.0)), "{view}");
    case.no_problem().await;
    case.driver.set(0, json!({"fail_after_calls": {}}));
    tokio::time::sleep(Duration::from_millis(300)).await;
    case.daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    case.limit(0, 280.0).await;
    case.gpu("free", 0, |view| view["state"] == "free").await;
    assert!(case.daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn sets_that_are_ignored_are_a_problem_until_they_are_not() {
    let case = Case::start(&[gpu()]).await;
    let (_, training) = case.train(0).await;
    case.driver.set(0, json!({"ignore_calls": [SET]}));
    let problems = case.problem("GPU 0: its power limit has been 280 W instead of ").await;
    assert!(problems.contains("accepts the limit and does not keep it"), "{problems}");
    assert_eq!(case.metric(0, "limit").await, 1.0);
    let tries = case.driver.limits_written(0).len();
    assert!(tries > 1 && tries < 60, "{tries}");
    case.driver.set(0, json!({"ignore_calls": []}));
    case.limit(0, 230.0).await;
    case.no_problem().await;
    training.stop().await;
    assert!(case.daemon.stop("TERM").await.success());
    assert_eq!(case.driver.limit_w(0), Some(280.0));
}

#[tokio::test]
async fn power_that_cannot_be_read_is_a_problem_and_either_reading_will_do() {
    let case = Case::start(&[gpu(), gpu()]).await;
    case.fail(0, &[(FIELDS, UNKNOWN)]);
    case.fail(1, &[(FIELDS, NOT_SUPPORTED), (POWER, 10)]);
    let problems = case.problem("GPU 1: its power cannot be read").await;
    assert!(problems.contains(POWER) && !problems.contains("GPU 0"), "{problems}");
    assert_eq!([case.metric(0, "power").await, case.metric(1, "power").await], [0.0, 1.0]);
    let power = async |gpu| case.daemon.gpu(gpu).await["power_w"].clone();
    assert_eq!((power(0).await, power(1).await), (json!(280.0), Value::Null));
    case.fail(1, &[]);
    case.no_problem().await;
    assert!(case.daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn a_counter_that_stands_still_is_a_problem_and_estimated() {
    let frozen = json!({"demand_w": 200, "update_ms": 3_600_000_000_u64});
    let driver = Arc::new(FakeDriver::new(&[frozen, json!({"demand_w": 200})]));
    // What it does not show of this time is nothing that the daemon has seen.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let case = Case::start_with(driver).await;
    let problems =
        case.problem("GPU 0: no energy counter (the counter does not increase although power is drawn)").await;
    assert!(!problems.contains("GPU 1"), "{problems}");
    assert_eq!(case.daemon.gpu(0).await["energy_source"], "integrated_power");
    case.driver.set(0, json!({"update_ms": 20}));
    case.no_problem().await;
    assert_eq!(case.daemon.gpu(0).await["energy_source"], "counter");
    assert!(case.daemon.stop("TERM").await.success());
    // The energy from before the daemon's start would be a fifth more. GPUs are first read one after another, which on a
    // busy machine takes some tenths of a second, and only one of the two is recorded by its counter.
    recorded_within(0.06, &case.state, 2);
}
