//! Zeus's daemon protocol: statuses, bodies and the order of checks, streams, and what becomes of a client's writes.

mod discovery;
mod external;
mod overrides;
mod queue;
mod refusals;
mod streams;
mod tokens;

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, LONG, eventually};

const JSON: &str = "application/json";

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
    start_with(driver, state, "", settings).await
}

/// Starts a daemon as [`start`] does, with further settings of the table `control`.
async fn start_with(driver: &FakeDriver, state: &Path, control: &str, settings: &str) -> Daemon {
    powercap(state, 5_000_000, 1_000_000);
    let cpu = format!("[cpu]\npowercap_root = {:?}\n[discovery]\nenabled = false\n", state.join("powercap"));
    let quick = Daemon::QUICK.replace("[control]\n", &format!("[control]\n{control}"));
    let settings = format!("{quick}{cpu}{settings}");
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
