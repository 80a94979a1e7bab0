//! `wattune status`: prints a running daemon's status.

use std::time::Duration;

use anyhow::{anyhow, bail};
use reqwest::Method;
use serde_json::Value;

use super::ask::DaemonFlags;
use super::daemon::{Daemon, Failure};
use super::output::{Format, deliver};
use wattune_core::domain::legible;

/// Prints the status of a running daemon.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    daemon: DaemonFlags,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Maximum time for the daemon's answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Prints the daemon's status.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let addresses = args.daemon.addresses().map_err(anyhow::Error::msg)?;
    let daemon = Daemon::at(addresses)?;
    let answer = daemon.call(Method::GET, "/v1/status", None, TIMEOUT).await;
    let (status, _) = answer.map_err(|failure| match failure {
        Failure::NoAnswer(why) if why.starts_with("no daemon answers") => {
            anyhow!("{why}; is `wattune serve` running, and does it listen there?")
        }
        Failure::NoAnswer(_) | Failure::Refused { .. } => failure.into(),
    })?;
    if !status.is_object() {
        bail!("what answers is not a wattune daemon");
    }
    let shown = match args.format {
        Format::Json => format!("{status}\n"),
        Format::Table => table(&status),
    };
    deliver(shown.as_bytes(), None)
}

/// Describes the cap on the node's power in one line.
fn cap_line(cap: &Value) -> String {
    let watts = |v: &Value| v.as_f64().map_or("no cap".to_owned(), |w| format!("{w:.0} W"));
    let mut line = format!("node's cap {}", watts(&cap["limit_w"]));
    if let (Some(source), Some(left)) = (cap["source"].as_str(), cap["headroom_w"].as_f64()) {
        line += &format!(" ({source}), limits {}, {left:.0} W left", watts(&cap["limits_sum_w"]));
    }
    if let Some(at) = cap["next_change"].as_str() {
        line += &format!("; from {at} {}", watts(&cap["next_limit_w"]));
    }
    line + "\n\n"
}

/// Describes the node's carbon budget in one line.
fn budget_line(budget: &Value) -> String {
    let grams = |key: &str| budget[key].as_f64().map_or("–".to_owned(), |g| format!("{g:.0} g"));
    let (limit, until) = (grams("limit_g"), budget["until"].as_str().unwrap_or("–"));
    let (left, expected) = (grams("left_g"), grams("expected_g"));
    format!("node's carbon budget {limit} until {until}, {left} left, {expected} expected by its end\n\n")
}

/// Describes CPU packages and memory, one line each.
fn cpu_lines(cpu: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("–").to_owned();
    let watts = |v: &Value| v.as_f64().map_or("–".to_owned(), |w| format!("{w:.0} W"));
    let line = |zone: &Value| {
        let (name, source, power) = (text(&zone["zone"]), text(&cpu["source"]), watts(&zone["power_w"]));
        let problem = zone["problem"].as_str().unwrap_or_default();
        format!("{:<4} {name:<28} {source:<12} {power:>8} {:>15} {:>8}  {problem}\n", "CPU", "", "")
    };
    cpu["zones"].as_array().into_iter().flatten().map(line).collect()
}

fn table(status: &Value) -> String {
    let text = |v: &Value| v.as_str().map_or_else(|| "–".to_owned(), legible);
    let watts = |v: &Value| v.as_f64().map_or("–".to_owned(), |w| format!("{w:.0} W"));
    let clock = |v: &Value| v.as_u64().map_or(String::new(), |mhz| format!(" {mhz} MHz"));
    let carbon = &status["carbon"];
    let intensity = carbon["intensity_g_per_kwh"].as_f64().map_or("unknown".into(), |g| format!("{g:.0} gCO2e/kWh"));
    let mut page = format!(
        "wattune {} ({})   {intensity}, signal {} from {}\n\n",
        text(&status["version"]),
        text(&status["mode"]),
        text(&carbon["freshness"]),
        match carbon["basis"].as_str() {
            Some("constant") => "the configured constant only".to_owned(),
            Some("local") => format!("the local forecaster after {}", text(&carbon["source"])),
            Some("daily_shape") => format!("the last known daily shape after {}", text(&carbon["source"])),
            _ => text(&carbon["source"]),
        },
    );
    if status["cap"].is_object() {
        page += &cap_line(&status["cap"]);
    }
    if status["carbon_budget"].is_object() {
        page += &budget_line(&status["carbon_budget"]);
    }
    page += &format!(
        "{:<4} {:<28} {:<12} {:>8} {:>15} {:>8}  {}\n",
        "GPU", "model", "state", "draw", "limit", "original", ""
    );
    for gpu in status["gpus"].as_array().into_iter().flatten() {
        page += &format!(
            "{:<4} {:<28} {:<12} {:>8} {:>15} {:>8}  {}\n",
            gpu["index"].to_string(),
            text(&gpu["model"]),
            text(&gpu["state"]),
            watts(&gpu["power_w"]),
            watts(&gpu["power_limit_enforced_w"]) + &clock(&gpu["clock_limit_mhz"]),
            watts(&gpu["power_limit_original_w"]),
            gpu["detail"].as_str().unwrap_or_default(),
        );
    }
    page += &cpu_lines(&status["cpu"]);
    page +=
        &format!("\n{:<38} {:<16} {:<10} {:>15} {:>9}  {}\n", "job", "name", "phase", "limit", "slowdown", "reason");
    for job in status["jobs"].as_array().into_iter().flatten() {
        page += &format!(
            "{:<38} {:<16} {:<10} {:>15} {:>9}  {}\n",
            text(&job["job_id"]),
            text(&job["name"]),
            text(&job["phase"]),
            watts(&job["power_limit_w"]) + &clock(&job["clock_limit_mhz"]),
            job["slowdown"].as_f64().map_or("–".into(), |s| format!("{:+.2} %", 100.0 * s)),
            text(&job["reason"]),
        );
    }
    for problem in status["problems"].as_array().into_iter().flatten() {
        page += &format!("\n! {}", text(problem));
    }
    if status["problems"].as_array().is_some_and(|p| !p.is_empty()) {
        page += "\n";
    }
    page
}
