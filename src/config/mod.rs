//! One settings file, checked once at start. Each module owns its settings' type; this module combines them and reports
//! each mistake with the file, the line and the allowed values.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use crate::gpu::nvml;
use crate::providers::{CarbonSettings, PriceSettings, SettingsError};
use crate::{controller, cpu, discovery, http, recurring, telemetry};
use wattune_core::domain::{name_types_plainly, with_nearest};
use wattune_core::{ledger, plan, profile};

/// The kind of GPUs that the daemon controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// NVIDIA GPUs, through the driver's library.
    #[default]
    Nvml,
    /// Simulated GPUs, to try out the API.
    Simulated,
}

/// Settings of the GPUs, the table `[gpus]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// The kind of GPUs that the daemon controls.
    pub backend: Backend,
    /// Settings of NVIDIA GPUs, used with `backend = "nvml"`.
    pub nvml: nvml::Settings,
    /// Settings of simulated GPUs, used with `backend = "simulated"`.
    pub simulated: SimulatedSettings,
}

/// Settings of simulated GPUs, the table `[gpus.simulated]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatedSettings {
    /// The number of simulated GPUs, 1 to 64.
    pub boards: u32,
    /// The seed of the random noise in the simulated readings.
    pub seed: u64,
    /// Makes the simulated load memory-bound: power limits then have no effect on the throughput, clock locks do.
    pub memory_bound: bool,
    /// The seconds that pass on the daemon's clock in one second of the machine's, 1 to 3600.
    pub clock_speed: u32,
    /// The time at which the daemon's clock and the machine's show the same, such as the present time; needed if
    /// `clock_speed` is above 1.
    pub clock_start: Option<DateTime<Utc>>,
}

impl SimulatedSettings {
    /// Checks value ranges; the error names the key.
    fn check(&self, backend: Backend) -> Result<(), String> {
        if !(1..=64).contains(&self.boards) {
            return Err(format!("boards = {} must be from 1 to 64", self.boards));
        }
        let speed = self.clock_speed;
        if !(1..=3600).contains(&speed) {
            return Err(format!("clock_speed = {speed} must be from 1 to 3600"));
        }
        if speed > 1 && backend != Backend::Simulated {
            return Err(format!(
                "clock_speed = {speed} needs gpus.backend = \"simulated\": a real GPU keeps real time"
            ));
        }
        if speed > 1 && self.clock_start.is_none() {
            return Err(format!(
                "clock_speed = {speed} needs clock_start, the time from which the daemon's clock counts, also after a \
                 restart; give the present time, such as \"2026-11-26T12:00:00Z\""
            ));
        }
        Ok(())
    }
}

impl Default for SimulatedSettings {
    fn default() -> Self {
        Self { boards: 2, seed: 1, memory_bound: false, clock_speed: 1, clock_start: None }
    }
}

/// The maximum size of the settings file in bytes.
const MAX_LEN: u64 = 4 << 20;

/// All settings of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The directory of the daemon's files: the database, the restore journal, the cached carbon signal.
    pub state_dir: Option<PathBuf>,
    /// Settings of the GPUs.
    pub gpus: GpuSettings,
    /// Settings of the control loop.
    pub control: controller::Settings,
    /// The cap on the sum of all GPUs' power limits.
    pub cap: controller::CapSettings,
    /// The limit on the emissions of all jobs together.
    pub carbon_budget: controller::BudgetSettings,
    /// Settings of the ledger of energy and emissions.
    pub ledger: ledger::Settings,
    /// Settings of the measurement of CPU packages and memory.
    pub cpu: cpu::Settings,
    /// Settings of the discovery of jobs by their processes.
    pub discovery: discovery::Settings,
    /// Settings of the just-in-time profiler.
    pub profile: profile::Settings,
    /// Settings of the planner.
    pub plan: plan::Settings,
    /// Settings of the carbon signal.
    pub carbon: CarbonSettings,
    /// Settings of the day-ahead electricity price, a second signal.
    pub price: PriceSettings,
    /// Settings of recurring jobs.
    pub recurring: recurring::Settings,
    /// Settings of the HTTP API.
    pub http: http::Settings,
    /// Settings of Zeus's protocol, for clients that are written for Zeus's daemon.
    pub zeus: http::ZeusSettings,
    /// Settings of the log.
    pub log: telemetry::Settings,
}

/// A mistake in the settings.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file has a syntax error, an unknown key, or a value of a wrong type or out of range.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Wrong {
        path: PathBuf,
        /// The line in the file, from 1.
        line: usize,
        /// The column in the line, from 1.
        column: usize,
        message: String,
    },
    /// A value is out of range and not in the file, or its position in the file is unknown.
    #[error("{section}: {message}")]
    OutOfRange { section: &'static str, message: String },
}

impl Settings {
    /// Reads and checks a settings file. `adjust` replaces values of the file by those of flags and the environment.
    ///
    /// # Errors
    /// The first mistake. If the mistake is in the file, the message names the file, the line and the allowed values.
    pub fn load(path: &Path, adjust: impl FnOnce(&mut Self)) -> Result<Self, ConfigError> {
        let text = crate::files::regular::read_text(path, MAX_LEN)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        let file = Self::parse(&text, path)?;
        let mut settings = file.clone();
        adjust(&mut settings);
        settings.check().map_err(|error| match error {
            // A mistake in the file itself is reported with its position.
            ConfigError::OutOfRange { section, message }
                if file.check().is_err_and(|e| e.to_string() == format!("{section}: {message}")) =>
            {
                locate(&text, path, section, message)
            }
            other => other,
        })?;
        Ok(settings)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let (line, column) = error.span().map_or((1, 1), |span| position(text, span.start));
            let message = with_nearest(name_types_plainly(&error.message().trim_end().replace('\n', " ")));
            let message = name_keys_and_values(message);
            ConfigError::Wrong { path: path.to_owned(), line, column, message }
        })
    }

    /// Checks value ranges, and settings that depend on each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let in_section = |section| move |message| ConfigError::OutOfRange { section, message };
        self.control.check().map_err(in_section("control"))?;
        self.cap.check().map_err(in_section("cap"))?;
        self.carbon_budget.check().map_err(in_section("carbon_budget"))?;
        self.ledger.check().map_err(in_section("ledger"))?;
        self.cpu.check().map_err(in_section("cpu"))?;
        self.discovery.check().map_err(in_section("discovery"))?;
        self.profile.check().map_err(in_section("profile"))?;
        self.plan.check().map_err(in_section("plan"))?;
        let within = |table| move |e: SettingsError| e.to_string().trim_start_matches(table).to_owned();
        self.carbon.check().map_err(within("carbon.")).map_err(in_section("carbon"))?;
        self.price.check().map_err(within("price.")).map_err(in_section("price"))?;
        self.recurring.check().map_err(in_section("recurring"))?;
        self.http.check().map_err(in_section("http"))?;
        self.zeus.check().map_err(in_section("zeus"))?;
        self.log.check().map_err(in_section("log"))?;
        self.gpus.simulated.check(self.gpus.backend).map_err(in_section("gpus.simulated"))?;
        Ok(())
    }

    /// Returns the state directory: as configured, otherwise `/var/lib/wattune` for root, otherwise below the user's
    /// state directory.
    pub fn state_dir(&self) -> PathBuf {
        if let Some(dir) = &self.state_dir {
            return dir.clone();
        }
        let home = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
        let user = home("XDG_STATE_HOME").or_else(|| Some(home("HOME")?.join(".local/state")));
        match user {
            Some(dir) if !is_root() => dir.join("wattune"),
            _ => PathBuf::from("/var/lib/wattune"),
        }
    }
}

/// Returns true if this process runs as root: user 0 owns the process's own entry in `/proc`.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Returns the error for a value out of range, with the position in the file of the key or list entry with which the
/// message begins, if it is found there.
fn locate(text: &str, path: &Path, section: &'static str, message: String) -> ConfigError {
    let key = format!("{section}.{}", message.split_whitespace().next().unwrap_or_default());
    match DeTable::parse(text).ok().and_then(|table| place(table.get_ref(), &key)) {
        Some(at) => {
            let (line, column) = position(text, at);
            ConfigError::Wrong { path: path.to_owned(), line, column, message }
        }
        None => ConfigError::OutOfRange { section, message },
    }
}

/// Replaces serde's words for parts of Rust types by those for parts of a settings file.
fn name_keys_and_values(message: String) -> String {
    let words = [
        ("unknown field `", "unknown key `"),
        ("missing field `", "missing key `"),
        ("unknown variant `", "unknown value `"),
    ];
    words.into_iter().fold(message, |message, (of_type, of_file)| message.replacen(of_type, of_file, 1))
}

/// Returns the byte position of the deepest existing part of a key's path, such as `cap.schedule[1].from`.
fn place(file: &DeTable<'_>, key: &str) -> Option<usize> {
    let (mut table, mut found) = (file, None);
    for part in key.split('.') {
        let (name, index) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((written, value)) = table.iter().find(|(written, _)| written.get_ref() == name) else { break };
        found = Some(written.span().start);
        let value = match index {
            None => value,
            Some(index) => {
                let Some(entry) = value.get_ref().get(index) else { break };
                found = Some(entry.span().start);
                entry
            }
        };
        let DeValue::Table(inner) = value.get_ref() else { break };
        table = inner;
    }
    found
}

/// Returns the line and the column, both from 1, of a byte position.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        let error = Settings::load(file.path(), |_| ()).expect_err("wrong").to_string();
        error.rsplit('/').next().unwrap_or_default().split_once(':').map(|(_, rest)| rest.to_owned()).unwrap_or(error)
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Settings::parse("", Path::new("x")).expect("right"), Settings::default());
    }

    #[test]
    fn mistakes_are_reported_with_line_and_hint() {
        let unknown = error("[control]\ntick_s = 1\nobseve = true\n");
        assert!(
            unknown.starts_with("3:1: unknown key `obseve`") && unknown.ends_with("did you mean `observe`?"),
            "{unknown}"
        );
        let missing = error("[[cap.events]]\nid = \"a\"\n");
        assert!(missing.contains("missing key `start`"), "{missing}");
        let kind = error("[control]\nobserve = \"yes\"\n");
        assert!(kind.starts_with("2:11: invalid type: string \"yes\", expected a boolean"), "{kind}");
        let range = error("[profile]\nstep_w = 25\n\n  window_s = 1 # short\n");
        assert!(range.starts_with("4:3: window_s = 1 must be at least 5 s"), "{range}");
        let settle = error("[profile]\nsettle_s = 2000\n");
        assert!(settle.starts_with("2:1: settle_s = 2000 must be at most 300 seconds"), "{settle}");
        let cap = error("[cap]\nlimit_w = 0\n");
        assert!(cap.starts_with("2:1: limit_w is 0; it must be from 1 to"), "{cap}");
        let entries = "[[cap.schedule]]\nfrom = \"1:00\"\nto = \"2:00\"\nlimit_w = 5\n[[cap.schedule]]\nfrom = \"25:00\"\n\
                       to = \"2:00\"\nlimit_w = 5\n";
        let second = error(entries);
        assert!(second.starts_with("6:1: schedule[1].from is \"25:00\""), "{second}");
        let inline = error("[cap]\nschedule = [{ from = \"1:00\", to = \"2:00\" }]\n");
        assert!(inline.starts_with("2:13: schedule[0] has no cap"), "{inline}");
        let lines = "[cap]\nschedule = [\n  { from = \"1:00\", to = \"2:00\", limit_w = 5 },\n  { from = \"1:00\", to = \"26:00\", \
                     limit_w = 5 },\n]\n";
        let inner = error(lines);
        assert!(inner.starts_with("4:20: schedule[1].to is \"26:00\""), "{inner}");
        let event =
            "[[cap.events]]\nid = \"a\"\nstart = 2026-12-01T17:00:00\nend = \"2026-12-01T18:00:00Z\"\ntarget_w = 5\n";
        let zone = error(event);
        assert!(
            zone.starts_with("3:9: ") && zone.contains("with its zone, such as \"2026-12-01T17:00:00Z\""),
            "{zone}"
        );
        let clocks = error("[control]\nclocks = true\n");
        assert!(clocks.starts_with("2:10: ") && clocks.contains("expected \"auto\" or \"off\""), "{clocks}");
        let speed = error("[gpus]\nbackend = \"simulated\"\n[gpus.simulated]\nclock_speed = 60\n");
        assert!(speed.starts_with("4:1: clock_speed = 60 needs clock_start"), "{speed}");
        let real = error("[gpus.simulated]\nclock_speed = 60\n");
        assert!(real.contains("needs gpus.backend = \"simulated\""), "{real}");
        let nan = error("[profile]\nstep_w = nan\n");
        assert!(nan.starts_with("2:10: ") && nan.contains("a finite number of W"), "{nan}");
        let variant = error("[gpus]\nbackend = \"nvlm\"\n");
        assert!(
            variant.starts_with("2:11: unknown value `nvlm`") && variant.ends_with("did you mean `nvml`?"),
            "{variant}"
        );
        let solver = error("[plan]\nsolver = \"highs\"\n");
        assert!(
            solver.starts_with("2:10: unknown value `highs`") && solver.contains("`structured` or `lp`"),
            "{solver}"
        );
        for list in ["[\"auto\", \"fixed\"]", "[\"auto\"]"] {
            let auto = error(&format!("[carbon]\nsource = {list}\n"));
            assert!(auto.contains("\"auto\" stands alone; write source") && !auto.contains("did you mean"), "{auto}");
        }
        let syntax = error("[control\n");
        assert!(syntax.starts_with("1:"), "{syntax}");
    }

    #[test]
    fn the_annotated_file_has_every_key_with_its_default() {
        let text = include_str!("../../config/wattune.toml");
        let path = Path::new("config/wattune.toml");
        assert_eq!(Settings::parse(text, path).expect("right"), Settings::default());
        // Without the comment signs of absent values, the file has exactly the existing keys.
        let all: String = text.lines().map(|l| format!("{}\n", l.strip_prefix("#: ").unwrap_or(l))).collect();
        let given: toml::Table = toml::from_str(&all).expect("right");
        Settings::parse(&all, path).expect("examples are right");
        let known = serde_json::to_value(Settings::default()).expect("serialises");
        assert_eq!(keys(&serde_json::to_value(given).expect("serialises"), ""), keys(&known, ""));
    }

    fn keys(value: &serde_json::Value, prefix: &str) -> std::collections::BTreeSet<String> {
        // Users choose the keys in `headers`.
        match value.as_object().filter(|_| !prefix.ends_with(".headers")) {
            Some(table) => table.iter().flat_map(|(k, v)| keys(v, &format!("{prefix}.{k}"))).collect(),
            None => std::iter::once(prefix.to_owned()).collect(),
        }
    }
}
