//! Devices and groups of routes that a client discovers.

use serde_json::json;

use super::{JSON, error, exchange, start};
use crate::support::FakeDriver;

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
