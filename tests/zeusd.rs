//! Zeus's daemon protocol: statuses, bodies and the order of checks, streams, and what becomes of a client's writes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wattune::http::Scope;

use crate::support::{Daemon, FakeDriver, LONG, eventually};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const INVALID: &str = "NVML error: a supplied argument was invalid";
const DENIED: &str = "NVML error: the current user does not have permission to perform this operation";
const UNSUPPORTED: &str = "NVML error: the requested operation is not available on the target device";
const INTERNAL: &str = "NVML error: an internal driver error occurred";
const LOST: &str = "NVML error: device fell off the bus or has otherwise become inacessible";

/// A machine with one CPU package and its memory, so that no test depends on the real one.
fn powercap(dir: &Path, package_uj: u64, dram_uj: u64) {
    for (zone, name, energy) in [("intel-rapl:0", "package-0", package_uj), ("intel-rapl:0:0", "dram", dram_uj)] {
        let zone = dir.join("powercap").join(zone);
        std::fs::create_dir_all(&zone).expect("made");
        for (file, text) in [
            ("name", name.to_owned()),
            ("max_energy_range_uj", "262143328850".into()),
            ("energy_uj", energy.to_string()),
        ] {
            let next = zone.join(format!("{file}.next"));
            std::fs::write(&next, text).expect("written");
            std::fs::rename(next, zone.join(file)).expect("renamed");
        }
    }
}

/// Starts a daemon over these GPUs with a socket, made-up CPUs and further settings.
async fn start(driver: &FakeDriver, state: &Path, settings: &str) -> Daemon {
    powercap(state, 5_000_000, 1_000_000);
    let cpu = format!("[cpu]\npowercap_root = {:?}\n[discovery]\nenabled = false\n", state.join("powercap"));
    let settings = format!("{}{cpu}{settings}", Daemon::QUICK);
    let mut command = Daemon::command_set(driver, state, &settings);
    command.arg("--socket").arg(state.join("zeusd.sock"));
    let daemon = Daemon::start(command, state).await;
    eventually("a reading of each GPU", LONG, async || {
        let gpus = daemon.get("/v1/gpus").await.expect(200);
        gpus.as_array()?.iter().all(|g| !g["power_w"].is_null() || g["state"] == "lost").then_some(())
    })
    .await;
    daemon
}

async fn exchange(daemon: &Daemon, method: &str, path: &str) -> (u16, String, String) {
    let url = format!("{}{path}", daemon.base());
    let answer = daemon.client().request(method.parse().expect("a method"), url).send().await.expect("answered");
    let content_type = answer.headers().get("content-type").map(|v| v.to_str().expect("ASCII").to_owned());
    (answer.status().as_u16(), content_type.unwrap_or_default(), answer.text().await.expect("a body"))
}

fn error(text: &str) -> String {
    json!({ "error": text }).to_string()
}

fn errors(failed: Value) -> String {
    json!({ "errors": failed }).to_string()
}

/// Rows of the tables of statuses, errors and parsing: method, path, status, content type, body.
#[tokio::test]
async fn every_refusal_has_its_status_and_its_words() {
    let refuses = |code: i32| json!({"nvmlDeviceSetPowerManagementLimit": code});
    let driver = FakeDriver::new(&[
        json!({}),
        json!({"fail_calls": refuses(999)}),
        json!({"deny_set_limit": true, "deny_persistence": true}),
        json!({"clocks_supported": false, "energy_supported": false}),
        json!({"mig_mode": true}),
    ]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let limit = "/gpu/set_power_limit";
    let query = |reason: &str| format!("Query deserialize error: {reason}");
    let set = |query: &str| format!("{limit}?{query}");
    let clocks = |query: &str| format!("/gpu/set_gpu_locked_clocks?{query}");
    let three = "expected one of `gpu_ids`, `power_limit_mw`, `block`";
    let four = "expected one of `gpu_ids`, `min_clock_mhz`, `max_clock_mhz`, `block`";
    let table: Vec<(&str, String, u16, &str, String)> = vec![
        // Routing: an unknown path and a wrong method are the same.
        ("GET", "/gpu/get_nothing".into(), 404, "", String::new()),
        ("GET", "/gpu/set_power_limit?gpu_ids=0&power_limit_mw=200000&block=true".into(), 404, "", String::new()),
        ("POST", "/gpu/get_power".into(), 404, "", String::new()),
        ("PUT", "/gpu/get_power".into(), 404, "", String::new()),
        ("HEAD", "/gpu/get_power".into(), 404, "", String::new()),
        ("HEAD", "/discover".into(), 404, "", String::new()),
        ("POST", "/time".into(), 404, "", String::new()),
        ("GET", "/gpu/".into(), 404, "", String::new()),
        ("GET", "/gpu/get_power/".into(), 404, "", String::new()),
        ("GET", "/auth/whoami".into(), 404, JSON, error("Authentication is not enabled on this server.")),
        ("POST", "/auth/nothing".into(), 404, JSON, error("Authentication is not enabled on this server.")),
        // Query strings.
        ("POST", limit.into(), 400, TEXT, query("missing field `gpu_ids`")),
        ("POST", set("gpu_ids=0&power_limit_mw=1"), 400, TEXT, query("missing field `block`")),
        ("POST", set("gpu_ids=0&block=true"), 400, TEXT, query("missing field `power_limit_mw`")),
        ("POST", set("x=1"), 400, TEXT, query(&format!("unknown field `x`, {three}"))),
        ("POST", clocks("x=1"), 400, TEXT, query(&format!("unknown field `x`, {four}"))),
        (
            "POST",
            "/gpu/reset_locked_clocks?x=1".into(),
            400,
            TEXT,
            query("unknown field `x`, expected `gpu_ids` or `block`"),
        ),
        ("POST", "/gpu/set_persistence_mode?gpu_ids=0&block=true".into(), 400, TEXT, query("missing field `enabled`")),
        ("GET", "/gpu/get_power?cpu_ids=0".into(), 400, TEXT, query("unknown field `cpu_ids`, expected `gpu_ids`")),
        ("GET", "/cpu/get_power?gpu_ids=0".into(), 400, TEXT, query("unknown field `gpu_ids`, expected `cpu_ids`")),
        ("GET", "/gpu/stream_power?x=0".into(), 400, TEXT, query("unknown field `x`, expected `gpu_ids`")),
        ("GET", "/gpu/get_power?gpu_ids=0&gpu_ids=1".into(), 400, TEXT, query("duplicate field `gpu_ids`")),
        (
            "POST",
            set("gpu_ids=0&power_limit_mw=1&block=1"),
            400,
            TEXT,
            query("provided string was not `true` or `false`"),
        ),
        (
            "POST",
            set("gpu_ids=0&power_limit_mw=1&block=True"),
            400,
            TEXT,
            query("provided string was not `true` or `false`"),
        ),
        ("POST", set("gpu_ids=0&power_limit_mw=-1&block=true"), 400, TEXT, query("invalid digit found in string")),
        ("POST", set("gpu_ids=0&power_limit_mw=1.5&block=true"), 400, TEXT, query("invalid digit found in string")),
        ("POST", set("gpu_ids=0&power_limit_mw=a&block=true"), 400, TEXT, query("invalid digit found in string")),
        (
            "POST",
            set("gpu_ids=0&power_limit_mw=&block=true"),
            400,
            TEXT,
            query("cannot parse integer from empty string"),
        ),
        (
            "POST",
            set("gpu_ids=0&power_limit_mw=4294967296&block=true"),
            400,
            TEXT,
            query("number too large to fit in target type"),
        ),
        // Types come before indices.
        ("POST", set("gpu_ids=a&power_limit_mw=x&block=true"), 400, TEXT, query("invalid digit found in string")),
        ("GET", "/gpu/get_power?gpu_ids=".into(), 400, JSON, error("gpu_ids must contain at least one GPU index")),
        ("GET", "/gpu/get_power?gpu_ids=%20".into(), 400, JSON, error("gpu_ids must contain at least one GPU index")),
        ("GET", "/gpu/get_power?gpu_ids=0,,1".into(), 400, JSON, error("gpu_ids contains an empty GPU index")),
        ("GET", "/gpu/get_power?gpu_ids=0,".into(), 400, JSON, error("gpu_ids contains an empty GPU index")),
        ("GET", "/gpu/get_power?gpu_ids=0,a".into(), 400, JSON, error("Invalid GPU index: a")),
        ("GET", "/gpu/get_power?gpu_ids=-1".into(), 400, JSON, error("Invalid GPU index: -1")),
        ("GET", "/cpu/get_power?cpu_ids=".into(), 400, JSON, error("cpu_ids must contain at least one CPU index")),
        ("GET", "/cpu/get_power?cpu_ids=a".into(), 400, JSON, error("Invalid CPU index: a")),
        ("POST", set("gpu_ids=a&power_limit_mw=1&block=true"), 400, JSON, error("Invalid GPU index: a")),
        // Devices that do not exist.
        (
            "POST",
            set("gpu_ids=0,9,7&power_limit_mw=200000&block=true"),
            400,
            TEXT,
            "GPU index 7 does not exist.".into(),
        ),
        ("POST", set("gpu_ids=0,7&power_limit_mw=200000&block=false"), 400, TEXT, "GPU index 7 does not exist.".into()),
        ("GET", "/gpu/get_power?gpu_ids=10,9,0".into(), 400, JSON, error("GPU 9 not found")),
        ("GET", "/cpu/get_power?cpu_ids=3".into(), 400, JSON, error("CPU 3 not found")),
        ("GET", "/cpu/get_cumulative_energy?cpu=true&dram=true&cpu_ids=3".into(), 400, JSON, error("CPU 3 not found")),
        ("GET", "/cpu/get_cumulative_energy?cpu=true".into(), 400, TEXT, query("missing field `dram`")),
        (
            "GET",
            "/gpu/stream_power?gpu_ids=10,9".into(),
            400,
            JSON,
            error("Unknown GPU indices: [9, 10]. Available: [0, 1, 2, 3, 4]"),
        ),
        ("GET", "/cpu/stream_power?cpu_ids=2".into(), 400, JSON, error("Unknown CPU indices: [2]. Available: [0]")),
        // Devices that refuse, with the largest status.
        ("POST", set("gpu_ids=0&power_limit_mw=99000&block=true"), 400, JSON, errors(json!({"0": INVALID}))),
        ("POST", set("gpu_ids=0&power_limit_mw=301000&block=true"), 400, JSON, errors(json!({"0": INVALID}))),
        ("POST", set("gpu_ids=0&power_limit_mw=0&block=false"), 200, "", String::new()),
        ("POST", set("gpu_ids=2&power_limit_mw=200000&block=true"), 403, JSON, errors(json!({"2": DENIED}))),
        (
            "POST",
            set("gpu_ids=2,1,0&power_limit_mw=200000&block=true"),
            500,
            JSON,
            errors(json!({"1": INTERNAL, "2": DENIED})),
        ),
        (
            "POST",
            "/gpu/set_persistence_mode?gpu_ids=2&enabled=false&block=true".into(),
            403,
            JSON,
            errors(json!({"2": DENIED})),
        ),
        (
            "POST",
            clocks("gpu_ids=3&min_clock_mhz=210&max_clock_mhz=1200&block=true"),
            400,
            JSON,
            errors(json!({"3": UNSUPPORTED})),
        ),
        (
            "POST",
            clocks("gpu_ids=0&min_clock_mhz=1200&max_clock_mhz=210&block=true"),
            400,
            JSON,
            errors(json!({"0": INVALID})),
        ),
        ("POST", "/gpu/reset_locked_clocks?gpu_ids=3&block=true".into(), 400, JSON, errors(json!({"3": UNSUPPORTED}))),
        ("GET", "/gpu/get_cumulative_energy?gpu_ids=0,3".into(), 400, JSON, errors(json!({"3": UNSUPPORTED}))),
        // Success has no body.
        ("POST", set("gpu_ids=0%2C%200&power_limit_mw=150000&block=true"), 200, "", String::new()),
        ("POST", "/gpu/set_persistence_mode?gpu_ids=0&enabled=true&block=true".into(), 200, "", String::new()),
        (
            "GET",
            "/gpu/get_power_limit?gpu_ids=0,1".into(),
            200,
            JSON,
            r#"{"0":{"power_limit_mw":150000},"1":{"power_limit_mw":300000}}"#.into(),
        ),
        (
            "GET",
            "/gpu/get_power_limit_constraints?gpu_ids=0".into(),
            200,
            JSON,
            r#"{"0":{"min_power_limit_mw":100000,"max_power_limit_mw":300000}}"#.into(),
        ),
        ("GET", "/gpu/get_persistence_mode?gpu_ids=0".into(), 200, JSON, r#"{"0":{"enabled":true}}"#.into()),
        (
            "GET",
            "/cpu/get_cumulative_energy?cpu=true&dram=false".into(),
            200,
            JSON,
            r#"{"0":{"cpu_energy_uj":5000000,"dram_energy_uj":null}}"#.into(),
        ),
        (
            "GET",
            "/cpu/get_cumulative_energy?cpu_ids=0&cpu=false&dram=true".into(),
            200,
            JSON,
            r#"{"0":{"cpu_energy_uj":null,"dram_energy_uj":1000000}}"#.into(),
        ),
    ];
    for (method, path, status, content_type, body) in table {
        let answer = exchange(&daemon, method, &path).await;
        // An object's keys may come in any order.
        let (got, wanted) = (serde_json::from_str::<Value>(&answer.2), serde_json::from_str::<Value>(&body));
        let is_same = answer.2 == body || matches!((got, wanted), (Ok(got), Ok(wanted)) if got == wanted);
        assert!(answer.0 == status && answer.1 == content_type && is_same, "{method} {path}: {answer:?}");
    }
    // What succeeded in a request that failed for other GPUs stays, and MIG is refused with its reason.
    assert_eq!(driver.limit_w(0), Some(150.0));
    let (status, _, body) = exchange(&daemon, "POST", &set("gpu_ids=4&power_limit_mw=200000&block=true")).await;
    assert!(status == 400 && body.contains("Invalid request: MIG is on"), "{status} {body}");
    driver.set(1, json!({"lost": true}));
    let (status, _, body) = exchange(&daemon, "GET", "/gpu/get_power?gpu_ids=0,1").await;
    assert_eq!((status, body), (500, errors(json!({"1": LOST}))));
}

#[tokio::test]
async fn what_is_there_is_discovered_and_groups_can_be_switched_off() {
    let driver = FakeDriver::new(&[json!({"pci_bus_id": "00000000:AF:00.0"}), json!({"energy_supported": false})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let (status, content_type, body) = exchange(&daemon, "GET", "/discover").await;
    let expected = concat!(
        r#"{"gpus":[{"id":0,"name":"NVIDIA Fake A40","pci_address":"0000:af:00.0","cumulative_energy_available":true},"#,
        r#"{"id":1,"name":"NVIDIA Fake A40","pci_address":"0000:01:00.0","cumulative_energy_available":false}],"#,
        r#""cpus":[{"id":0,"dram_available":true}],"enabled_api_groups":["gpu-control","gpu-read","cpu-read"],"auth_required":false}"#
    );
    assert_eq!((status, content_type.as_str(), body.as_str()), (200, JSON, expected));
    let time = daemon.get("/time").await.expect(200)["timestamp_ms"].as_i64().expect("a number");
    assert!((time - crate::support::now().timestamp_millis()).abs() < 60_000, "{time}");
    let power = daemon.get("/gpu/get_power").await.expect(200);
    assert_eq!(power["power_mw"], json!({"0": 260_000, "1": 260_000}), "{power}");
    assert!(power["timestamp_ms"].as_i64() >= Some(time), "{power}");
    drop(daemon);

    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[zeus]\nenable = [\"gpu-read\"]\n").await;
    let disabled = |group: &str| error(&format!("API group '{group}' is not enabled on this server."));
    for (method, path, group) in [
        ("POST", "/gpu/set_power_limit", "gpu-control"),
        ("GET", "/gpu/set_nothing", "gpu-control"),
        ("HEAD", "/gpu/reset_locked_clocks", "gpu-control"),
        ("GET", "/cpu/nothing", "cpu-read"),
    ] {
        let body = if method == "HEAD" { String::new() } else { disabled(group) };
        assert_eq!(exchange(&daemon, method, path).await, (404, JSON.into(), body), "{path}");
    }
    let found = daemon.get("/discover").await.expect(200);
    assert_eq!((&found["cpus"], &found["enabled_api_groups"]), (&json!([]), &json!(["gpu-read"])));
    assert_eq!(found["gpus"].as_array().map(Vec::len), Some(2));
    drop(daemon);

    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[zeus]\nenable = [\"cpu-read\"]\n").await;
    let found = daemon.get("/discover").await.expect(200);
    assert_eq!((&found["gpus"], found["cpus"].as_array().map(Vec::len)), (&json!([]), Some(1)));
}

/// Rows of the tables about tokens: what each request with each token is answered, over TCP and over the socket.
#[tokio::test]
async fn every_token_has_its_answer() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let key = state.path().join("key");
    std::fs::write(&key, "a key of Zeus ends with the newline that openssl prints\n").expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let daemon =
        start(&driver, state.path(), &format!("[http]\nloopback_control = false\ntoken_keys = [{key:?}]\n")).await;
    let token = |scopes: &[Scope], exp| format!("Bearer {}", crate::access::token(&key, scopes, exp));
    let reading = token(&[Scope::GpuRead], Some(9_999_999_999));
    let control = token(&[Scope::GpuRead, Scope::GpuControl], None);
    let nothing = token(&[], None);
    let cpu = token(&[Scope::CpuRead], None);
    let expired = token(&[Scope::GpuControl], Some(1));
    let none = error("Authentication required. Provide an Authorization: Bearer <token> header.");
    let invalid = |why: &str| error(&format!("Invalid token: {why}"));
    let lacks = |scope: &str, has: &str| {
        error(&format!("Token for user 'ada' lacks required scope '{scope}'. Token scopes: [{has}]"))
    };
    let whoami = "/auth/whoami";
    let limit = "/gpu/set_power_limit?gpu_ids=0&power_limit_mw=200000&block=true";
    let lower = control.replace("Bearer", "bearer");
    // Method, path, header, status, body; a body of `*` may be any.
    let table: Vec<(&str, &str, &str, u16, String)> = vec![
        ("GET", whoami, "", 401, none.clone()),
        ("GET", whoami, &lower, 401, none.clone()),
        ("GET", whoami, "Basic abc", 401, none.clone()),
        ("GET", whoami, "Bearer \u{e9}", 401, none.clone()),
        ("GET", whoami, "Bearer abc", 401, invalid("InvalidToken")),
        ("GET", whoami, &expired, 401, error("Token has expired.")),
        ("GET", whoami, &reading, 200, r#"{"sub":"ada","scopes":["gpu-read"],"exp":9999999999}"#.into()),
        ("GET", whoami, &control, 200, r#"{"sub":"ada","scopes":["gpu-read","gpu-control"]}"#.into()),
        ("GET", whoami, &nothing, 200, r#"{"sub":"ada","scopes":[]}"#.into()),
        ("POST", whoami, &reading, 404, String::new()),
        ("GET", "/auth/nothing", &reading, 404, String::new()),
        ("GET", "/auth/nothing", "", 401, none.clone()),
        ("GET", "/time", "Bearer abc", 200, "*".into()),
        ("GET", "/gpu/get_power", &reading, 200, "*".into()),
        ("GET", "/gpu/get_power", &control, 200, "*".into()),
        ("GET", "/gpu/get_power", &nothing, 403, lacks("gpu-read", "")),
        ("GET", "/gpu/get_power", &cpu, 403, lacks("gpu-read", "'cpu-read'")),
        ("GET", "/gpu/get_power", &expired, 401, error("Token has expired.")),
        ("GET", "/cpu/get_power", &reading, 403, lacks("cpu-read", "'gpu-read'")),
        ("GET", "/cpu/get_cumulative_energy?cpu=true&dram=true", &cpu, 200, "*".into()),
        ("POST", limit, &reading, 403, lacks("gpu-control", "'gpu-read'")),
        ("POST", limit, "Bearer abc", 401, invalid("InvalidToken")),
        // Tokens are checked before the query and the path, the groups before the tokens.
        ("POST", "/gpu/set_power_limit?x=1", &reading, 403, lacks("gpu-control", "'gpu-read'")),
        ("GET", "/gpu/get_nothing", &cpu, 403, lacks("gpu-read", "'cpu-read'")),
        ("GET", "/gpu/get_nothing", &reading, 404, String::new()),
        ("POST", limit, &control, 200, String::new()),
    ];
    let socket = reqwest::Client::builder().unix_socket(state.path().join("zeusd.sock")).tls_certs_only([]);
    let socket = socket.build().expect("a client");
    for (client, base) in [(daemon.client(), daemon.base()), (&socket, "http://localhost")] {
        for (method, path, authorization, status, body) in &table {
            let mut request = client.request(method.parse().expect("a method"), format!("{base}{path}"));
            if !authorization.is_empty() {
                let value = reqwest::header::HeaderValue::from_bytes(authorization.as_bytes()).expect("a value");
                request = request.header("authorization", value);
            }
            let answer = request.send().await.expect("answered");
            let challenge = answer.headers().get("www-authenticate").map(|v| v.to_str().expect("ASCII").to_owned());
            let (got, text) = (answer.status().as_u16(), answer.text().await.expect("a body"));
            assert_eq!(got, *status, "{method} {path} {authorization}: {text}");
            assert!(body == "*" || text == *body, "{method} {path} {authorization}: {text}");
            let expected = (*status == 401).then(|| "Bearer realm=\"zeusd\"".to_owned());
            assert_eq!(challenge, expected, "{method} {path} {authorization}");
        }
    }
    // What a client may use differs by connection and token.
    let discover = async |client: &reqwest::Client, base: &str, authorization: &str| {
        let mut request = client.get(format!("{base}/discover"));
        if !authorization.is_empty() {
            request = request.header("authorization", authorization);
        }
        let found: Value = request.send().await.expect("answered").json().await.expect("JSON");
        let count = |kind: &str| found[kind].as_array().map(Vec::len);
        (found["enabled_api_groups"].clone(), found["auth_required"].clone(), count("gpus"), count("cpus"))
    };
    let table = [
        (daemon.client(), daemon.base(), "", json!(["gpu-read", "cpu-read"]), false, 1, 1),
        (daemon.client(), daemon.base(), reading.as_str(), json!(["gpu-read"]), true, 1, 0),
        (daemon.client(), daemon.base(), control.as_str(), json!(["gpu-control", "gpu-read"]), true, 1, 0),
        (daemon.client(), daemon.base(), "Bearer abc", json!([]), true, 0, 0),
        (&socket, "http://localhost", "", json!(["gpu-control", "gpu-read", "cpu-read"]), false, 1, 1),
        (&socket, "http://localhost", cpu.as_str(), json!(["cpu-read"]), true, 0, 1),
    ];
    for (client, base, authorization, groups, required, gpus, cpus) in table {
        let found = discover(client, base, authorization).await;
        assert_eq!(found, (groups, json!(required), Some(gpus), Some(cpus)), "{base} {authorization}");
    }
    // Without a token, a program on this machine reads but does not control.
    assert_eq!(exchange(&daemon, "GET", "/gpu/get_power_limit").await.0, 200);
    assert_eq!(exchange(&daemon, "POST", limit).await, (401, JSON.into(), none));
}

/// Connects to a stream, and returns the connection and the head of the answer.
async fn subscribe(daemon: &Daemon, path: &str) -> (TcpStream, String) {
    let address = daemon.base().strip_prefix("http://").expect("HTTP");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    (stream, String::from_utf8(head).expect("ASCII").to_lowercase())
}

/// Reads chunks up to the next event, and returns the chunk and its JSON.
async fn event(stream: &mut TcpStream) -> (String, Value) {
    loop {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            let byte = tokio::time::timeout(LONG, stream.read_u8()).await.expect("an event").expect("a chunk");
            size.push(byte);
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size).expect("ASCII").trim(), 16).expect("a size");
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await.expect("a chunk");
        let text = String::from_utf8(chunk[..size].to_vec()).expect("UTF-8");
        // Comments keep the connection alive.
        if let Some(data) = text.strip_prefix("data: ") {
            let value = serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {text:?}"));
            return (text, value);
        }
        assert!(text.starts_with(':'), "{text:?}");
    }
}

#[tokio::test]
async fn power_is_streamed_as_events_on_change_to_whoever_listens() {
    let driver = FakeDriver::new(&[json!({"demand_w": 200}), json!({"demand_w": 150})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    let (mut stream, head) = subscribe(&daemon, "/gpu/stream_power?gpu_ids=0").await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    for line in ["content-type: text/event-stream\r\n", "cache-control: no-cache\r\n", "transfer-encoding: chunked\r\n"]
    {
        assert!(head.contains(line), "{head}");
    }
    let (text, first) = event(&mut stream).await;
    assert!(
        text.starts_with("data: {\"timestamp_ms\":") && text.ends_with(",\"gpu_id\":0,\"power_mw\":200000}\n\n"),
        "{text:?}"
    );
    driver.set(0, json!({"demand_w": 210}));
    let (_, next) = event(&mut stream).await;
    assert_eq!(next["power_mw"], 210_000, "an event only for a change");
    assert!(next["timestamp_ms"].as_i64() > first["timestamp_ms"].as_i64());
    // A second client gets the newest value at once; of all GPUs, one event each.
    let (mut both, _) = subscribe(&daemon, "/gpu/stream_power").await;
    let mut seen =
        [event(&mut both).await.1, event(&mut both).await.1].map(|e| (e["gpu_id"].as_i64(), e["power_mw"].as_i64()));
    seen.sort_unstable();
    assert_eq!(seen, [(Some(0), Some(210_000)), (Some(1), Some(150_000))]);
    drop((stream, both));
    // A new session begins with a new reading, not with the last one of an earlier session.
    tokio::time::sleep(Duration::from_millis(300)).await;
    driver.set(0, json!({"demand_w": 220}));
    let before = crate::support::now().timestamp_millis();
    let (mut again, _) = subscribe(&daemon, "/gpu/stream_power?gpu_ids=0").await;
    let (_, fresh) = event(&mut again).await;
    assert!(fresh["power_mw"] == 220_000 && fresh["timestamp_ms"].as_i64() >= Some(before - 200), "{fresh}");

    let (mut cpus, _) = subscribe(&daemon, "/cpu/stream_power").await;
    let mut joules = 0;
    let (text, power) = loop {
        joules += 1;
        powercap(state.path(), 5_000_000 + joules * 1_000_000, 1_000_000 + joules * 500_000);
        if let Ok(found) = tokio::time::timeout(Duration::from_millis(150), event(&mut cpus)).await
            && found.1["cpu_mw"].as_i64() > Some(0)
        {
            break found;
        }
    };
    assert!(text.contains(",\"cpu_id\":0,\"cpu_mw\":") && power["dram_mw"].is_number(), "{text}");
    let power = daemon.get("/cpu/get_power").await.expect(200);
    assert!(power["power_mw"]["0"]["cpu_mw"].is_number() && power["power_mw"]["0"]["dram_mw"].is_number(), "{power}");
}

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

const LIMIT: &str = "/gpu/set_power_limit?gpu_ids=0&block=true&power_limit_mw";

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
    let by = format!("Zeus client, process {}", client.pid());
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
