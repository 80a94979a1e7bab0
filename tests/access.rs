//! Access: who may do what over which connection, with which token.

mod tokens;

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use wattune::http::{Claims, Scope, TokenKeys};

use crate::support::{Daemon, FakeDriver, LONG, eventually};

const LIMIT: &str = "/v1/gpus/0/power-limit";
/// Two users of this machine, neither of whom needs a name.
pub(crate) const ADA: u32 = 47_110;
pub(crate) const BOB: u32 = 47_111;

/// Writes a key that only this user can read.
pub(crate) fn key(path: &Path, byte: u8) -> PathBuf {
    fs::write(path, [byte; 48]).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("changed");
    path.to_owned()
}

pub(crate) fn token(key: &Path, scopes: &[Scope], exp: Option<u64>) -> String {
    let keys = TokenKeys::load(&[key.to_owned()]).expect("a key");
    keys.issue(&Claims { sub: "ada".into(), scopes: scopes.to_vec(), exp }).expect("issued")
}

/// Starts a daemon over one GPU with a socket, and with these settings of the API.
pub(crate) async fn start(driver: &FakeDriver, state: &Path, http: &str) -> Daemon {
    let settings = format!("{}[discovery]\nenabled = false\n[http]\n{http}\n", Daemon::QUICK);
    let mut command = Daemon::command_set(driver, state, &settings);
    command.arg("--socket").arg(state.join("wattune.sock"));
    let daemon = Daemon::start(command, state).await;
    eventually("a reading of the GPU", LONG, async || {
        let gpu = daemon.gpu(0).await;
        (!gpu["power_limit_requested_w"].is_null()).then_some(())
    })
    .await;
    daemon
}

/// Sends a request as a user over TCP, and returns the status and the body.
pub(crate) fn request(user: u32, daemon: &Daemon, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let script = "import http.client, sys\n\
        address, method, path, body = sys.argv[1:]\n\
        connection = http.client.HTTPConnection(address, timeout=60)\n\
        headers = {'content-type': 'application/json'} if body else {}\n\
        connection.request(method, path, body or None, headers)\n\
        answer = connection.getresponse()\n\
        print(answer.status)\n\
        print(answer.read().decode())\n";
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let address = daemon.base().strip_prefix("http://").expect("HTTP");
    let mut command = Command::new("python3");
    command.args(["-c", script, address, method, path, &body]).current_dir("/").uid(user);
    let output = command.output().expect("python3 runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (status, body) = text.split_once('\n').unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (status.parse().expect("a status"), serde_json::from_str(body).expect("JSON"))
}

/// Returns whether this process can act as other users.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
pub(crate) fn is_root() -> bool {
    let is_root = wattune::files::user() == 0;
    if !is_root {
        println!("skipped: only root can act as other users");
    }
    is_root
}

pub(crate) async fn send(
    daemon: &Daemon,
    method: &str,
    path: &str,
    body: Option<&Value>,
    authorization: &str,
) -> (u16, String) {
    let url = format!("{}{path}", daemon.base());
    let mut request = daemon.client().request(method.parse().expect("a method"), url);
    if !authorization.is_empty() {
        request = request.header("authorization", authorization);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = daemon.send(request).await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn bad_tokens_set_nothing() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let [old, new, foreign] = [1, 2, 3].map(|byte| key(&state.path().join(format!("key{byte}")), byte));
    let daemon =
        start(&driver, state.path(), &format!("loopback_control = false\ntoken_keys = [{new:?}, {old:?}]")).await;
    let bearer = |token: String| format!("Bearer {token}");
    let control = [Scope::GpuControl, Scope::GpuRead];
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"sub":"ada","scopes":["gpu-control"]}"#;
    let good = token(&new, &control, None);
    let replayed = token(&old, &control, None);
    let limit = json!({"power_limit_w": 150, "ttl_s": 60});
    let event = json!({"id": "e", "start": "2026-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z", "target_w": 110});
    // The key is one of this daemon's until it is removed.
    assert_eq!(send(&daemon, "GET", "/auth/whoami", None, &bearer(replayed.clone())).await.0, 200);
    fs::remove_file(&old).expect("removed");
    let table = [
        ("none", String::new(), 401),
        ("forged", bearer(token(&foreign, &control, None)), 401),
        ("expired", bearer(token(&new, &control, Some(1))), 401),
        ("alg none", bearer(format!("{}.{}.", part(r#"{"typ":"JWT","alg":"none"}"#), part(claims))), 401),
        (
            "the signature of another",
            bearer(format!("{}{}", &good[..good.len() - 60], &replayed[replayed.len() - 60..])),
            401,
        ),
        ("replayed after its key is gone", bearer(replayed), 401),
        ("no token", bearer("secret".into()), 401),
        ("basic", format!("Basic {good}"), 401),
        ("wrong scope", bearer(token(&new, &[Scope::GpuRead, Scope::CpuRead, Scope::Jobs], None)), 403),
    ];
    for (what, authorization, status) in &table {
        let zeus = "/gpu/set_power_limit?gpu_ids=0&power_limit_mw=150000&block=true";
        for (method, path, body) in [
            ("PUT", LIMIT, Some(&limit)),
            ("DELETE", LIMIT, None),
            ("POST", "/v1/demand-response", Some(&event)),
            ("DELETE", "/v1/demand-response/e", None),
            ("POST", zeus, None),
        ] {
            let answer = send(&daemon, method, path, body, authorization).await;
            assert_eq!(answer.0, *status, "{what}: {method} {path}: {}", answer.1);
        }
    }
    // Of Zeus's routes, none accepts the scheme in lower case, as zeusd; all others do (RFC 7235).
    let lower = format!("bearer {good}");
    let zeus = send(&daemon, "POST", "/gpu/set_persistence_mode?gpu_ids=0&enabled=true&block=true", None, &lower).await;
    assert_eq!(zeus.0, 401, "{}", zeus.1);
    assert_eq!(send(&daemon, "DELETE", LIMIT, None, &lower).await.0, 200);
    let limits = || driver.writes().into_iter().filter(|write| write.call.contains("SetPowerManagementLimit")).count();
    assert_eq!(limits(), 0, "{:?}", driver.writes());
    assert_eq!(daemon.get("/v1/demand-response").await.expect(200), json!([]));
    let answer = send(&daemon, "PUT", LIMIT, Some(&limit), &bearer(good)).await;
    assert_eq!(answer.0, 200, "{}", answer.1);
    eventually("the limit", LONG, async || (driver.limit_w(0) == Some(150.0)).then_some(())).await;
    let gpu = daemon.gpu(0).await;
    assert!(gpu["override_by"].as_str().is_some_and(|by| by.starts_with("token of \"ada\"")), "{}", gpu["override_by"]);
    // Each refusal is in the audit log, which takes another scope.
    let admin = bearer(token(&new, &[Scope::Admin], None));
    let (status, log) = send(&daemon, "GET", "/v1/audit", None, &admin).await;
    let log: Value = serde_json::from_str(&log).expect("JSON");
    let records = log["records"].as_array().expect("records");
    let refused = |reason: &str| {
        let of = records.iter().filter(|r| r["action"] == "refuse_access" && r["outcome"] == "refused");
        let times = |r: &Value| r["repeats"].as_u64().unwrap_or_default() + 1;
        of.filter(|r| r["reason"] == reason).map(times).sum::<u64>()
    };
    for reason in ["PUT /v1/gpus/0/power-limit", "DELETE /v1/demand-response/e", "POST /gpu/set_power_limit"] {
        assert_eq!((status, refused(reason)), (200, table.len() as u64), "{reason}: {log}");
    }
}

#[tokio::test]
async fn refusals_say_how_to_get_the_right() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = false").await;
    let url = format!("{}{LIMIT}", daemon.base());
    // Without keys, no token helps.
    let answer = daemon.client().delete(&url).header("authorization", "Bearer x").send().await.expect("answered");
    assert_eq!((answer.status().as_u16(), answer.headers().get("www-authenticate")), (403, None));
    let problem: Value = answer.json().await.expect("JSON");
    let socket = state.path().join("wattune.sock");
    for part in ["http.token_keys", "gpu-control", "http.loopback_control = true", socket.to_str().expect("UTF-8")] {
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(part)), "{part}: {problem}");
    }
    // Over the socket everything is open.
    let client = reqwest::Client::builder().unix_socket(socket).tls_certs_only([]).build().expect("a client");
    let body = json!({"power_limit_w": 150, "ttl_s": 60});
    let set = client.put(format!("http://localhost{LIMIT}")).json(&body).send().await.expect("answered");
    assert_eq!(set.status().as_u16(), 200, "{:?}", set.text().await);
    drop(daemon);

    let state = tempfile::tempdir().expect("a directory");
    let path = key(&state.path().join("key"), 7);
    let daemon = start(&driver, state.path(), &format!("loopback_control = false\ntoken_keys = [{path:?}]")).await;
    let url = format!("{}{LIMIT}", daemon.base());
    let answer = daemon.client().delete(&url).send().await.expect("answered");
    let challenge = answer.headers().get("www-authenticate").cloned();
    assert_eq!(answer.status().as_u16(), 401);
    assert_eq!(challenge.as_ref().map(|value| value.as_bytes()), Some(&b"Bearer realm=\"wattune\""[..]));
    // Reading needs no token, and an invalid one is refused all the same.
    assert_eq!(send(&daemon, "GET", "/v1/status", None, "").await.0, 200);
    let (status, text) = send(&daemon, "GET", "/v1/status", None, "Bearer x.y.z").await;
    assert!(status == 401 && text.contains("wattune token inspect"), "{status} {text}");
    assert_eq!(send(&daemon, "GET", "/healthz", None, "Bearer x.y.z").await.0, 200);
    drop(daemon);

    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = true").await;
    assert_eq!(send(&daemon, "DELETE", LIMIT, None, "").await.0, 200);
}

#[tokio::test]
async fn jobs_belong_to_the_user_who_registers_them() {
    if !is_root() {
        return;
    }
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = false").await;
    let job = json!({"name": "a", "gpus": [0]});
    let register = |user, job: &Value| {
        let (status, view) = request(user, &daemon, "POST", "/v1/jobs", job);
        assert_eq!(status, 201, "{view}");
        format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"))
    };
    let path = register(ADA, &job);
    let none = Value::Null;
    for user in [BOB, 0] {
        for (method, path, body) in [
            ("DELETE", path.clone(), none.clone()),
            ("POST", format!("{path}/progress"), json!({"samples": 1})),
            ("POST", format!("{path}/lease"), json!({})),
            ("POST", format!("{path}/begin"), json!({})),
            ("POST", format!("{path}/suspended"), json!({})),
        ] {
            let (status, problem) = request(user, &daemon, method, &path, &body);
            let detail = problem["detail"].as_str().unwrap_or_default();
            let names =
                detail.contains(&format!("belongs to user {ADA}")) && detail.contains(&format!("from user {user}"));
            assert!(status == 403 && names, "{method} {path}: {status} {problem}");
        }
        let replacing = json!({"name": "b", "gpus": [0], "replaces": path.rsplit('/').next()});
        assert_eq!(request(user, &daemon, "POST", "/v1/jobs", &replacing).0, 403);
        assert_eq!(request(user, &daemon, "PUT", LIMIT, &json!({"power_limit_w": 150, "ttl_s": 60})).0, 403);
    }
    assert_eq!(request(ADA, &daemon, "POST", &format!("{path}/progress"), &json!({"samples": 1})).0, 200);
    assert_eq!(request(BOB, &daemon, "GET", &path, &none).0, 200, "everyone reads");
    // It still belongs to its user after a restart.
    daemon.stop("TERM").await;
    let daemon = start(&driver, state.path(), "loopback_control = false").await;
    assert_eq!(request(BOB, &daemon, "DELETE", &path, &none).0, 403);
    assert_eq!(request(ADA, &daemon, "DELETE", &path, &none).0, 200);
    // Only root registers for others.
    let for_ada = json!({"name": "a", "gpus": [0], "uid": ADA});
    let (status, problem) = request(BOB, &daemon, "POST", "/v1/jobs", &for_ada);
    assert!(status == 403 && problem["detail"].as_str().is_some_and(|d| d.contains("leave \"uid\" out")), "{problem}");
    for user in [ADA, 0] {
        let (status, view) = request(0, &daemon, "POST", "/v1/jobs", &for_ada);
        assert_eq!(status, 201, "{view}");
        let path = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
        assert_eq!(request(BOB, &daemon, "DELETE", &path, &none).0, 403);
        assert_eq!(request(user, &daemon, "DELETE", &path, &none).0, 200, "{user}");
    }
    drop(daemon);

    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = true").await;
    let (_, view) = request(ADA, &daemon, "POST", "/v1/jobs", &job);
    let path = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
    assert_eq!(request(BOB, &daemon, "DELETE", &path, &none).0, 200);
}

/// Returns an address of this machine that is not loopback.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent; the kernel only chooses an address.
    let address = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()).ok()?.ip();
    let found = (!address.is_loopback() && !address.is_unspecified()).then_some(address);
    if found.is_none() {
        println!("skipped: this machine has no other address than loopback");
    }
    found
}

#[tokio::test]
async fn other_machines_need_a_token_and_to_control_tls() {
    let Some(address) = own_address() else { return };
    let driver = FakeDriver::new(&[json!({})]);
    let cert = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/access/cert.pem");
    let limit = json!({"power_limit_w": 150, "ttl_s": 60});
    for has_tls in [false, true] {
        let state = tempfile::tempdir().expect("a directory");
        let path = key(&state.path().join("key"), 7);
        let secret = state.path().join("key.pem");
        fs::copy(cert.with_file_name("key.pem"), &secret).expect("copied");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("changed");
        let tls = format!("tls_cert = {cert:?}\ntls_key = {secret:?}\n");
        let tls = if has_tls { tls } else { String::new() };
        let settings = format!("{}[http]\nloopback_control = true\ntoken_keys = [{path:?}]\n{tls}", Daemon::QUICK);
        let plain = Daemon::command_set(&driver, state.path(), &settings);
        let mut command = Command::new(plain.get_program());
        command.args(plain.get_args().map(|a| if a == "127.0.0.1:0" { "0.0.0.0:0".as_ref() } else { a }));
        command.env("FAKE_NVML_DIR", driver.dir());
        let daemon = Daemon::start(command, state.path()).await;
        let port: u16 = daemon.base().rsplit(':').next().expect("a port").parse().expect("a port");
        let client =
            reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build().expect("a client");
        let send = async |scheme: &str, method: &str, path: &str, token: Option<&str>| {
            let url = format!("{scheme}://{address}:{port}{path}");
            let mut request = client.request(method.parse().expect("a method"), url);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            if method == "PUT" {
                request = request.json(&limit);
            }
            let answer = request.send().await.expect("answered");
            (answer.status().as_u16(), answer.text().await.expect("a text"))
        };
        let control = token(&path, &[Scope::GpuControl], None);
        let reading = token(&path, &[Scope::GpuRead], None);
        assert_eq!(send("http", "GET", "/healthz", None).await.0, 200);
        let found: Value = serde_json::from_str(&send("http", "GET", "/discover", None).await.1).expect("JSON");
        let nothing = json!({"gpus": [], "cpus": [], "enabled_api_groups": [], "auth_required": true});
        assert_eq!(found, nothing, "what a client without a token may use");
        if has_tls {
            for token in [None, Some(control.as_str())] {
                let (status, text) = send("http", "GET", "/v1/status", token).await;
                assert!(status == 403 && text.contains("use https://"), "{status} {text}");
                assert_eq!(send("http", "GET", "/gpu/get_power", token).await.0, 403);
            }
            assert_eq!(send("https", "GET", "/v1/status", None).await.0, 401);
            assert_eq!(send("https", "PUT", LIMIT, None).await.0, 401);
            assert_eq!(send("https", "GET", "/v1/status", Some(&reading)).await.0, 200);
            assert_eq!(send("https", "PUT", LIMIT, Some(&reading)).await.0, 403);
            let (status, text) = send("https", "PUT", LIMIT, Some(&control)).await;
            assert_eq!(status, 200, "{text}");
            // A redirect stays encrypted: over plain HTTP, the answer would be another.
            let (status, text) = send("https", "GET", "/jobs/batch_size/?job_id=x", Some(&control)).await;
            assert!(status == 400 && text.contains("Unknown job(x)"), "{status} {text}");
            // Programs on this machine need no certificate.
            assert_eq!(daemon.get("/v1/status").await.status, 200);
        } else {
            assert_eq!(send("http", "GET", "/v1/status", None).await.0, 401);
            assert_eq!(send("http", "GET", "/gpu/get_power", None).await.0, 401);
            assert_eq!(send("http", "GET", "/v1/status", Some(&reading)).await.0, 200);
            let (status, text) = send("http", "PUT", LIMIT, Some(&control)).await;
            assert!(status == 403 && text.contains("needs TLS"), "{status} {text}");
            let set = "/gpu/set_power_limit?gpu_ids=0&power_limit_mw=150000&block=true";
            assert_eq!(send("http", "POST", set, Some(&control)).await.0, 403);
            assert!(daemon.log().contains("without TLS: they can only read"), "{}", daemon.log());
        }
    }
}
