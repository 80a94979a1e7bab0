//! Logging: one subscriber, set up once, writing to stderr.

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What is logged: a level, or directives like "info,wattune::controller=debug".
    pub level: String,
    /// How it is written.
    pub format: LogFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Settings {
    /// Checks the directives.
    ///
    /// # Errors
    /// If they cannot be understood.
    pub fn check(&self) -> Result<(), String> {
        EnvFilter::try_new(&self.level).map(drop).map_err(|e| {
            format!("level = {:?} is not understood ({e}); give error, warn, info, debug or trace", self.level)
        })
    }

    /// Sends the log of this process to stderr from now on. Later calls change nothing.
    pub fn init(&self) {
        let filter = EnvFilter::try_new(&self.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
        // A second initialisation, in tests, is no harm.
        let _ = match self.format {
            LogFormat::Text => builder.with_ansi(ansi).with_target(false).try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        };
    }
}
