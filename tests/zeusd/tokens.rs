//! Answers to each token, over TCP and over the socket.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use wattune::http::Scope;

use super::{JSON, error, exchange, start};
use crate::support::FakeDriver;

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
        // Over every connection, a header that is not read as a token's does not count as none.
        ("POST", limit, &lower, 401, none.clone()),
        ("POST", limit, "Basic abc", 401, none.clone()),
        ("GET", "/gpu/get_power", "bearer abc", 401, none.clone()),
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
