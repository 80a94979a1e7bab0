//! The flags of `wattune run` about when the command starts, and whether it may be stopped meanwhile.

use anyhow::bail;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;
use wattune_core::units::Seconds;

use crate::cli::values::{duration, within, zoned_time};

/// Signals that ask a command to save and exit, with their numbers.
const SIGNALS: [(&str, i32); 6] =
    [("SIGTERM", 15), ("SIGINT", 2), ("SIGHUP", 1), ("SIGQUIT", 3), ("SIGUSR1", 10), ("SIGUSR2", 12)];

/// Flags for the start of the command, and for its suspension.
#[derive(Debug, Default, clap::Args)]
pub(super) struct StartArgs {
    /// Hold the command until the grid is cleaner, at most this long: 24h, 90m, 1h30m, 2d, or a number of seconds. It then
    /// starts once, at the latest when this time is over, whatever the daemon does.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "latest")]
    within: Option<Seconds>,
    /// Hold the command until the grid is cleaner, at most until this time, in RFC 3339, such as 2026-12-24T18:00:00Z.
    #[arg(long, alias = "latest-start", value_name = "TIME", value_parser = zoned_time)]
    latest: Option<DateTime<Utc>>,
    /// The duration of the command, to find its start with --within or --latest: 8h, 90m, 1h30m, 2d, or a number of seconds
    /// [default: that of earlier runs with the same name].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Seconds>,
    /// The mean power in watts of the command's GPUs together, to find its start [default: that of earlier runs with the
    /// same name].
    #[arg(long, value_name = "WATTS", value_parser = power)]
    power: Option<f64>,
    /// Offer to be stopped where that saves carbon: the daemon chooses when, this process sends the signal [default: SIGTERM],
    /// waits until the command has saved and exited, and starts it again later with WATTUNE_RESUMED in its environment. The
    /// seconds that saving and restarting take may follow the signal; they are learned.
    #[arg(long, value_name = "SIGNAL[,CHECKPOINT_S[,RESTART_S]]", num_args = 0..=1, require_equals = true,
          default_missing_value = "SIGTERM", value_parser = Suspend::parse)]
    suspend: Option<Suspend>,
    /// A name of your own for this job. If this process or the machine dies, the same command with the same key
    /// continues the job.
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Start at once in spite of --within or --latest. If another `wattune run` holds the job with the same --key, that
    /// command starts at once, and this process ends; the command line can then leave out the command.
    #[arg(long)]
    pub(super) start_now: bool,
}

/// Offer to be stopped.
#[derive(Clone, Debug, PartialEq)]
struct Suspend {
    signal: &'static str,
    checkpoint: Option<f64>,
    restart: Option<f64>,
}

fn power(text: &str) -> Result<f64, String> {
    within(text, 1.0, 1e6, "a power from 1 to 1000000 watts")
}

/// Returns the number of a signal by its name, with or without `SIG`.
pub(super) fn number_of(signal: &str) -> Option<i32> {
    find(signal).map(|(_, number)| number)
}

fn find(signal: &str) -> Option<(&'static str, i32)> {
    let name = signal.to_ascii_uppercase();
    SIGNALS.into_iter().find(|(known, _)| *known == name || known.strip_prefix("SIG") == Some(&name))
}

impl Suspend {
    fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let seconds = |at: usize| match parts.get(at) {
            None | Some(&"") => Ok(None),
            Some(text) => within(text, 0.0, 86_400.0, "seconds from 0 to 86400").map(Some),
        };
        let known = SIGNALS.map(|(name, _)| name).join(", ");
        let signal = if parts[0].is_empty() { Some("SIGTERM") } else { find(parts[0]).map(|(name, _)| name) };
        let signal =
            signal.ok_or_else(|| format!("{} cannot ask the command to save; give one of {known}", parts[0]))?;
        if parts.len() > 3 {
            return Err(
                "give a signal and, if known, the seconds that saving and restarting take: SIGTERM,120,180".into()
            );
        }
        Ok(Self { signal, checkpoint: seconds(1)?, restart: seconds(2)? })
    }
}

impl StartArgs {
    /// Adds the offers to a registration.
    ///
    /// # Errors
    /// If a flag has no meaning without another one.
    pub(super) fn add_to(&self, body: &mut Map<String, Value>) -> anyhow::Result<()> {
        if let Some(within) = self.within {
            start_of(body).remove("latest");
            start_of(body).insert("within_s".into(), within.get().into());
        }
        if let Some(latest) = self.latest {
            start_of(body).remove("within_s");
            start_of(body).insert("latest".into(), json!(latest));
        }
        for (flag, key, value) in
            [("--duration", "duration_s", self.duration.map(Seconds::get)), ("--power", "power_w", self.power)]
        {
            let Some(value) = value else { continue };
            if !body.contains_key("start") {
                bail!("{flag} needs --within or --latest; without them the command starts at once");
            }
            start_of(body).insert(key.into(), value.into());
        }
        if let Some(suspend) = &self.suspend {
            let mut offer = json!({ "signal": suspend.signal });
            for (key, value) in [("checkpoint_s", suspend.checkpoint), ("restart_s", suspend.restart)] {
                if let Some(value) = value {
                    offer[key] = value.into();
                }
            }
            body.insert("suspend".into(), offer);
        }
        if let Some(signal) = body.get("suspend").and_then(|offer| offer["signal"].as_str())
            && number_of(signal).is_none()
        {
            let known = SIGNALS.map(|(name, _)| name).join(", ");
            bail!("suspend.signal: {signal} cannot ask the command to save; give one of {known}");
        }
        if let Some(key) = &self.key {
            body.insert("key".into(), key.clone().into());
        }
        if !body.contains_key("key") && (body.contains_key("start") || body.contains_key("suspend")) {
            // A registration whose answer is lost is found again by it.
            body.insert("key".into(), format!("run-{}", Uuid::new_v4()).into());
        }
        Ok(())
    }
}

/// Returns the table `start` of a registration.
fn start_of(body: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let start = body.entry("start").or_insert_with(|| json!({}));
    if !start.is_object() {
        *start = json!({});
    }
    start.as_object_mut().expect("it is an object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_to_stop_are_read() {
        let offer = |signal, checkpoint, restart| Ok(Suspend { signal, checkpoint, restart });
        for (text, expected) in [
            ("SIGTERM", offer("SIGTERM", None, None)),
            ("usr1,120", offer("SIGUSR1", Some(120.0), None)),
            ("INT, 60, 90.5", offer("SIGINT", Some(60.0), Some(90.5))),
            (",,30", offer("SIGTERM", None, Some(30.0))),
        ] {
            assert_eq!(Suspend::parse(text), expected, "{text}");
        }
        for wrong in ["SIGKILL", "KILL", "9", "SIGTERM,x", "SIGTERM,-1", "SIGTERM,1,2,3"] {
            assert!(Suspend::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_override_the_job_file() {
        let mut body =
            json!({"start": {"within_s": 60, "min_gain": 0.05}, "key": "a"}).as_object().expect("one").clone();
        let latest = "2026-12-24T18:00:00Z".parse().expect("a time");
        let args =
            StartArgs { latest: Some(latest), power: Some(250.0), key: Some("b".into()), ..StartArgs::default() };
        args.add_to(&mut body).expect("right");
        assert_eq!(
            Value::Object(body),
            json!({"start": {"latest": "2026-12-24T18:00:00Z", "min_gain": 0.05, "power_w": 250.0}, "key": "b"})
        );
        let error = StartArgs { power: Some(250.0), ..StartArgs::default() }.add_to(&mut Map::new());
        assert!(error.is_err_and(|error| error.to_string().contains("--within")));
        let mut body = Map::new();
        let suspend = Suspend::parse("SIGTERM,5").ok();
        StartArgs { suspend, ..StartArgs::default() }.add_to(&mut body).expect("right");
        assert_eq!(body["suspend"], json!({"signal": "SIGTERM", "checkpoint_s": 5.0}));
        assert!(body["key"].as_str().is_some_and(|key| key.starts_with("run-")));
    }
}
