//! CPU energy and the processes of jobs, on made-up trees of the kernel's files that change while the daemon runs.

use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, LONG, eventually, now};

const RANGE: u64 = 262_143_328_850;

/// A machine of files: two packages with memory, four CPUs, and whatever processes there are to be.
struct Machine {
    dir: tempfile::TempDir,
    busy: u64,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { dir: tempfile::tempdir().expect("a directory"), busy: 0 };
        for (id, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:0:1", "dram"),
            ("intel-rapl:1", "psys"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            machine.write(&format!("powercap/{id}/name"), name);
            machine.write(&format!("powercap/{id}/max_energy_range_uj"), RANGE);
            machine.energy(id, 1_000_000);
        }
        machine.write("cgroup/cgroup.controllers", "cpu memory");
        machine.times();
        machine
    }

    /// In place at once, as the kernel's files are.
    fn write(&self, path: &str, text: impl std::fmt::Display) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("made");
        let next = path.with_extension("next");
        std::fs::write(&next, format!("{text}\n")).expect("written");
        std::fs::rename(next, path).expect("renamed");
    }

    fn remove(&self, path: &str) {
        std::fs::remove_dir_all(self.dir.path().join(path)).expect("removed");
    }

    fn energy(&self, id: &str, uj: u64) {
        self.write(&format!("powercap/{id}/energy_uj"), uj);
    }

    fn times(&self) {
        let cores = "cpu0 0\ncpu1 0\ncpu2 0\ncpu3 0";
        self.write("proc/stat", format!("cpu  {} 0 0 0 0 0 0 0 0 0\n{cores}\nbtime 1000", self.busy));
    }

    fn process(&self, pid: u32, parent: u32, start: u64, ticks: u64) {
        let line = format!("{pid} (train) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {start} 0");
        self.write(&format!("proc/{pid}/stat"), line);
    }

    fn group(&self, name: &str, usec: u64, pids: &str) {
        self.write(&format!("cgroup/{name}/cgroup.procs"), pids);
        self.write(&format!("cgroup/{name}/cpu.stat"), format!("usage_usec {usec}"));
    }

    /// Settings of a daemon on this machine, that closes its ledger so often.
    fn settings(&self, interval_s: u32) -> String {
        let root = self.dir.path().display();
        format!(
            "{}[cpu]\nsample_s = 0.05\npowercap_root = \"{root}/powercap\"\nproc_root = \"{root}/proc\"\ncgroup_root = \
             \"{root}/cgroup\"\n",
            Daemon::QUICK.replace("interval_s = 5", &format!("interval_s = {interval_s}"))
        )
    }

    async fn daemon(&self, driver: &FakeDriver, state: &Path) -> Daemon {
        self.daemon_closing(driver, state, 1).await
    }

    async fn daemon_closing(&self, driver: &FakeDriver, state: &Path, interval_s: u32) -> Daemon {
        Daemon::start(Daemon::command_set(driver, state, &self.settings(interval_s)), state).await
    }
}

/// What the ledger hold of a device: share, job, millijoules, source.
async fn recorded(state: &Path, device: &str) -> Vec<(String, Option<String>, i64, String)> {
    let db = Connection::open(state.join("wattune.db")).expect("opens");
    let sql = "SELECT share, job_id, energy_mj, source FROM intervals WHERE device = ?1 ORDER BY start_us, id";
    let mut statement = db.prepare(sql).expect("prepared");
    let rows = statement.query_map([device], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))).expect("readable");
    rows.collect::<Result<_, _>>().expect("readable")
}

fn sum(rows: &[(String, Option<String>, i64, String)], share: &str, job: Option<&str>) -> i64 {
    rows.iter().filter(|r| r.0 == share && r.1.as_deref() == job).map(|r| r.2).sum()
}

async fn zone(daemon: &Daemon, device: &str) -> Option<Value> {
    let status = daemon.get("/v1/status").await.expect(200);
    status["cpu"]["zones"].as_array()?.iter().find(|zone| zone["device"] == device).cloned()
}

/// Waits until the daemon has read so much energy of a zone.
async fn until_read(daemon: &Daemon, device: &str, joules: f64) {
    eventually("a reading", LONG, async || {
        let read = zone(daemon, device).await?["energy_j"].as_f64()?;
        ((read - joules).abs() < 1e-6).then_some(())
    })
    .await;
}

/// Waits until all of that is recorded.
async fn until_recorded(state: &Path, device: &str, millijoules: i64) -> Vec<(String, Option<String>, i64, String)> {
    eventually("the booking", LONG, async || {
        let rows = recorded(state, device).await;
        (rows.iter().map(|r| r.2).sum::<i64>() == millijoules).then_some(rows)
    })
    .await
}

#[tokio::test]
async fn packages_and_memory_are_recorded_once_over_turns_losses_and_restarts() {
    let machine = Machine::new();
    let driver = FakeDriver::new(&[json!({"idle": true})]);
    let state = tempfile::tempdir().expect("a directory");
    machine.energy("intel-rapl:0", RANGE - 1_000_850);
    let daemon = machine.daemon(&driver, state.path()).await;
    until_read(&daemon, "cpu:package-0", 0.0).await;
    let status = daemon.get("/v1/status").await.expect(200);
    let cpu = &status["cpu"];
    let names: Vec<&str> =
        cpu["zones"].as_array().expect("zones").iter().filter_map(|zone| zone["zone"].as_str()).collect();
    assert_eq!(names, ["package-0", "dram-0"], "{cpu}");
    assert_eq!((&cpu["source"], &cpu["simulated"], &cpu["cores"]), (&json!("rapl"), &json!(false), &json!(4)));

    // Round the end of the counter, with the fraction of a millijoule that is left over.
    machine.energy("intel-rapl:0", 5_999_550);
    until_read(&daemon, "cpu:package-0", 7.0).await;
    machine.energy("intel-rapl:0:1", 1_700_900);
    until_read(&daemon, "dram:package-0", 0.7).await;
    let metrics = daemon.get("/metrics").await.text;
    let line = metrics.lines().find(|l| l.starts_with("wattune_cpu_energy_joules_total{zone=\"package-0\""));
    assert!(line.is_some_and(|l| l.contains("kind=\"package\"") && l.ends_with(" 7.0")), "{metrics}");

    // A zone goes, and comes back with more: what its counter knows is not lost.
    let garbage = machine.dir.path().join("powercap/intel-rapl:0/energy_uj");
    std::fs::write(&garbage, "nonsense").expect("written");
    eventually("a problem", LONG, async || {
        let zone = zone(&daemon, "cpu:package-0").await?;
        zone["problem"].as_str()?.contains("holds \"nonsense\"").then_some(())
    })
    .await;
    machine.remove("powercap/intel-rapl:0");
    eventually("the other counter", LONG, async || {
        zone(&daemon, "cpu:package-0").await?["path"].as_str()?.ends_with("mmio:0").then_some(())
    })
    .await;
    machine.write("powercap/intel-rapl:0/name", "package-0");
    machine.write("powercap/intel-rapl:0/max_energy_range_uj", RANGE);
    machine.energy("intel-rapl:0", 8_999_750);
    until_read(&daemon, "cpu:package-0", 10.0).await;
    let rows = until_recorded(state.path(), "cpu:package-0", 10_000).await;
    // No process was busy on this machine.
    assert_eq!(sum(&rows, "idle", None), 10_000, "{rows:?}");
    assert!(daemon.stop("TERM").await.success());

    // While no daemon runs nobody can be named; millijoules are whole by what the counter shows.
    machine.energy("intel-rapl:0", 10_999_900);
    let daemon = machine.daemon(&driver, state.path()).await;
    let rows = until_recorded(state.path(), "cpu:package-0", 12_000).await;
    assert_eq!(sum(&rows, "unattributed", None), 2_000, "{rows:?}");
    assert!(rows.iter().any(|r| r.3 == "counter_gap" && r.2 == 2_000), "{rows:?}");
    assert!(daemon.stop("TERM").await.success());

    // The next one reads the package from another counter: what lies between the two is no energy.
    machine.remove("powercap/intel-rapl:0");
    machine.energy("intel-rapl-mmio:0", 500_000_000);
    let daemon = machine.daemon(&driver, state.path()).await;
    until_read(&daemon, "cpu:package-0", 0.0).await;
    machine.energy("intel-rapl-mmio:0", 501_000_000);
    until_read(&daemon, "cpu:package-0", 1.0).await;
    until_recorded(state.path(), "cpu:package-0", 13_000).await;
    assert!(daemon.stop("TERM").await.success());
    assert!(!std::fs::read_to_string(state.path().join("log.txt")).expect("a log").contains("differ from its counter"));
}

#[tokio::test]
async fn energy_goes_to_jobs_by_the_cpu_time_of_their_processes() {
    let mut machine = Machine::new();
    machine.process(100, 1, 50, 7000);
    machine.group("train", 9_000_000, "200");
    let driver = FakeDriver::new(&[json!({}), json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    // Intervals are closed when jobs come and go, and not in between.
    let daemon = machine.daemon_closing(&driver, state.path(), 60).await;
    until_read(&daemon, "cpu:package-0", 0.0).await;
    let lease = 3600;
    let a = daemon.register(&json!({"name": "a", "gpus": [0], "pids": [100], "lease_s": lease})).await;
    let b = daemon.register(&json!({"name": "b", "gpus": [1], "cgroup": "/train", "lease_s": lease})).await;
    let view = daemon.get(&format!("/v1/jobs/{a}")).await.expect(200);
    assert_eq!(view["processes"]["pids"], json!([100]), "{view}");
    assert_eq!(view["processes"]["cpu_time_s"], json!(0.0), "what was before is not its own");

    // All at once: a child is born and works, the group works, somebody else does, and energy is used.
    machine.process(101, 100, 60, 300);
    machine.process(100, 1, 50, 7100);
    machine.process(300, 1, 60, 400);
    machine.group("train", 17_000_000, "200");
    machine.busy += 400 + 800 + 400;
    machine.times();
    eventually("their times", LONG, async || {
        let time = |view: &Value| view["processes"]["cpu_time_s"].as_f64();
        let a = daemon.get(&format!("/v1/jobs/{a}")).await.expect(200);
        let b = daemon.get(&format!("/v1/jobs/{b}")).await.expect(200);
        (time(&a)? == 4.0 && time(&b)? == 8.0 && a["processes"]["running"] == 2).then_some(())
    })
    .await;
    machine.energy("intel-rapl:0", 41_000_000);
    machine.energy("intel-rapl:0:1", 9_000_000);
    until_read(&daemon, "cpu:package-0", 40.0).await;
    until_read(&daemon, "dram:package-0", 8.0).await;
    daemon.delete(&format!("/v1/jobs/{a}")).await.expect(200);
    let account = daemon.delete(&format!("/v1/jobs/{b}")).await.expect(200);
    let by_device = &account["energy_by_device_j"];
    let total: f64 = by_device.as_object().expect("an object").values().filter_map(Value::as_f64).sum();
    assert!((total - account["energy_j"].as_f64().expect("a number")).abs() < 1e-6, "{account}");
    for (device, millijoules) in [("cpu:package-0", 40_000), ("dram:package-0", 8_000)] {
        let rows = until_recorded(state.path(), device, millijoules).await;
        let (of_a, of_b) = (sum(&rows, "job", Some(&a)), sum(&rows, "job", Some(&b)));
        let (nobody, idle) = (sum(&rows, "unattributed", None), sum(&rows, "idle", None));
        let near = |x: i64, y: i64| (x - y).abs() <= 2;
        assert!(of_a > 0 && near(of_b, 2 * of_a) && near(nobody, of_a), "{rows:?}");
        assert_eq!(of_a + of_b + nobody + idle, millijoules, "{rows:?}");
    }
    assert!(daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn a_job_that_ends_while_a_zone_is_not_read_has_its_part_once_it_is() {
    let mut machine = Machine::new();
    machine.remove("powercap/intel-rapl-mmio:0");
    machine.process(100, 1, 50, 7000);
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = machine.daemon_closing(&driver, state.path(), 60).await;
    until_read(&daemon, "cpu:package-0", 0.0).await;
    let job = daemon.register(&json!({"name": "a", "gpus": [0], "pids": [100], "lease_s": 3600})).await;
    machine.write("powercap/intel-rapl:0/energy_uj", "nonsense");
    machine.process(100, 1, 50, 7200);
    machine.busy += 200;
    machine.times();
    eventually("a problem and the time", LONG, async || {
        let status = daemon.get("/v1/status").await.expect(200);
        let problem = status["cpu"]["problems"][0].as_str()?.contains("cpu:package-0: ");
        let view = daemon.get(&format!("/v1/jobs/{job}")).await.expect(200);
        (problem && view["processes"]["cpu_time_s"] == 2.0).then_some(())
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let account = daemon.delete(&format!("/v1/jobs/{job}")).await.expect(200);
    assert_eq!(account["energy_by_device_j"]["cpu"], Value::Null, "nothing is known yet: {account}");
    machine.energy("intel-rapl:0", 41_000_000);
    let rows = until_recorded(state.path(), "cpu:package-0", 40_000).await;
    let of_job = sum(&rows, "job", Some(&job));
    assert!(of_job > 0 && sum(&rows, "unattributed", None) == 0, "{rows:?}");
    let account = daemon.get(&format!("/v1/jobs/{job}/emissions")).await.expect(200);
    assert_eq!(account["energy_by_device_j"]["cpu"], of_job as f64 / 1e3, "{account}");
    assert!(daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn claims_are_checked_and_taken_up_again() {
    let machine = Machine::new();
    machine.process(100, 1, 50, 7000);
    machine.process(150, 100, 55, 10);
    machine.group("train/inner", 1, "200");
    machine.group("train", 1, "");
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = machine.daemon(&driver, state.path()).await;
    let refused = async |fields: Value, status: u16, field: &str, reported: &str| {
        let mut job = json!({"name": "a", "gpus": [0], "control": false});
        job.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let problem = daemon.post("/v1/jobs", &job).await.problem(status);
        assert!(problem["detail"].as_str().expect("reported").contains(reported), "{problem}");
        assert!(status == 409 || problem["field"] == field, "{problem}");
    };
    refused(json!({"pids": [4242]}), 422, "pids", "names 4242, but there is no such process").await;
    refused(json!({"pids": []}), 422, "pids", "give 1 to 256").await;
    refused(json!({"pids": [100, 100]}), 422, "pids", "names 100 twice").await;
    refused(json!({"pids": [-1]}), 422, "pids[0]", "give a list of process numbers").await;
    refused(json!({"pids": [100], "cgroup": "/train"}), 422, "cgroup", "give only one of the two").await;
    refused(json!({"cgroup": "train"}), 422, "cgroup", "from the root of the hierarchy").await;
    refused(json!({"cgroup": "/train/../../proc"}), 422, "cgroup", "\"..\"").await;
    refused(json!({"cgroup": "/"}), 422, "cgroup", "whole node").await;
    refused(json!({"cgroup": "/absent"}), 422, "cgroup", "there is no control group").await;
    assert_eq!(daemon.get("/v1/jobs").await.expect(200), json!([]), "nothing was registered");

    let first = daemon.register(&json!({"name": "a", "gpus": [0], "pids": [100], "lease_s": 600})).await;
    let second = json!({"name": "b", "gpus": [0], "control": false, "cgroup": "/train", "lease_s": 600});
    let second = daemon.register(&second).await;
    refused(json!({"pids": [100]}), 409, "", "is already counted for job").await;
    refused(json!({"cgroup": "/train/inner"}), 409, "", "is already counted for job").await;
    assert!(daemon.stop("TERM").await.success());

    // The next daemon counts on; a process that has the number of one that ended is not its own.
    machine.process(100, 1, 99, 0);
    machine.process(150, 1, 55, 10);
    let daemon = machine.daemon(&driver, state.path()).await;
    machine.group("train", 3_000_001, "");
    let time = eventually("the time", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{second}")).await.expect(200);
        view["processes"]["cpu_time_s"].as_f64().filter(|time| *time > 0.0)
    })
    .await;
    assert!(time == 3.0, "{time}");
    let view = daemon.get(&format!("/v1/jobs/{first}")).await.expect(200);
    assert_eq!(view["processes"]["running"], 0, "{view}");
    assert_eq!(view["processes"]["problem"], "all its processes have ended", "{view}");
}

#[tokio::test]
async fn a_gpu_with_several_jobs_is_split_by_what_their_processes_use() {
    let machine = Machine::new();
    machine.process(100, 1, 50, 0);
    machine.process(101, 100, 51, 0);
    machine.group("train", 0, "200");
    let driver = FakeDriver::new(&[json!({"process_utilization": {"101": 60, "200": 20, "999": 20}})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = machine.daemon(&driver, state.path()).await;
    let owner = daemon.register(&json!({"name": "a", "gpus": [0], "pids": [100], "lease_s": 600})).await;
    let guest = json!({"name": "b", "gpus": [0], "control": false, "cgroup": "/train", "lease_s": 600});
    let guest = daemon.register(&guest).await;
    let device = FakeDriver::uuid(0);
    // Three parts to one, and as much to nobody as to the guest.
    let rows = eventually("a split by use", LONG, async || {
        let rows = recorded(state.path(), &device).await;
        let last: Vec<_> = rows.iter().rev().take(3).cloned().collect();
        let part = |share: &str, job: Option<&str>| Some(sum(&last, share, job)).filter(|sum| *sum > 0);
        let (a, b, nobody) = (part("job", Some(&owner))?, part("job", Some(&guest))?, part("unattributed", None)?);
        let near = |x: i64, y: i64| (x - y).abs() <= 3;
        (near(a, 3 * b) && near(b, nobody)).then_some(last)
    })
    .await;
    assert_eq!(rows.len(), 3);

    // Where the driver cannot tell, shares are equal.
    driver.set(0, json!({"fail_calls": {"nvmlDeviceGetProcessUtilization": 3}}));
    eventually("equal shares", LONG, async || {
        let rows = recorded(state.path(), &device).await;
        let last: Vec<_> = rows.iter().rev().take(2).cloned().collect();
        ((last[0].2 - last[1].2).abs() <= 1 && last.iter().all(|r| r.0 == "job")).then_some(())
    })
    .await;
    // And with one job left, the GPU is its own.
    daemon.delete(&format!("/v1/jobs/{owner}")).await.expect(200);
    let before = recorded(state.path(), &device).await.len();
    eventually("one holder", LONG, async || {
        let rows = recorded(state.path(), &device).await;
        (rows.len() > before).then(|| assert_eq!(rows.last().expect("a row").1.as_deref(), Some(guest.as_str())))
    })
    .await;
}

#[tokio::test]
async fn a_machine_without_rapl_is_no_problem_and_doctor_says_what_to_do() {
    let machine = Machine::new();
    machine.remove("powercap");
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = machine.daemon(&driver, state.path()).await;
    let status = eventually("a reading", LONG, async || {
        let status = daemon.get("/v1/status").await.expect(200);
        status["cpu"]["cores"].is_number().then_some(status)
    })
    .await;
    assert_eq!(status["cpu"]["zones"], json!([]), "{status}");
    let reported = status["cpu"]["problems"][0].as_str().expect("reported");
    assert!(reported.contains("powercap does not exist") && reported.contains("cpu.powercap_root"), "{reported}");
    assert_eq!(status["problems"], json!([]), "nothing that somebody must look at");
    assert!(!daemon.get("/metrics").await.text.contains("wattune_cpu_energy"));
    drop(daemon);

    let doctor = |expected: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_wattune"));
        command.args(["doctor", "--format", "json", "--gpus", "simulated", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(state.path().join("test.toml")).arg("--state-dir").arg(state.path());
        let said = command.output().expect("it runs");
        let findings: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        let found = findings.as_array().expect("a list").iter().any(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}: {}", text("verdict"), text("what"), text("detail")).contains(expected)
        });
        assert!(found, "no {expected:?} in {findings}");
    };
    doctor("limited CPU energy: ");
    doctor("cpu.powercap_root");
    doctor("good processes of jobs: ");
    machine.write("powercap/intel-rapl:0/name", "package-0");
    machine.write("powercap/intel-rapl:0/max_energy_range_uj", RANGE);
    machine.energy("intel-rapl:0", 5);
    doctor("good CPU energy, cpu:package-0: ");
    machine.write("powercap/intel-rapl:0/energy_uj", "x");
    doctor("holds \"x\", not a count of microjoules");
}

#[tokio::test]
async fn a_kill_takes_no_open_interval_of_a_package_from_its_jobs() {
    // Intervals also end with the half hours of the carbon signal.
    let left = 1800 - now().timestamp().rem_euclid(1800);
    if left < 40 {
        tokio::time::sleep(std::time::Duration::from_secs(left.unsigned_abs() + 1)).await;
    }
    let mut machine = Machine::new();
    machine.process(100, 1, 50, 7000);
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = machine.daemon_closing(&driver, state.path(), 60).await;
    until_read(&daemon, "cpu:package-0", 0.0).await;
    let job = daemon.register(&json!({"name": "a", "gpus": [0], "pids": [100], "lease_s": 3600})).await;
    machine.process(100, 1, 50, 7400);
    machine.busy += 400;
    machine.times();
    eventually("its time", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{job}")).await.expect(200);
        (view["processes"]["cpu_time_s"].as_f64()? == 4.0).then_some(())
    })
    .await;
    machine.energy("intel-rapl:0", 41_000_000);
    until_read(&daemon, "cpu:package-0", 40.0).await;
    // Two checkpoints later it is written down.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(sum(&recorded(state.path(), "cpu:package-0").await, "job", Some(&job)), 0, "its interval is open");
    daemon.kill();
    machine.energy("intel-rapl:0", 43_000_000);
    let daemon = machine.daemon_closing(&driver, state.path(), 60).await;
    let rows = until_recorded(state.path(), "cpu:package-0", 42_000).await;
    // Whose the gap's energy is nobody can tell: CPU time was not counted meanwhile.
    let gap: Vec<_> = rows.iter().filter(|row| row.3 == "counter_gap").map(|row| (row.0.as_str(), row.2)).collect();
    assert_eq!(gap, [("unattributed", 2_000)], "{rows:?}");
    let (its, idle) = (sum(&rows, "job", Some(&job)), sum(&rows, "idle", None));
    assert!(its > 0 && its + idle == 40_000, "{rows:?}");
    assert!(daemon.stop("TERM").await.success());
    let rows = until_recorded(state.path(), "cpu:package-0", 42_000).await;
    assert_eq!(rows.iter().filter(|row| row.3 == "counter_gap").count(), 1, "{rows:?}");
}
