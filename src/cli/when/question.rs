//! The flags that say which job may wait, and for how long.

use chrono::{DateTime, Utc};

use crate::cli::values::{duration, name_flag, within, zoned_time};
use crate::controller::{StartBound, WhenRequest};
use wattune_core::domain::JobName;
use wattune_core::units::{Seconds, Watts};

/// Limits of the power of a job in W.
const POWER_W: (f64, f64) = (1e-3, 1e9);

/// Fields of the API and the flags that set them.
const FLAGS: [(&str, &str); 10] = [
    ("duration_s", "--duration"),
    ("within_s", "--within"),
    ("latest_start", "--latest-start"),
    ("latest_end", "--latest-end"),
    ("earliest", "--earliest"),
    ("name", "--name"),
    ("power_w", "--power"),
    ("idle_power_w", "--idle-power"),
    ("min_gain", "--min-gain"),
    ("max_loss_probability", "--confidence"),
];

/// Describes an error of the API by the flag whose value is wrong.
pub(super) fn describe_refusal(refusal: &str) -> String {
    name_flag(refusal, &FLAGS)
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct QuestionArgs {
    /// The job's duration: 8h, 90m, 1h30m, 2d, or seconds [default: that of the earlier runs of --name].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Seconds>,
    /// The time for which the job may wait: its latest start counted from now.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    within: Option<Seconds>,
    /// The job's latest start, such as 2026-11-26T18:00:00Z, in place of --within.
    #[arg(long, alias = "latest", value_name = "TIME", value_parser = zoned_time)]
    latest_start: Option<DateTime<Utc>>,
    /// The job's latest end, in place of --within.
    #[arg(long, value_name = "TIME", value_parser = zoned_time)]
    latest_end: Option<DateTime<Utc>>,
    /// The job's earliest start [default: now].
    #[arg(long, value_name = "TIME", value_parser = zoned_time)]
    earliest: Option<DateTime<Utc>>,
    /// The name of a job that ran on this machine before, whose duration and power are then known.
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<JobName>,
    /// The job's mean power in watts, for emissions in grams; savings in percent do not depend on it.
    #[arg(long, value_name = "WATTS", value_parser = power, allow_negative_numbers = true)]
    power: Option<f64>,
    /// The power in watts that is drawn for the job while it waits, such as that of idle GPUs reserved for it [default: 0].
    #[arg(long, value_name = "WATTS", value_parser = idle_power, allow_negative_numbers = true)]
    idle_power: Option<f64>,
    /// The minimum gain for which the job waits, as a fraction [default: 0.02].
    #[arg(long, value_name = "FRACTION", value_parser = min_gain, allow_negative_numbers = true)]
    min_gain: Option<f64>,
    /// The minimum probability that waiting pays, for which the job waits: from 0 to 1 [default: 0.5].
    #[arg(long, value_name = "PROBABILITY", value_parser = confidence, allow_negative_numbers = true)]
    confidence: Option<f64>,
}

fn name(text: &str) -> Result<JobName, String> {
    JobName::new(text).map_err(|error| error.to_string())
}

fn power(text: &str) -> Result<f64, String> {
    within(text, POWER_W.0, POWER_W.1, "the power in watts, above 0 and at most 1e9, such as 250")
}

fn idle_power(text: &str) -> Result<f64, String> {
    within(text, 0.0, POWER_W.1, "the power in watts, from 0 to 1e9, such as 50")
}

fn min_gain(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.999, "a fraction from 0 to 0.999; write 0.02 for 2 %")
}

fn confidence(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0, "a probability from 0 to 1; write 0.9 for 90 %")
}

impl QuestionArgs {
    /// Checks that the flags can be combined.
    ///
    /// # Errors
    /// If they cannot; one sentence names the missing or superfluous flag.
    pub(super) fn check(&self) -> Result<(), String> {
        let bounds = [self.within.is_some(), self.latest_start.is_some(), self.latest_end.is_some()];
        match bounds.iter().filter(|given| **given).count() {
            0 => Err("say how long the job may wait: --within 24h, --latest-start or --latest-end".into()),
            1 if self.duration.is_none() && self.name.is_none() => {
                Err("give the job's --duration, such as 8h, or the --name of a job that ran here before".into())
            }
            1 => Ok(()),
            _ => Err("give only one of --within, --latest-start and --latest-end".into()),
        }
    }

    /// Returns the name of the job whose earlier runs supply the values that no flag gives.
    pub(super) fn name(&self) -> Option<&JobName> {
        self.name.as_ref()
    }

    /// Returns the request for advice.
    pub(super) fn request(&self) -> WhenRequest {
        let bound = self.within.map(StartBound::Within);
        let bound = bound.or(self.latest_start.map(StartBound::Start)).or(self.latest_end.map(StartBound::End));
        WhenRequest {
            duration: self.duration,
            power: self.power.map(Watts::new),
            name: self.name.clone(),
            earliest: self.earliest,
            latest: bound,
            min_gain: self.min_gain,
            max_loss_probability: self.max_loss_probability(),
            idle_power: self.idle_power.map(Watts::new),
        }
    }

    /// Returns the request as parameters of `GET /v1/when`.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let seconds = |value: Option<Seconds>| value.map(|s| s.get().to_string());
        let time = |value: Option<DateTime<Utc>>| value.map(|t| t.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true));
        let number = |value: Option<f64>| value.map(|n| n.to_string());
        let all = [
            ("duration_s", seconds(self.duration)),
            ("within_s", seconds(self.within)),
            ("latest_start", time(self.latest_start)),
            ("latest_end", time(self.latest_end)),
            ("earliest", time(self.earliest)),
            ("name", self.name.as_ref().map(ToString::to_string)),
            ("power_w", number(self.power)),
            ("idle_power_w", number(self.idle_power)),
            ("min_gain", number(self.min_gain)),
            ("max_loss_probability", number(self.max_loss_probability())),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    fn max_loss_probability(&self) -> Option<f64> {
        self.confidence.map(|confidence| 1.0 - confidence)
    }
}
