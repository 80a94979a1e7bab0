//! Rows of the protocol's tables of statuses, errors and parsing.

use serde_json::{Value, json};

use super::{JSON, error, errors, exchange, start};
use crate::support::FakeDriver;

const TEXT: &str = "text/plain; charset=utf-8";
const INVALID: &str = "NVML error: a supplied argument was invalid";
const DENIED: &str = "NVML error: the current user does not have permission to perform this operation";
const UNSUPPORTED: &str = "NVML error: the requested operation is not available on the target device";
const INTERNAL: &str = "NVML error: an internal driver error occurred";
const LOST: &str = "NVML error: device fell off the bus or has otherwise become inacessible";

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
    // A reading from before would do for 10 ms.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let (status, _, body) = exchange(&daemon, "GET", "/gpu/get_power?gpu_ids=0,1").await;
    assert_eq!((status, body), (500, errors(json!({"1": LOST}))));
}
