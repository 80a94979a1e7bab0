//! Streams of power readings.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{powercap, start};
use crate::support::{Daemon, FakeDriver, LONG};

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
    // A second client gets the newest value at once, with the time of its reading; of all GPUs, one event each.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let before = crate::support::now().timestamp_millis();
    let (mut both, _) = subscribe(&daemon, "/gpu/stream_power").await;
    let events = [event(&mut both).await.1, event(&mut both).await.1];
    for event in &events {
        assert!(event["timestamp_ms"].as_i64() > Some(before - 3000), "{event} long before {before}");
    }
    let mut seen = events.map(|e| (e["gpu_id"].as_i64(), e["power_mw"].as_i64()));
    seen.sort_unstable();
    assert_eq!(seen, [(Some(0), Some(210_000)), (Some(1), Some(150_000))]);
    drop((stream, both));
    // A new session begins with a new reading, not with the last one of an earlier session.
    tokio::time::sleep(Duration::from_millis(300)).await;
    driver.set(0, json!({"demand_w": 220}));
    // A reading from before would do for some milliseconds.
    tokio::time::sleep(Duration::from_millis(100)).await;
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
