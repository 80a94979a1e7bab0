//! `wattune doctor`: checks the installation and suggests remedies. Writes nothing to any GPU.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use chrono::TimeDelta;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::devices::handles;
use super::output::Exit;
use super::privileges::{self, NEEDS};
use super::settings::{OddVariables, ShowFlags};
use crate::clock::{Clock, SystemClock};
use crate::config::{Backend, Settings, is_root};
use crate::controller::Locking;
use crate::cpu::Node;
use crate::cpu::linux::LinuxNode;
use crate::gpu::Capabilities;
use crate::gpu::handle::GpuHandle;
use crate::gpu::journal::{Journal, boot_id};
use crate::http;
use crate::providers::{self, Provider};
use crate::store::Store;
use wattune_core::domain::{CapSchedule, DemandResponse, GpuId, Slot};
use wattune_core::units::{Seconds, Watts};

/// Checks everything that the daemon needs: configuration, clock, driver, GPUs, permissions, the node's cap and carbon
/// budget, CPU energy, state directory and database, job-mapping folder, carbon signal, addresses and keys. Changes
/// nothing but the stored count of requests to carbon sources.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    show: ShowFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    Limited,
    Broken,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    verdict: Verdict,
    detail: String,
}

fn finding(what: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Finding {
    Finding { what: what.into(), verdict, detail: detail.into() }
}

/// Prints the findings. The exit code is 1 if something is broken.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let findings = match args.show.overrides.settings() {
        Ok(settings) => {
            let mut findings = vec![finding("configuration", Verdict::Good, "read and checked")];
            let odd = OddVariables::present().describe_unknown();
            findings.extend(odd.map(|odd| finding("environment", Verdict::Limited, odd)));
            let clock = super::serve::clock(&settings).err();
            findings.extend(clock.map(|error| finding("clock", Verdict::Broken, error.to_string())));
            let (of_gpus, present) = gpus(&settings);
            findings.extend(of_gpus);
            findings.extend(rights(&settings));
            findings.extend(processors(&settings));
            findings.extend(state(&settings, present.as_ref()).await);
            findings.extend(mapping(&settings));
            findings.extend(signals(&settings).await);
            findings.extend(price(&settings).await);
            findings.extend(address(&settings));
            findings.extend(socket_and_keys(&settings).await);
            findings
        }
        Err(error) => vec![finding("configuration", Verdict::Broken, format!("{error:#}"))],
    };
    let line = |f: &Finding| {
        let mark = match f.verdict {
            Verdict::Good => "ok     ",
            Verdict::Limited => "limited",
            Verdict::Broken => "BROKEN ",
        };
        format!("{mark}  {}: {}\n", f.what, f.detail)
    };
    args.show.format.print(&findings, || findings.iter().map(line).collect())?;
    let broken = findings.iter().any(|f| f.verdict == Verdict::Broken);
    Ok(if broken { Exit::Failed } else { Exit::Done })
}

/// Returns the findings about the GPUs, and the GPUs that are present; `None` if they cannot be listed.
fn gpus(settings: &Settings) -> (Vec<Finding>, Option<BTreeSet<GpuId>>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (handles, problems) = match handles(settings, &clock) {
        Ok(found) => found,
        Err(error) => return (vec![finding("GPUs", Verdict::Broken, format!("{error:#}"))], None),
    };
    // A GPU that cannot be opened may be any.
    let present = problems.is_empty().then(|| handles.iter().map(|handle| handle.identity().id.clone()).collect());
    let mut findings: Vec<Finding> = problems.into_iter().map(|p| finding("GPUs", Verdict::Limited, p)).collect();
    if handles.is_empty() {
        findings.push(finding("GPUs", Verdict::Broken, "the driver reports no GPU"));
    }
    findings.extend(handles.iter().map(|handle| gpu(handle, settings)));
    findings.extend(cap(&handles, settings));
    findings.extend(carbon_budget(settings));
    (findings, present)
}

/// Checks the rights of this process, which a daemon started in the same way would have.
fn rights(settings: &Settings) -> Vec<Finding> {
    let effective = privileges::effective();
    let is_needed = |need: &privileges::Need| match need.capability {
        CapabilitySet::SYS_ADMIN => !settings.control.observe && settings.gpus.backend == Backend::Nvml,
        // Root owns the energy counters.
        CapabilitySet::DAC_READ_SEARCH => settings.discovery.enabled || (settings.cpu.enabled && !is_root()),
        _ => settings.discovery.enabled,
    };
    let missing = NEEDS.iter().filter(|need| !effective.contains(need.capability) && is_needed(need));
    let describe = |need: &privileges::Need| {
        let detail = format!(
            "{} is missing: {}; run the daemon as root, in a container with --cap-add {}, or as a service with \
             AmbientCapabilities={}",
            need.name,
            need.without,
            need.name.trim_start_matches("CAP_"),
            need.name
        );
        finding("rights", Verdict::Limited, detail)
    };
    let mut findings: Vec<Finding> = missing.map(describe).collect();
    if findings.is_empty() {
        let names: Vec<&str> = NEEDS.iter().filter(|n| effective.contains(n.capability)).map(|n| n.name).collect();
        let kept = if names.is_empty() { "none is needed".to_owned() } else { names.join(", ") };
        findings.push(finding("rights", Verdict::Good, format!("the daemon keeps of its capabilities: {kept}")));
    }
    findings
}

fn gpu(handle: &GpuHandle, settings: &Settings) -> Finding {
    let (gpu, can) = (handle.identity(), handle.capabilities());
    let what = format!("GPU {} ({}, {})", gpu.index, gpu.model, gpu.id);
    let mut waited = Seconds::ZERO;
    while handle.observe().at.is_none() && handle.observe().fault.is_none() && waited < settings.control.call_timeout_s
    {
        std::thread::sleep(std::time::Duration::from_millis(10));
        waited += Seconds::new(0.01);
    }
    let seen = handle.observe();
    if let Some((error, _)) = seen.fault {
        return finding(what, Verdict::Broken, error.to_string());
    }
    let mut limits = Vec::new();
    limits.extend(can.why_no_control());
    limits.extend(can.energy_counter.as_ref().err().map(|e| format!("energy is integrated from power: {e}")));
    limits.extend(can.power.as_ref().err().map(ToString::to_string));
    if seen.reading.persistence == Some(false) && !settings.control.enable_persistence {
        limits.push(
            "persistence mode is off: a limit is lost when the last client leaves (nvidia-smi -pm 1, or \
             control.enable_persistence = true)"
                .into(),
        );
    }
    if let (Some(requested), Some(enforced)) = (seen.reading.requested, seen.reading.enforced)
        && enforced < requested
        && !enforced.same_as(requested)
    {
        limits.push(format!("an out-of-band cap holds it at {enforced}, below the requested {requested}"));
    }
    let range = can.limits.as_ref().map_or(String::new(), |r| format!(", limits from {} to {}", r.min, r.max));
    let now = seen.reading.requested.map_or(String::new(), |l| format!(", limit {l}"));
    let clocks = clocks(&can, settings);
    if limits.is_empty() {
        finding(what, Verdict::Good, format!("driver {}, energy counter{now}{range}; {clocks}", can.driver))
    } else {
        finding(what, Verdict::Limited, format!("{}; {clocks}", limits.join("; ")))
    }
}

/// Describes if clocks can be locked, which saves power of jobs that draw less than their power limit.
fn clocks(can: &Capabilities, settings: &Settings) -> String {
    match (&can.clocks, can.why_no_clocks()) {
        _ if settings.control.clocks == Locking::Off => "clocks are never locked (control.clocks = \"off\")".into(),
        (_, Some(why)) => format!("clocks cannot be locked: {why}"),
        (Ok(range), None) => format!("clocks can be locked from {} to {}", range.min(), range.max()),
        (Err(error), None) => format!("clocks cannot be locked: {error}"),
    }
}

/// Checks if CPU energy can be read on this machine, and if jobs' processes can be followed.
fn processors(settings: &Settings) -> Vec<Finding> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let mut node = LinuxNode::new(&settings.cpu, clock);
    let what = "CPU energy";
    let mut findings = Vec::new();
    if settings.cpu.enabled {
        let zones = node.zones();
        for zone in &zones.readings {
            let name = format!("{what}, {}", zone.device);
            findings.push(match &zone.counter_uj {
                Ok(_) => finding(name, Verdict::Good, format!("{} can be read", zone.path)),
                Err(problem) => finding(name, Verdict::Limited, problem.clone()),
            });
        }
        findings.extend(zones.problems.into_iter().map(|problem| finding(what, Verdict::Limited, problem)));
    } else {
        findings.push(finding(what, Verdict::Good, "is not recorded (cpu.enabled = false)"));
    }
    findings.push(processes(&mut node, settings));
    findings
}

fn processes(node: &mut LinuxNode, settings: &Settings) -> Finding {
    let what = "processes of jobs";
    let usage = node.usage();
    if let Some(problem) = usage.problem {
        return finding(what, Verdict::Limited, problem);
    }
    let cgroups = &settings.cpu.cgroup_root;
    let version_2 = cgroups.join("cgroup.controllers").exists();
    let groups = if version_2 {
        format!("control groups of version 2 in {}", cgroups.display())
    } else {
        format!(
            "no control groups of version 2 in {}: jobs can name pids; set cpu.cgroup_root if they are elsewhere",
            cgroups.display()
        )
    };
    let cores = usage.cores.unwrap_or_default();
    finding(what, Verdict::Good, format!("{} shows {cores} CPUs; {groups}", settings.cpu.proc_root.display()))
}

/// The time ahead for which caps are checked: longer than a week, after which weekly windows repeat.
const AHEAD: TimeDelta = TimeDelta::days(8);

/// Checks the configured cap against the GPUs' lowest limits. A running daemon checks announced events itself.
fn cap(handles: &[GpuHandle], settings: &Settings) -> Vec<Finding> {
    let what = "node's cap";
    let asked = &settings.cap;
    if asked.is_empty() {
        return Vec::new();
    }
    let (configured, events) = match (asked.configured(), asked.events()) {
        (Ok(configured), Ok(events)) => (configured, events),
        (Err(why), _) | (_, Err(why)) => return vec![finding(what, Verdict::Broken, why)],
    };
    let now = SystemClock::start().utc();
    let range = |handle: &GpuHandle| handle.capabilities().limits.as_ref().ok().copied();
    let baseline: Watts = handles.iter().filter_map(range).map(|range| range.max.watts()).sum();
    let lowest: Watts = handles.iter().map(lowest).sum();
    let constant = configured.constant.map(|level| format!("{:.0} W at all times", level.of(baseline).get()));
    let counted = [
        (configured.windows.len(), "window(s) of the week"),
        (configured.spans.iter().filter(|(span, _)| now < span.end()).count(), "span(s) to come"),
        (events.iter().filter(|event| now < event.ends_at()).count(), "event(s) to come"),
    ];
    let counted = counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let mut rules: Vec<String> = constant.into_iter().chain(counted).collect();
    if rules.is_empty() {
        rules.push("the cap has no windows, spans or events ahead".into());
    }
    // The caps of all events are checked, so the notice time, before which plans do not know an event, is removed.
    let known: Vec<_> = events.into_iter().map(|event| DemandResponse { notice: None, ..event }).collect();
    let schedule = CapSchedule::new(&configured, &known, baseline, now);
    let far = known.iter().map(|event| event.ends_at()).chain(configured.spans.iter().map(|(span, _)| span.end()));
    let until = far.max().unwrap_or(now).max(now + AHEAD);
    let strictest = Slot::new(now, until).and_then(|slot| schedule.over(&slot));
    let rules = rules.join(", ");
    let Some(cap) = strictest else { return vec![finding(what, Verdict::Good, rules)] };
    let (verdict, but, end) =
        if cap < lowest { (Verdict::Limited, "but ", ": it cannot be met") } else { (Verdict::Good, "", "") };
    let (cap, lowest) = (cap.get(), lowest.get());
    let detail =
        format!("{rules}; the lowest cap is {cap:.0} W, {but}the GPUs' lowest limits add up to {lowest:.0} W{end}");
    vec![finding(what, verdict, detail)]
}

/// Returns the least part of the node's cap that a GPU needs: its lowest limit, or its current limit if wattune cannot
/// set it.
fn lowest(handle: &GpuHandle) -> Watts {
    let can = handle.capabilities();
    let present = handle.observe().reading.requested.map(|limit| limit.watts());
    match can.limits.as_ref() {
        Ok(range) if can.why_no_control().is_none() => range.min.watts(),
        Ok(range) => present.unwrap_or(range.max.watts()),
        Err(_) => present.unwrap_or(Watts::ZERO),
    }
}

/// Checks the configured carbon budget.
fn carbon_budget(settings: &Settings) -> Vec<Finding> {
    let what = "node's carbon budget";
    let Some(limit) = settings.carbon_budget.limit() else { return Vec::new() };
    let now = SystemClock::start().utc();
    let Some(span) = settings.carbon_budget.span(now) else {
        return vec![finding(
            what,
            Verdict::Limited,
            "the budget period is over; configure another one, or remove [carbon_budget]",
        )];
    };
    let detail = format!(
        "{limit} from {} until {}; wattune status shows the rest of the budget and if the plans meet it",
        span.start().format("%FT%TZ"),
        span.end().format("%FT%TZ")
    );
    vec![finding(what, Verdict::Good, detail)]
}

async fn state(settings: &Settings, present: Option<&BTreeSet<GpuId>>) -> Vec<Finding> {
    let dir = settings.state_dir();
    let what = format!("state in {}", dir.display());
    if let Err(error) = super::state_dir::check(&dir) {
        return vec![finding(what, Verdict::Broken, format!("{:#}", anyhow::Error::from(error)))];
    }
    let mut findings = vec![match check_writable(&dir) {
        Ok(()) => finding(what.clone(), Verdict::Good, "can be written"),
        Err(why) => finding(what.clone(), Verdict::Broken, why),
    }];
    if let Err(error) = Store::check(&dir).await {
        let what = format!("database in {}", dir.display());
        findings.push(finding(what, Verdict::Broken, format!("{:#}", anyhow::Error::from(error))));
    }
    match Journal::open(&dir, boot_id()) {
        Ok(journal) => {
            for (gpu, entry) in journal.entries() {
                if present.is_some_and(|present| !present.contains(gpu)) {
                    let detail = format!(
                        "was set by wattune and is absent now; its original limit of {} is restored once it is present again; if it \
                         was removed for good, stop the daemon and run `wattune restore --forget {gpu}`",
                        entry.original
                    );
                    findings.push(finding(format!("GPU {gpu}"), Verdict::Limited, detail));
                    continue;
                }
                let clocks = entry.locked.map_or(String::new(), |c| format!(", its clocks are locked to {c}"));
                let detail = format!(
                    "is set by wattune{clocks}; its original limit of {} is restored when its job or its daemon ends (without a daemon: wattune restore)",
                    entry.original
                );
                findings.push(finding(format!("GPU {gpu}"), Verdict::Good, detail));
            }
        }
        Err(error) => findings.push(finding(what, Verdict::Broken, error.to_string())),
    }
    findings
}

/// Checks that the job-mapping folder can be written, if the daemon writes it.
fn mapping(settings: &Settings) -> Option<Finding> {
    let discovery = &settings.discovery;
    let folder = discovery.job_mapping_dir.as_deref();
    let folder = folder.filter(|_| discovery.enabled && discovery.write_job_mapping)?;
    let what = format!("job-mapping folder {}", folder.display());
    Some(match check_writable(folder) {
        Ok(()) => finding(what, Verdict::Good, "can be written"),
        Err(why) => finding(what, Verdict::Limited, format!("{why}; its files are not written")),
    })
}

/// The number of bytes that are written to try a directory out: as many as a small database has.
const TRIED: usize = 64 << 10;

/// Checks that files can be written in a directory, or in the nearest one above it if it does not exist yet.
fn check_writable(dir: &Path) -> Result<(), String> {
    // Made absolute, to find the existing directory above a relative path.
    let full = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let existing = full.ancestors().find(|dir| dir.exists()).unwrap_or(&full);
    let path = existing.join(format!(".wattune-doctor-{}", uuid::Uuid::new_v4()));
    let write = || {
        let mut file = std::fs::File::create_new(&path)?;
        // On a full disk, an empty file can still be created.
        file.write_all(&[0xa5; TRIED])?;
        file.sync_all()
    };
    let written = write();
    written.and(std::fs::remove_file(&path)).map_err(|error| format!("{}: {error}", existing.display()))
}

/// Queries each source of the carbon signal once.
async fn signals(settings: &Settings) -> Vec<Finding> {
    // These requests count towards the same quota as the daemon's own.
    let groups = match providers::build(&settings.carbon, Some(&settings.state_dir())) {
        Ok(groups) => groups,
        Err(error) => return vec![finding(SIGNAL, Verdict::Broken, error.to_string())],
    };
    let mut findings = Vec::new();
    let advice = providers::advice(&settings.carbon).map(|advice| finding(SIGNAL, Verdict::Limited, advice));
    // If a constant replaces the source of a configured zone, the constant is not reported as a working source.
    if settings.carbon.zone.is_none() || advice.is_none() {
        for provider in groups.iter().flatten() {
            findings.push(signal(provider.as_ref()).await);
        }
    }
    findings.extend(advice);
    findings
}

/// Queries each price source once.
async fn price(settings: &Settings) -> Vec<Finding> {
    let what = "price";
    let groups = match providers::build_price(&settings.price, &settings.carbon, Some(&settings.state_dir())) {
        Ok(groups) => groups,
        Err(error) => return vec![finding(what, Verdict::Broken, error.to_string())],
    };
    let (now, currency) = (SystemClock::start().utc(), settings.price.counted_in());
    let mut findings = Vec::new();
    for provider in groups.iter().flatten() {
        let (source, zone) = (provider.source(), provider.zone());
        let answer = provider.fetch(now).await;
        findings.push(match answer.as_ref().map(|a| a.forecast.best_at(now)) {
            Ok(Some((_, price))) => {
                let value = format!("{:.2} {}/MWh now", price.value.get(), currency.as_str());
                finding(what, Verdict::Good, format!("{source}, zone {zone}: {value}"))
            }
            Ok(None) => finding(what, Verdict::Limited, format!("{source}, zone {zone}: no current value")),
            Err(error) => finding(what, Verdict::Limited, format!("{source}, zone {zone}: {error}")),
        });
    }
    findings
}

const SIGNAL: &str = "carbon signal";

async fn signal(provider: &dyn Provider) -> Finding {
    let now = SystemClock::start().utc();
    let (source, zone) = (provider.source(), provider.zone());
    match provider.fetch(now).await {
        Ok(answer) => {
            let forecast = answer.forecast;
            let ahead = forecast.expected.end().map_or(0.0, |e| Seconds::from_delta(e - now).get() / 3600.0);
            let ahead = if ahead > 0.0 { format!("{ahead:.0} h ahead") } else { "no forecast".to_owned() };
            let present = forecast
                .best_at(now)
                .map_or("no current value".into(), |(_, i)| format!("{:.0} gCO2e/kWh now", i.value.get()));
            let notes = answer.notes.iter().map(|n| format!("; {n}")).collect::<String>();
            let detail = format!("{source}, zone {zone}: {present}, {ahead}{notes}");
            let verdict = if forecast.expected.at(now).is_some() { Verdict::Good } else { Verdict::Limited };
            finding(SIGNAL, verdict, detail)
        }
        Err(error) => finding(SIGNAL, Verdict::Limited, format!("{source}, zone {zone}: {error}")),
    }
}

/// Checks the TCP address. Returns `None` if the settings name no address at all.
fn address(settings: &Settings) -> Option<Finding> {
    let Some(address) = settings.http.listen else {
        let is_served = settings.http.socket.is_some();
        return is_served.then(|| finding("API", Verdict::Good, "on the Unix socket only"));
    };
    Some(match std::net::TcpListener::bind(address) {
        Ok(_) => finding("API", Verdict::Good, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let detail =
                format!("{address} is in use: a daemon runs already (wattune status), or choose another --listen");
            finding("API", Verdict::Limited, detail)
        }
        Err(error) => finding("API", Verdict::Broken, format!("{address}: {error}")),
    })
}

/// Checks the socket with its owner and group, the keys of tokens, and the certificate, as a starting daemon does.
async fn socket_and_keys(settings: &Settings) -> Vec<Finding> {
    let what = "API";
    let mut findings = Vec::new();
    if settings.http.check_reachable().is_err() {
        let detail =
            "the settings name no socket; the daemon starts only with --socket PATH, as the packaged service has it";
        findings.push(finding(what, Verdict::Limited, detail));
    }
    // A key that cannot be used is among the obstacles.
    if let Ok(keys) = http::TokenKeys::load(&settings.http.token_keys) {
        findings.extend(keys.describe_missing().map(|missing| finding(what, Verdict::Limited, missing)));
    }
    let obstacles = http::Server::find_obstacles(&settings.http).await;
    if let Some(path) = settings.http.socket.as_ref().filter(|_| obstacles.is_empty()) {
        findings.push(finding(what, Verdict::Good, format!("the socket {} can be opened", path.display())));
    }
    findings.extend(obstacles.iter().map(|obstacle| match obstacle {
        http::BindError::Socket(http::SocketError::Live(path)) => {
            let detail = format!(
                "{} is in use: a daemon runs already (wattune status), or choose another --socket",
                path.display()
            );
            finding(what, Verdict::Limited, detail)
        }
        other => finding(what, Verdict::Broken, other.to_string()),
    }));
    findings
}
