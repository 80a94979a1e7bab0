//! Settings from the file, `WATTUNE_…` variables and flags: variables override the file, flags override both.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args as _;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::output::{Format, WrongUse};
use crate::config::{Backend, ConfigError, Settings};
use crate::providers;
use wattune_core::domain::{Zone, nearest};

/// The default path of the configuration file.
const DEFAULT_FILE: &str = "/etc/wattune/wattune.toml";

/// The flags of every command that uses a daemon's settings.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// Configuration file [default: /etc/wattune/wattune.toml, if it exists].
    #[arg(long, value_name = "FILE", env = "WATTUNE_CONFIG")]
    config: Option<PathBuf>,
    /// The kind of GPUs, which sets `gpus.backend`.
    #[arg(long, value_enum, value_name = "BACKEND", env = "WATTUNE_GPUS")]
    gpus: Option<Backend>,
    /// Path of the driver's library, which sets `gpus.nvml.library`.
    #[arg(long, value_name = "PATH", env = "WATTUNE_NVML_LIBRARY")]
    nvml_library: Option<PathBuf>,
    /// The state directory, which sets `state_dir`.
    #[arg(long, value_name = "DIR", env = "WATTUNE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// TCP address of the API, or "off"; sets `http.listen`.
    #[arg(long, value_name = "ADDRESS", env = "WATTUNE_LISTEN")]
    listen: Option<Listen>,
    /// Unix socket of the API; sets `http.socket`.
    #[arg(long, value_name = "PATH", env = "WATTUNE_SOCKET")]
    socket: Option<PathBuf>,
    /// Carbon intensities from a CSV or JSON file; sets `carbon.source = "file"` and `carbon.file.path`.
    #[arg(long, value_name = "FILE", env = "WATTUNE_CARBON_FILE", value_parser = OsStringValueParser::new().map(file))]
    carbon_file: Option<Given<PathBuf>>,
    /// The zone of the grid, such as DE, 52.52,13.40 or a source's own code; sets `carbon.zone`.
    #[arg(long, value_name = "ZONE", env = "WATTUNE_ZONE", allow_hyphen_values = true, value_parser = zone)]
    zone: Option<Given<Zone>>,
    /// Plan and record, but set no limits; sets `control.observe`.
    #[arg(long, env = "WATTUNE_OBSERVE", value_parser = clap::builder::BoolishValueParser::new())]
    observe: bool,
}

/// The flags of a command that shows information based on a daemon's settings.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ShowFlags {
    #[command(flatten)]
    pub(super) overrides: Overrides,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
}

/// Treatment of the sources' values by a command that asks them itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueUse {
    /// Factor beyond which a single answer's values count as outliers.
    pub(super) jump_factor: f64,
    /// True if the values count unchanged: the user has named the file that they come from.
    pub(super) as_published: bool,
}

/// The value of `--listen`: a TCP address, or `None` for "off".
#[derive(Clone, Copy, Debug)]
struct Listen(Option<SocketAddr>);

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let address = text.parse();
        address.map(|a| Self(Some(a))).map_err(|_| "give IP and port, such as 127.0.0.1:4938, or off".to_owned())
    }
}

/// The value of a flag or variable; `None` if the variable is set but empty.
#[derive(Clone, Debug)]
struct Given<T>(Option<T>);

fn zone(text: &str) -> Result<Given<Zone>, String> {
    match text.trim() {
        "" => Ok(Given(None)),
        text => Zone::new(text).map(|zone| Given(Some(zone))).map_err(|e| e.to_string()),
    }
}

fn file(text: OsString) -> Given<PathBuf> {
    Given((!text.is_empty()).then(|| text.into()))
}

impl Overrides {
    /// Returns true if the flags or variables name a daemon's address.
    pub(super) fn names_daemon(&self) -> bool {
        self.listen.is_some() || self.socket.is_some()
    }

    /// Returns true if the flags or variables select another carbon signal than a running daemon's.
    pub(super) fn other_signal(&self) -> bool {
        self.zone().is_some() || self.carbon_file().is_some()
    }

    /// Returns a warning if the flags or variables name a zone, and the values of that zone come from a file that names
    /// none. `source` is the source of the values.
    pub(super) fn describe_foreign_zone(&self, settings: &Settings, source: &serde_json::Value) -> Option<String> {
        let zone = self.zone().filter(|_| source == "file")?;
        providers::file::describe_missing_zone(&settings.carbon.file, zone)
    }

    /// Returns how the sources' values are used. Those of a file that the user names with a flag or variable are used
    /// as they are: no later answer can confirm them.
    pub(super) fn value_use(&self, settings: &Settings) -> ValueUse {
        let as_published = self.carbon_file().is_some();
        let jump_factor = if as_published { f64::INFINITY } else { settings.carbon.jump_factor };
        ValueUse { jump_factor, as_published }
    }

    fn zone(&self) -> Option<&Zone> {
        self.zone.as_ref()?.0.as_ref()
    }

    fn carbon_file(&self) -> Option<&PathBuf> {
        self.carbon_file.as_ref()?.0.as_ref()
    }

    /// Returns the checked settings from file, variables and flags.
    ///
    /// # Errors
    /// The first mistake, with file and line, or with the key of the flag; or a misspelt variable.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        OddVariables::present().refuse_mistyped()?;
        let usual = PathBuf::from(DEFAULT_FILE);
        let socket = self.socket.as_ref().map(std::path::absolute).transpose()?;
        let adjust = |settings: &mut Settings| self.adjust(settings, socket);
        match &self.config {
            Some(path) => Settings::load(path, adjust).map_err(|error| match error {
                ConfigError::Unreadable { ref path, ref source } => {
                    WrongUse(format!("--config: cannot read {}: {source}", path.display())).into()
                }
                other => other.into(),
            }),
            None if usual.exists() => Ok(Settings::load(&usual, adjust)?),
            None => {
                let mut settings = Settings::default();
                adjust(&mut settings);
                settings.check()?;
                Ok(settings)
            }
        }
    }

    fn adjust(&self, settings: &mut Settings, socket: Option<PathBuf>) {
        if let Some(backend) = self.gpus {
            settings.gpus.backend = backend;
        }
        if let Some(library) = &self.nvml_library {
            settings.gpus.nvml.library = Some(library.clone());
        }
        if let Some(dir) = &self.state_dir {
            settings.state_dir = Some(dir.clone());
        }
        if let Some(listen) = self.listen {
            settings.http.listen = listen.0;
        }
        if socket.is_some() {
            settings.http.socket = socket;
        }
        if let Some(file) = self.carbon_file() {
            settings.carbon.source = providers::Chain::only(providers::Source::File);
            settings.carbon.file.path = Some(file.clone());
        }
        if let Some(zone) = self.zone() {
            settings.carbon.zone = Some(zone.clone());
        }
        settings.control.observe |= self.observe;
    }
}

const PREFIX: &str = "WATTUNE_";

/// Environment variables that wattune does not use, although their names resemble those that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OddVariables {
    /// Misspelt variables: first the name that is set, second the variable of wattune that was probably meant.
    pub(super) mistyped: Vec<(String, String)>,
    /// All other variables that begin with `WATTUNE_`.
    pub(super) unknown: Vec<String>,
}

impl OddVariables {
    /// Returns the unused variables of this process that are not empty.
    pub(super) fn present() -> Self {
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        Self::among(set.filter_map(|(name, _)| name.into_string().ok()), &known_variables())
    }

    fn among(names: impl Iterator<Item = String>, known: &BTreeSet<String>) -> Self {
        let mut odd = Self::default();
        for name in names.filter(|name| !known.contains(name)) {
            let upper = name.to_uppercase();
            match upper.strip_prefix(PREFIX) {
                // Kubernetes sets such variables in each pod of a namespace with a service called wattune.
                Some(rest) if rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_") => {}
                Some(rest) => match nearest(rest, known.iter().filter_map(|name| name.strip_prefix(PREFIX))) {
                    Some(meant) => odd.mistyped.push((name, format!("{PREFIX}{meant}"))),
                    None => odd.unknown.push(name),
                },
                // A misspelt prefix is recognised only if the rest of the name is correct.
                None => {
                    let parts = upper.split_once('_').filter(|(prefix, _)| nearest(prefix, ["WATTUNE"]).is_some());
                    let meant = parts.map(|(_, rest)| format!("{PREFIX}{rest}")).filter(|name| known.contains(name));
                    odd.mistyped.extend(meant.map(|meant| (name, meant)));
                }
            }
        }
        odd
    }

    /// Checks that no variable is misspelt, because the command would otherwise run without the intended setting.
    ///
    /// # Errors
    /// The first misspelt variable, with the name that was probably meant.
    pub(super) fn refuse_mistyped(&self) -> anyhow::Result<()> {
        match self.mistyped.first() {
            Some((name, meant)) => anyhow::bail!("{name} is not a variable of wattune; did you mean {meant}?"),
            None => Ok(()),
        }
    }

    /// Describes the unknown variables in one sentence, if there are any.
    pub(super) fn describe_unknown(&self) -> Option<String> {
        let known = || known_variables().into_iter().collect::<Vec<_>>().join(", ");
        (!self.unknown.is_empty())
            .then(|| format!("{} is set but unused; wattune's variables are {}", self.unknown.join(", "), known()))
    }
}

/// Returns the names of all variables that wattune uses.
fn known_variables() -> BTreeSet<String> {
    let flags = Overrides::augment_args(clap::Command::new(""));
    let of_flags = flags.get_arguments().filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned()));
    let others = super::run::VARIABLES.into_iter().chain([super::ask::TOKEN, super::ask::TOKEN_FILE]);
    of_flags.chain(others.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn collect(command: &clap::Command, into: &mut BTreeSet<String>) {
        into.extend(command.get_arguments().filter_map(|a| Some(a.get_env()?.to_str()?.to_owned())));
        command.get_subcommands().for_each(|sub| collect(sub, into));
    }

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        overrides: Overrides,
    }

    #[test]
    fn empty_variables_count_as_unset() {
        let read = |arguments: &[&str]| {
            let line = Line::try_parse_from([&["wattune"], arguments].concat()).expect("accepted");
            let mut settings = Settings::default();
            settings.carbon.zone = Zone::new("DE").ok();
            line.overrides.adjust(&mut settings, None);
            (
                settings.carbon.zone.map(|zone| zone.to_string()),
                settings.carbon.file.path,
                line.overrides.other_signal(),
            )
        };
        assert_eq!(read(&["--zone=", "--carbon-file="]), (Some("DE".to_owned()), None, false));
        let given = read(&["--zone= FR ", "--carbon-file=a.csv"]);
        assert_eq!(given, (Some("FR".to_owned()), Some("a.csv".into()), true));
    }

    #[test]
    fn misspelt_and_unknown_variables_are_found() {
        let known = known_variables();
        assert!(known.contains("WATTUNE_ZONE") && known.contains("WATTUNE_CONFIG"), "{known:?}");
        let mut all = BTreeSet::new();
        collect(&crate::cli::Cli::command(), &mut all);
        all.extend(crate::cli::run::VARIABLES.map(str::to_owned));
        all.extend([crate::cli::ask::TOKEN, crate::cli::ask::TOKEN_FILE].map(str::to_owned));
        assert_eq!(all, known, "variables of all commands");
        let among = |names: &[&str]| OddVariables::among(names.iter().map(|n| (*n).to_owned()), &known);
        for (name, meant) in [
            ("WATTUNE_ZNOE", "WATTUNE_ZONE"),
            ("wattune_zone", "WATTUNE_ZONE"),
            ("WATTUEN_ZONE", "WATTUNE_ZONE"),
            ("WATTUNE_STATEDIR", "WATTUNE_STATE_DIR"),
            ("WATTUNE_CARBONFILE", "WATTUNE_CARBON_FILE"),
            ("WATTUNE_OBSERVED", "WATTUNE_OBSERVE"),
            ("WATTUNE_GPU", "WATTUNE_GPUS"),
        ] {
            assert_eq!(among(&[name]).mistyped, [(name.to_owned(), meant.to_owned())], "{name}");
        }
        let fine = ["WATTUNE_ZONE", "HOME", "WATTTIME_USERNAME", "WATTAGE", "WATTUNE_PORT", "WATTUNE_SERVICE_HOST"];
        assert_eq!(among(&fine), OddVariables::default());
        assert_eq!(among(&["WATTUNE_FAVOURITE_COLOUR"]).unknown, ["WATTUNE_FAVOURITE_COLOUR"]);
    }
}
