//! Gets the advice: from a running daemon, else from the sources themselves.

use std::time::Duration;

use serde_json::{Value, json};

use super::question::QuestionArgs;
use crate::cli::ask::{DEFAULT_ADDRESS, DaemonAddress, USUAL_SOCKET};
use crate::cli::settings::ValueUse;
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::controller::describe_start;
use crate::providers::{self, Feed, FeedOptions};
use crate::store::{FILE_NAME, KnownRun, Store};

/// Longest time to wait for the daemon, which may be frozen.
const PATIENCE: Duration = Duration::from_secs(5);

/// The advice as JSON, or why the question was refused.
type Advice = Result<Value, String>;

/// The answer of a daemon.
enum DaemonAnswer {
    Advice(Value),
    Refused(String),
    /// No daemon gave advice; contains the reason in one sentence.
    None(String),
}

/// Returns the advice of the daemon, or that of the sources if `direct` or if no daemon answers; values of these that
/// are outliers by `values` are left out.
///
/// # Errors
/// If the settings cannot be used.
pub(super) async fn ask(
    asked: &QuestionArgs,
    settings: &Settings,
    direct: bool,
    values: ValueUse,
) -> anyhow::Result<Advice> {
    if direct {
        return ask_sources(asked, settings, values, None).await;
    }
    match ask_daemon(asked, settings).await? {
        DaemonAnswer::Advice(mut advice) => {
            advice["asked"] = json!("daemon");
            Ok(Ok(advice))
        }
        DaemonAnswer::Refused(why) => Ok(Err(why)),
        DaemonAnswer::None(why) => ask_sources(asked, settings, values, Some(why)).await,
    }
}

/// Returns the addresses at which to look for the daemon, in order.
fn addresses(settings: &Settings) -> Vec<DaemonAddress> {
    let usual = || Some(std::path::PathBuf::from(USUAL_SOCKET)).filter(|path| path.exists());
    let socket = settings.http.socket.clone().or_else(usual);
    let tcp = settings.http.listen.unwrap_or(DEFAULT_ADDRESS);
    socket.map(DaemonAddress::Socket).into_iter().chain([DaemonAddress::Tcp(tcp)]).collect()
}

async fn ask_daemon(asked: &QuestionArgs, settings: &Settings) -> anyhow::Result<DaemonAnswer> {
    let mut tried = Vec::new();
    for address in addresses(settings) {
        let (client, base) = address.client(PATIENCE)?;
        let Ok(answer) = client.get(format!("{base}/v1/when")).query(&asked.query()).send().await else {
            tried.push(address.to_string());
            continue;
        };
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or(Value::Null);
        let detail = || body["detail"].as_str().map_or_else(|| format!("it answered {status}"), str::to_owned);
        return Ok(match status.as_u16() {
            200 if body["start"].is_string() => DaemonAnswer::Advice(body),
            422 => DaemonAnswer::Refused(detail()),
            _ => DaemonAnswer::None(format!("the daemon at {address} gives no advice ({})", detail())),
        });
    }
    Ok(DaemonAnswer::None(format!("no daemon answers at {}", tried.join(" or "))))
}

/// Returns the advice from the sources' own data. `no_daemon` says why no daemon was asked.
async fn ask_sources(
    asked: &QuestionArgs,
    settings: &Settings,
    ValueUse { jump_factor, as_published }: ValueUse,
    no_daemon: Option<String>,
) -> anyhow::Result<Advice> {
    let mut warnings: Vec<String> = no_daemon.map(|why| format!("{why}; asking the sources")).into_iter().collect();
    let known = match asked.name() {
        Some(name) => match earlier_runs(settings, name).await {
            Ok(known) => known,
            Err(why) => {
                warnings.push(why);
                KnownRun::default()
            }
        },
        None => KnownRun::default(),
    };
    let now = SystemClock::start().now();
    let (question, power_known) = match asked.request().question(&known, now.utc) {
        Ok(question) => question,
        Err(error) => return Ok(Err(error.to_string())),
    };
    // These requests count towards the same quota as the daemon's own.
    let groups = providers::build(&settings.carbon, Some(&settings.state_dir()))?;
    let options = FeedOptions { jump_factor, ..FeedOptions::default() };
    let state = Feed::start(groups, options, now).await.poll_due(now).await;
    let fallback = settings.carbon.fallback_g_per_kwh;
    let view = match describe_start(&state, fallback, &question, power_known, as_published) {
        Ok(view) => view,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut advice = serde_json::to_value(view)?;
    advice["asked"] = json!("sources");
    warnings.extend(advice["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    warnings.extend(providers::advice(&settings.carbon));
    advice["warnings"] = json!(warnings);
    Ok(Ok(advice))
}

/// Returns what the database of this machine's daemon has about a job's earlier runs.
async fn earlier_runs(settings: &Settings, name: &wattune_core::domain::JobName) -> Result<KnownRun, String> {
    let dir = settings.state_dir();
    if !dir.join(FILE_NAME).exists() {
        return Err(format!("there are no earlier runs in {}", dir.display()));
    }
    let found = async { Store::open_read_only(&dir).await?.known_run(name).await };
    found.await.map_err(|error| format!("the earlier runs in {} cannot be read: {error}", dir.display()))
}
