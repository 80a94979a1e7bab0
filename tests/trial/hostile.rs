//! Clients that no daemon deserves: connections that are held and never used, and requests that make no sense.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::case::Manner;
use super::client::http;

/// Keeps connections to `base` until the task is ended; those that the daemon closes are opened again.
pub(crate) fn connections(base: &str, manner: Manner, count: usize) -> JoinHandle<()> {
    let address = base.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        let mut held = tokio::task::JoinSet::new();
        for _ in 0..count {
            let address = address.clone();
            held.spawn(async move {
                loop {
                    let _ = hold(&address, manner).await;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
        while held.join_next().await.is_some() {}
    })
}

async fn hold(address: &str, manner: Manner) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let begin: &[u8] = match manner {
        Manner::Idle => b"",
        Manner::SlowHeaders => b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-long: ",
        Manner::SlowBody => {
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n"
        }
    };
    stream.write_all(begin).await?;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        match manner {
            Manner::Idle => stream.writable().await?,
            Manner::SlowHeaders | Manner::SlowBody => stream.write_all(b" ").await?,
        }
    }
}

/// A job that says odd things of itself and then trains like any other, for a while.
pub(crate) async fn odd_job(base: String, body: Value, for_s: f64) {
    let client = http();
    let Ok(answer) = client.post(format!("{base}/v1/jobs")).json(&body).send().await else { return };
    let Some(id) = answer.json::<Value>().await.ok().and_then(|view| view["job_id"].as_str().map(str::to_owned)) else {
        return;
    };
    for step in 1..(for_s / 0.2) as u32 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let done = json!({ "samples": 20.0 * f64::from(step) });
        let _ = client.post(format!("{base}/v1/jobs/{id}/progress")).json(&done).send().await;
    }
    let _ = client.delete(format!("{base}/v1/jobs/{id}")).send().await;
}

/// Sends senseless requests; answers with what the daemon must not say to any of them.
pub(crate) async fn nonsense(base: &str, seed: u64, count: usize) -> Vec<String> {
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let client = http();
    let mut wrong = Vec::new();
    for _ in 0..count {
        let path = pick(&mut dice, &PATHS);
        let method = pick(&mut dice, &["GET", "POST", "PUT", "DELETE", "PATCH"]);
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let body = value(&mut dice, 3).to_string();
        let cut = dice.random_range(0..=body.len());
        let body = if dice.random_bool(0.2) { String::from_utf8_lossy(&body.as_bytes()[..cut]).into() } else { body };
        let request = client.request(method.clone(), format!("{base}{path}"));
        let Ok(answer) = request.header("content-type", "application/json").body(body.clone()).send().await else {
            // Whether the daemon is still there is somebody else's question.
            continue;
        };
        let status = answer.status().as_u16();
        // What it registers must not stay.
        if let (201, Ok(view)) = (status, answer.json::<Value>().await)
            && let Some(id) = view["job_id"].as_str()
        {
            let _ = client.delete(format!("{base}/v1/jobs/{id}")).send().await;
        }
        if status >= 500 && status != 503 {
            wrong.push(format!("{method} {path} with {body}: {status}"));
        }
    }
    wrong
}

const PATHS: [&str; 14] = [
    "/v1/jobs",
    "/v1/jobs/0",
    "/v1/jobs/%00/progress",
    "/v1/jobs/none/plan",
    "/v1/gpus/9/power-limit",
    "/v1/gpus/-1/history?hours=1e9",
    "/v1/recurring/x",
    "/v1/recurring/x/trials",
    "/v1/demand-response/none",
    "/v1/carbon/history?from=9999-12-31T23:59:59Z",
    "/v1/ledger?after=18446744073709551615",
    "/v1/report?from=-1",
    "/v1/status?x=%ff",
    "/nothing",
];

fn pick<'a>(dice: &mut ChaCha8Rng, choices: &[&'a str]) -> &'a str {
    choices[dice.random_range(0..choices.len())]
}

/// A value with the API's own words in it, mostly in wrong places.
fn value(dice: &mut ChaCha8Rng, depth: u32) -> Value {
    const WORDS: [&str; 12] = [
        "name",
        "gpus",
        "work",
        "total_samples",
        "objective",
        "max_slowdown",
        "deadline",
        "lease_s",
        "samples",
        "at_s",
        "power_limit_w",
        "ttl_s",
    ];
    match dice.random_range(0..if depth == 0 { 5 } else { 8 }) {
        0 => json!(dice.random_range(-10.0..1e6)),
        1 => json!([1e308, -1e308, 5e-324, 0.0, -0.0, 1e18][dice.random_range(0..6)]),
        2 => json!(pick(dice, &["", "\u{0}", "x", "2026-01-01T00:00:00Z", "🜁", "none"])),
        3 => Value::Null,
        4 => json!(dice.random_bool(0.5)),
        5 => (0..dice.random_range(0..3)).map(|_| value(dice, depth - 1)).collect(),
        _ => {
            let entries = (0..dice.random_range(1..6)).map(|_| (pick(dice, &WORDS).to_owned(), value(dice, depth - 1)));
            Value::Object(entries.collect())
        }
    }
}
