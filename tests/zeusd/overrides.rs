//! Settings that clients write: how long they are in force, and who may write them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{exchange, start, start_with};
use crate::support::{FakeDriver, LONG, eventually};

pub(super) const LIMIT: &str = "/gpu/set_power_limit?gpu_ids=0&block=true&power_limit_mw";
/// A client on the Unix socket that makes some writes and then stays.
struct Client(Child);

impl Client {
    fn start(socket: &Path, writes: &[&str]) -> Self {
        let script = "import socket, sys, time\n\
            s = socket.socket(socket.AF_UNIX)\n\
            s.connect(sys.argv[1])\n\
            for path in sys.argv[2:]:\n\
            \x20   s.sendall(f'POST {path} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\n\\r\\n'.encode())\n\
            \x20   answer = s.recv(4096).decode()\n\
            \x20   print(answer.split()[1], flush=True)\n\
            time.sleep(600)\n";
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).arg(socket).args(writes).stdout(Stdio::piped());
        Self(command.spawn().expect("python3 runs"))
    }

    /// The status of each write, once all are answered.
    fn statuses(&mut self, count: usize) -> Vec<String> {
        use std::io::BufRead;
        let output = std::io::BufReader::new(self.0.stdout.as_mut().expect("piped"));
        output.lines().take(count).map(|line| line.expect("a line")).collect()
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// `kill -9`, without waiting: the process stays as a zombie.
    fn kill(&mut self) {
        let sent = Command::new("kill").args(["-9", &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_killed_client_gives_its_gpu_back() {
    let gpu = json!({"initial_limit_w": 280, "persistence": false});
    let driver = FakeDriver::new(&[gpu]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let writes = [
        "/gpu/set_persistence_mode?gpu_ids=0&enabled=true&block=true",
        "/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=210&max_clock_mhz=1200&block=true",
        "/gpu/set_mem_locked_clocks?gpu_ids=0&min_clock_mhz=405&max_clock_mhz=405&block=true",
        // Above the original limit: the highest limit that wattune uses.
        &format!("{LIMIT}=300000"),
        &format!("{LIMIT}=200000"),
    ];
    let mut client = Client::start(&state.path().join("zeusd.sock"), &writes);
    assert_eq!(client.statuses(5), ["200"; 5]);
    let view = daemon.gpu(0).await;
    let by = format!("Zeus client, user {}, process {}", wattune::files::user(), client.pid());
    assert_eq!(
        (&view["state"], &view["override_by"], &view["override_until"]),
        (&json!("override"), &json!(by), &Value::Null)
    );
    assert_eq!((driver.limit_w(0), driver.lock_mhz(0)), (Some(200.0), Some(1200.0)));
    // It keeps what it set while its process runs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((driver.limit_w(0), driver.lock_mhz(0)), (Some(200.0), Some(1200.0)));
    client.kill();
    let begun = crate::support::now();
    eventually("the original limit", LONG, async || (driver.limit_w(0) == Some(280.0)).then_some(())).await;
    let took = crate::support::now() - begun;
    assert!(took < chrono::TimeDelta::seconds(5), "{took}");
    eventually("free clocks, no persistence mode and no journal entry", LONG, async || {
        let view = daemon.gpu(0).await;
        let is_free = driver.lock_mhz(0) == Some(0.0) && view["persistence"] == false && view["state"] == "free";
        (is_free && view["power_limit_original_w"].is_null()).then_some(())
    })
    .await;
    assert_eq!(
        driver.limits_written(0),
        [200.0, 280.0],
        "no other write: the original limit was the highest usable one"
    );
    let writes = driver.writes();
    let of = |call: &str| writes.iter().filter(|w| w.call == call && w.code == 0).count();
    assert_eq!((of("nvmlDeviceSetMemoryLockedClocks"), of("nvmlDeviceResetMemoryLockedClocks")), (1, 1));
    assert_eq!(of("nvmlDeviceSetPersistenceMode"), 2);
}

#[tokio::test]
async fn a_full_disk_does_not_keep_a_killed_clients_limit_in_force() {
    let driver = FakeDriver::new(&[json!({"initial_limit_w": 280})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let writes = [
        "/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=210&max_clock_mhz=1200&block=true",
        "/gpu/set_mem_locked_clocks?gpu_ids=0&min_clock_mhz=405&max_clock_mhz=405&block=true",
        &format!("{LIMIT}=200000"),
    ];
    let mut client = Client::start(&state.path().join("zeusd.sock"), &writes);
    assert_eq!(client.statuses(3), ["200"; 3]);
    // The journal file cannot be replaced, so that the end of the locks cannot be recorded.
    let in_the_way = state.path().join("found-limits.json.new");
    std::fs::create_dir(&in_the_way).expect("made");
    client.kill();
    eventually("the original limit", LONG, async || (driver.limit_w(0) == Some(280.0)).then_some(())).await;
    eventually("free clocks", LONG, async || (driver.lock_mhz(0) == Some(0.0)).then_some(())).await;
    assert_eq!(daemon.gpu(0).await["power_limit_original_w"], 280.0, "the journal keeps its entry");
    std::fs::remove_dir(&in_the_way).expect("removed");
    eventually("no journal entry", LONG, async || {
        let view = daemon.gpu(0).await;
        (view["state"] == "free" && view["power_limit_original_w"].is_null()).then_some(())
    })
    .await;
    let writes = driver.writes();
    let resets = writes.iter().filter(|w| w.call == "nvmlDeviceResetMemoryLockedClocks").count();
    assert_eq!(resets, 1, "the memory's clocks are unlocked once");
}

#[tokio::test]
async fn a_killed_daemons_successor_undoes_what_its_clients_set() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    for path in [
        "/gpu/set_mem_locked_clocks?gpu_ids=0&min_clock_mhz=405&max_clock_mhz=405&block=true",
        "/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=210&max_clock_mhz=1200&block=true",
        &format!("{LIMIT}=200000"),
    ] {
        assert_eq!(exchange(&daemon, "POST", path).await.0, 200, "{path}");
    }
    daemon.kill();
    let _daemon = start(&driver, state.path(), "").await;
    eventually("all settings are undone", LONG, async || {
        let is_reset = driver.writes().iter().any(|w| w.call == "nvmlDeviceResetMemoryLockedClocks" && w.code == 0);
        (driver.limit_w(0) == Some(300.0) && driver.lock_mhz(0) == Some(0.0) && is_reset).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_clients_and_a_job_do_not_fight_over_a_gpu() {
    let driver = Arc::new(FakeDriver::new(&[json!({"initial_limit_w": 280, "demand_w": 400, "process_ids": [1]})]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let mut client = Client::start(&state.path().join("zeusd.sock"), &[&format!("{LIMIT}=200000")]);
    assert_eq!(client.statuses(1), ["200"]);
    // The later client's write counts; the earlier client's end then changes nothing.
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=180000")).await.0, 200);
    let by = daemon.gpu(0).await["override_by"].as_str().unwrap_or_default().to_owned();
    assert!(by.starts_with("Zeus client over TCP"), "{by}");
    drop(client);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((driver.limit_w(0), driver.limits_written(0)), (Some(180.0), vec![200.0, 180.0]));
    // A job takes the GPU over, and the clients learn who has it.
    let job = daemon.register(&json!({"name": "resnet50", "gpus": [0]})).await;
    eventually("the job's limit", LONG, async || (driver.limit_w(0) == Some(280.0)).then_some(())).await;
    for block in ["true", "false"] {
        let path = format!("/gpu/set_power_limit?gpu_ids=0&power_limit_mw=150000&block={block}");
        let (status, _, body) = exchange(&daemon, "POST", &path).await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let why = body["errors"]["0"].as_str().unwrap_or_default();
        assert!(
            status == 403 && why.contains(&format!("controlled by wattune's job {job} (resnet50)")),
            "{status} {body}"
        );
    }
    let view = daemon.gpu(0).await;
    assert_eq!((&view["state"], &view["owner"], &view["override_by"]), (&json!("job"), &json!(job), &Value::Null));
    daemon.delete(&format!("/v1/jobs/{job}")).await.expect(200);
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=150000")).await.0, 200);
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limit_w(0), Some(280.0));
    assert_eq!(driver.limits_written(0), [200.0, 180.0, 280.0, 150.0, 280.0]);
}

#[tokio::test]
async fn overrides_end_as_the_settings_say() {
    let driver = Arc::new(FakeDriver::new(&[json!({}), json!({"process_ids": [1]})]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[zeus]\nunused_s = 2\nkeep_after_exit = true\nover_jobs = true\n").await;
    let job = daemon.register(&json!({"name": "a", "gpus": [0]})).await;
    // Over TCP: as long as a process uses the GPU; and, with this setting, over the job.
    let both = "/gpu/set_power_limit?gpu_ids=0,1&power_limit_mw=150000&block=true";
    assert_eq!(exchange(&daemon, "POST", both).await.0, 200);
    let view = daemon.gpu(0).await;
    assert_eq!((&view["state"], &view["owner"]), (&json!("override"), &json!(job)));
    eventually("the unused GPU's limit", LONG, async || (driver.limit_w(0) == Some(300.0)).then_some(())).await;
    assert_eq!(driver.limit_w(1), Some(150.0));
    driver.set(1, json!({"process_ids": []}));
    eventually("the other GPU's limit", LONG, async || (driver.limit_w(1) == Some(300.0)).then_some(())).await;
    // Over the socket: a one-off write is kept after its client's end.
    let mut client = Client::start(&state.path().join("zeusd.sock"), &[&format!("{LIMIT}=150000")]);
    assert_eq!(client.statuses(1), ["200"]);
    drop(client);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(driver.limit_w(0), Some(150.0));
    drop(daemon);

    // A manual override of the daemon's own API comes before Zeus's clients.
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = start(&driver, state.path(), "").await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=140000")).await.0, 200);
    daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": 160, "ttl_s": 60})).await.expect(200);
    let (status, _, body) = exchange(&daemon, "POST", &format!("{LIMIT}=140000")).await;
    assert!(status == 403 && body.contains("GPU 0 has a manual override of 160 W"), "{status} {body}");
}

#[tokio::test]
async fn each_of_many_writes_has_a_record_with_the_limit_before_it_in_the_order_of_the_writes() {
    let driver = FakeDriver::new(&[json!({}), json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let (mut expected, mut before) = (Vec::new(), [300.0, 300.0]);
    for count in 0..150 {
        // The two GPUs in turns, both with the same limit.
        for (gpu, before) in before.iter_mut().enumerate() {
            let watts = 150.0 + f64::from(count % 100);
            let path = format!("/gpu/set_power_limit?gpu_ids={gpu}&block=true&power_limit_mw={watts}000");
            assert_eq!(exchange(&daemon, "POST", &path).await.0, 200);
            expected.push((FakeDriver::uuid(gpu), std::mem::replace(before, watts), watts, "enforced".to_owned()));
        }
    }
    // A refused write with block=false is recorded too.
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 160, "ttl_s": 600})).await.expect(200);
    let is_set = async || (daemon.gpu(1).await["power_limit_enforced_w"] == 160.0).then_some(());
    eventually("the override's limit", LONG, is_set).await;
    let refused = "/gpu/set_power_limit?gpu_ids=1&power_limit_mw=140000&block=false";
    assert_eq!(exchange(&daemon, "POST", refused).await.0, 403);
    expected.push((FakeDriver::uuid(1), 160.0, 140.0, "refused".to_owned()));
    let watts = |state: &Value| state["power_limit_w"].as_f64().unwrap_or(f64::NAN);
    let mut records = records_of_clients(&state.path().join("zeusd.sock")).await;
    // A client may write to the second GPU while the first one is still being read back.
    records.sort_by_key(|record| text(&record["at"]).parse::<chrono::DateTime<chrono::Utc>>().expect("a time"));
    let found: Vec<_> = records
        .iter()
        .map(|r| (text(&r["gpu"]), watts(&r["before"]), watts(&r["after"]), text(&r["outcome"])))
        .collect();
    assert_eq!(found, expected);
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The records of clients' writes, oldest first.
pub(super) async fn records_of_clients(socket: &Path) -> Vec<Value> {
    let mut stream = UnixStream::connect(socket).await.expect("connected");
    let request = b"GET /v1/audit?limit=1000 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.expect("sent");
    let mut answer = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let page: Value = serde_json::from_str(body).expect("JSON");
    let records = page["records"].as_array().expect("a list").iter();
    records.filter(|r| text(&r["who"]).starts_with("Zeus client")).cloned().collect()
}

/// The records of clients' writes, oldest first, as (limit requested or in force, outcome, reason).
pub(super) async fn records(socket: &Path) -> Vec<(f64, String, String)> {
    let of =
        |r: &Value| (r["after"]["power_limit_w"].as_f64().unwrap_or(f64::NAN), text(&r["outcome"]), text(&r["reason"]));
    records_of_clients(socket).await.iter().map(of).collect()
}

#[tokio::test]
async fn a_limit_that_is_lowered_is_not_recorded_as_enforced() {
    let driver = FakeDriver::new(&[json!({"initial_limit_w": 280})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[cap]\nlimit_w = 250\nlead_s = 0\n").await;
    eventually("the cap's limit", LONG, async || (driver.limit_w(0) == Some(250.0)).then_some(())).await;
    // Above the original limit, above the cap, and permitted; each twice, the later time without a write.
    for watts in [300, 270, 300, 270, 200, 200] {
        assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}={watts}000")).await.0, 200, "{watts} W");
    }
    let found = records(&state.path().join("zeusd.sock")).await;
    let (lowered, enforced) = found.split_at_checked(4).unwrap_or_else(|| panic!("{found:#?}"));
    let then = "is written as soon as the GPU answers and the node's cap permits it";
    let reasons = [
        format!("300 W was requested; 280 W, the GPU's maximum usable limit, {then}"),
        format!("270 W was requested; it {then}"),
    ];
    for ((limit, outcome, reason), expected) in lowered.iter().zip(reasons.iter().cycle()) {
        assert_eq!((*limit, outcome.as_str(), reason), (250.0, "not_enforced", expected), "{found:#?}");
    }
    assert_eq!(enforced, [(200.0, "enforced".into(), String::new()), (200.0, "enforced".into(), String::new())]);
    drop(daemon);

    // The original limit is the GPU's maximum usable limit.
    let driver = FakeDriver::new(&[json!({"initial_limit_w": 280})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    // The last one is so close to the one in force that it is not written.
    for milliwatts in [200_000, 300_000, 283_000, 279_600] {
        assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}={milliwatts}")).await.0, 200, "{milliwatts} mW");
    }
    let lowered = |watts: u32| {
        let why =
            format!("{watts} W was requested; the GPU's maximum usable limit or the node's cap permits only 280 W");
        (280.0, "not_enforced".to_owned(), why)
    };
    let found = records(&state.path().join("zeusd.sock")).await;
    let enforced = |watts: f64| (watts, "enforced".to_owned(), String::new());
    assert_eq!(found, [enforced(200.0), lowered(300), lowered(283), enforced(280.0)]);
    assert_eq!(driver.limits_written(0), [200.0, 280.0]);
}

#[tokio::test]
async fn a_write_waits_for_persistence_mode_and_a_repeated_one_is_recorded_once() {
    let driver = FakeDriver::new(&[json!({"initial_limit_w": 280, "persistence": false})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start_with(&driver, state.path(), "enable_persistence = true\n", "[cap]\nlead_s = 0\n").await;
    for _ in 0..2 {
        assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=200000")).await.0, 200);
        assert_eq!((driver.limit_w(0), driver.limits_written(0)), (Some(200.0), vec![200.0]));
    }
    // The daemon's later write is not the client's.
    let soon = crate::support::now() + chrono::TimeDelta::milliseconds(100);
    let event = json!({"id": "a", "start": soon, "end": soon + chrono::TimeDelta::hours(1), "target_w": 150});
    daemon.post("/v1/demand-response", &event).await.expect(201);
    eventually("the cap's limit", LONG, async || (driver.limit_w(0) == Some(150.0)).then_some(())).await;
    eventually("the record of the cap's limit", LONG, async || {
        (daemon.gpu(0).await["power_limit_enforced_w"] == 150.0).then_some(())
    })
    .await;
    let found = records(&state.path().join("zeusd.sock")).await;
    assert_eq!(found, vec![(200.0, "enforced".to_owned(), String::new()); 2]);
}

#[tokio::test]
async fn a_client_that_sets_no_limit_does_not_keep_the_limit_of_an_event() {
    let driver = FakeDriver::new(&[json!({"initial_limit_w": 280, "persistence": false})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[cap]\nlead_s = 0\n").await;
    let soon = crate::support::now() + chrono::TimeDelta::milliseconds(100);
    let event = json!({"id": "a", "start": soon, "end": soon + chrono::TimeDelta::seconds(8), "target_w": 150});
    daemon.post("/v1/demand-response", &event).await.expect(201);
    eventually("the event's limit", LONG, async || (driver.limit_w(0) == Some(150.0)).then_some(())).await;
    let persist = "/gpu/set_persistence_mode?gpu_ids=0&enabled=true&block=true";
    let mut client = Client::start(&state.path().join("zeusd.sock"), &[persist]);
    assert_eq!(client.statuses(1), ["200"]);
    assert_eq!(driver.limit_w(0), Some(150.0), "the event goes on");
    // The client's override lasts beyond the event.
    eventually("the original limit", LONG, async || (driver.limit_w(0) == Some(280.0)).then_some(())).await;
    let view = daemon.gpu(0).await;
    assert!(view["state"] == "override" && view["persistence"] == true, "{view}");
}
