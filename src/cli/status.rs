//! `wattune status`: what a running daemon says of itself.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Format;

/// Asks a running daemon how it is.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the daemon listens on TCP [default: WATTUNE_SOCKET, else WATTUNE_LISTEN, else 127.0.0.1:4938].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    listen: Option<SocketAddr>,
    /// Its Unix socket, used in place of TCP.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How it is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

enum Place {
    Tcp(SocketAddr),
    Socket(PathBuf),
}

impl Args {
    /// A flag wins over both variables; left to clap, a socket in the environment would win over `--listen`.
    fn place(&self) -> anyhow::Result<Place> {
        let variable = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty());
        if let Some(path) = &self.socket {
            return Ok(Place::Socket(path.clone()));
        }
        if let Some(address) = self.listen {
            return Ok(Place::Tcp(address));
        }
        if let Some(path) = variable("WATTUNE_SOCKET") {
            return Ok(Place::Socket(path.into()));
        }
        let Some(text) = variable("WATTUNE_LISTEN") else { return Ok(Place::Tcp(USUAL)) };
        let address = text.to_string_lossy().parse();
        address.map(Place::Tcp).with_context(|| format!("WATTUNE_LISTEN = {text:?}; give IP and port, such as {USUAL}"))
    }
}

const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4938);

/// Prints the status.
///
/// # Errors
/// If no daemon answers there.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    // The client wants a TLS library even for plain HTTP; only a second installation fails.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(std::time::Duration::from_secs(5)).no_proxy().tls_certs_only([]);
    let (client, url, place) = match args.place()? {
        Place::Socket(path) => {
            (client.unix_socket(path.clone()), "http://localhost/v1/status".to_owned(), path.display().to_string())
        }
        Place::Tcp(address) => (client, format!("http://{address}/v1/status"), address.to_string()),
    };
    let answer = client.build()?.get(&url).send().await.with_context(|| {
        format!("no wattune daemon answers at {place}; is `wattune serve` running, and does it listen there?")
    })?;
    let code = answer.status();
    let text = answer.text().await?;
    if !code.is_success() {
        bail!("the daemon at {place} answered {code}: {}", text.trim());
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Json => writeln!(out, "{}", text.trim())?,
        Format::Table => out.write_all(table(&serde_json::from_str(&text)?).as_bytes())?,
    }
    Ok(())
}

fn table(status: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("–").to_owned();
    let watts = |v: &Value| v.as_f64().map_or("–".to_owned(), |w| format!("{w:.0} W"));
    let carbon = &status["carbon"];
    let intensity = carbon["intensity_g_per_kwh"].as_f64().map_or("unknown".into(), |g| format!("{g:.0} gCO2e/kWh"));
    let mut page = format!(
        "wattune {} ({})   {intensity}, signal {} from {}\n\n",
        text(&status["version"]),
        text(&status["mode"]),
        text(&carbon["freshness"]),
        text(&carbon["source"]),
    );
    page +=
        &format!("{:<4} {:<28} {:<12} {:>8} {:>8} {:>8}  {}\n", "GPU", "model", "state", "draw", "limit", "found", "");
    for gpu in status["gpus"].as_array().into_iter().flatten() {
        page += &format!(
            "{:<4} {:<28} {:<12} {:>8} {:>8} {:>8}  {}\n",
            gpu["index"].to_string(),
            text(&gpu["model"]),
            text(&gpu["state"]),
            watts(&gpu["power_w"]),
            watts(&gpu["power_limit_enforced_w"]),
            watts(&gpu["power_limit_found_w"]),
            gpu["detail"].as_str().unwrap_or_default(),
        );
    }
    page += &format!("\n{:<38} {:<16} {:<10} {:>8} {:>9}  {}\n", "job", "name", "phase", "limit", "slowdown", "reason");
    for job in status["jobs"].as_array().into_iter().flatten() {
        page += &format!(
            "{:<38} {:<16} {:<10} {:>8} {:>9}  {}\n",
            text(&job["job_id"]),
            text(&job["name"]),
            text(&job["phase"]),
            watts(&job["power_limit_w"]),
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
