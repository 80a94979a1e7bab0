//! The summary of a run, for people and as JSON.

use std::ffi::OsString;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::hold::describe_change;
use super::reporter::Outcome;
use super::wait_log::WaitLog;
use wattune_core::domain::{ProgressSource, legible};

/// Result of the command and of its job, for the user.
pub(super) struct Summary<'a> {
    pub(super) command: &'a [OsString],
    pub(super) exit_code: u8,
    pub(super) wall_s: f64,
    pub(super) outcome: &'a Outcome,
    pub(super) wait_log: &'a WaitLog,
}

impl Summary<'_> {
    /// Returns the summary as JSON: the command, its exit code, the ids of its jobs and the final account.
    pub(super) fn json(&self) -> Value {
        let Outcome { jobs, account, source, problem, start, suspend } = self.outcome;
        json!({
            "command": self.command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>(),
            "exit_code": self.exit_code,
            "wall_s": self.wall_s,
            "job_ids": jobs,
            "progress_source": source,
            "problem": problem,
            "start": start,
            "suspend": suspend,
            "waits": self.wait_log,
            "account": account,
        })
    }

    /// Returns the summary in a few lines; `None` if no job was registered.
    pub(super) fn text(&self) -> Option<String> {
        let Outcome { jobs, account, source, problem, .. } = self.outcome;
        if jobs.is_empty() {
            return None;
        }
        let Some(account) = account else {
            let why = problem.as_deref().unwrap_or("the daemon did not answer");
            return Some(format!("no summary: {why}"));
        };
        let label = if account["simulated"].as_bool() == Some(true) { " on simulated GPUs" } else { "" };
        let (name, ran) = (legible(account["name"].as_str().unwrap_or_default()), duration(self.wait_log.ran_s));
        let mut text = format!("{name} ran {ran}{label}");
        let mut line = |name: &str, value: String| {
            let _ = write!(text, "\n  {name:<9} {value}");
        };
        // Of a job that another process has begun, such as one that Slurm has requeued, the sum of all parts counts, too.
        let whole = &account["with_earlier_parts"];
        let with = |key: &str, shown: fn(f64) -> String| {
            whole[key].as_f64().map(|whole| format!("; {} with earlier parts", shown(whole))).unwrap_or_default()
        };
        let energy_used = account["energy_j"].as_f64().map_or_else(|| "unknown".into(), energy);
        line("energy", energy_used + &with("energy_j", energy));
        // Without energy nothing is emitted, whatever the intensity.
        let carbon_g = account["carbon_g"].as_f64().or(account["energy_j"].as_f64().filter(|energy| *energy == 0.0));
        let carbon = carbon_g.map_or_else(|| "unknown: no carbon intensity".into(), grams);
        line("carbon", carbon + &with("carbon_g", grams));
        let saving = &account["savings"]["against_original"];
        line("saved", saved(saving));
        for (name, key, what) in [
            ("start", "start_effect_pct", "by the start after the request"),
            ("stops", "suspension_effect_pct", "by the stops"),
        ] {
            if let Some(effect) = effect(&saving[key], what) {
                line(name, effect);
            }
        }
        let time = &saving["time_increase_pct"]["mean"];
        if let Some(held_s) = self.wait_log.held_s() {
            let change = self.wait_log.expected_saving_pct.and_then(describe_change);
            let expected = change.map(|change| format!("; {change} was expected than at once"));
            line("held", format!("{} before the start{}", duration(held_s), expected.unwrap_or_default()));
        }
        if let (stops @ 1.., gone_s) = self.wait_log.gone_s() {
            let times = if stops == 1 { "once".into() } else { format!("{stops} times") };
            line("stopped", format!("{times}, for {} in all", duration(gone_s)));
        }
        line("time lost", time.as_f64().map_or_else(|| "unknown".into(), |pct| format!("{pct:.2} %")));
        match source {
            Some(source) => line("progress", described(*source).into()),
            None => line("progress", "none was found, so power limits stayed as they were".into()),
        }
        if jobs.len() > 1 {
            let earlier = jobs[..jobs.len() - 1].join(", ");
            line("see also", format!("the energy of earlier parts is recorded under {earlier}"));
        }
        for warning in account["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            line("warning", legible(warning));
        }
        if let Some(problem) = problem {
            line("problem", legible(problem));
        }
        Some(text)
    }
}

/// Describes the saving against the original limit, or why it is unknown.
fn saved(saving: &Value) -> String {
    let grams = &saving["carbon_reduction_g"];
    let number = |key: &str| grams[key].as_f64();
    match (number("mean"), number("low"), number("high"), saving["carbon_reduction_pct"]["mean"].as_f64()) {
        (Some(mean), Some(low), Some(high), Some(pct)) => {
            let unit = if mean.abs() >= 1000.0 { (1e-3, "kgCO2e") } else { (1.0, "gCO2e") };
            let scaled = |g: f64| three_digits(g * unit.0);
            format!(
                "{} {} ({pct:.1} %) against the original limit{}; 95 % confidence interval {} to {}",
                scaled(mean),
                unit.1,
                if saving["start_effect_pct"].is_object() { " and a start at once, without stops" } else { "" },
                scaled(low),
                scaled(high)
            )
        }
        _ => format!("unknown: {}", legible(saving["unknown"].as_str().unwrap_or("the daemon gave no estimate"))),
    }
}

/// Describes one of the effects whose sum is the saving; `None` for a job without this effect.
fn effect(pct: &Value, what: &str) -> Option<String> {
    let number = |key: &str| pct[key].as_f64();
    let (mean, low, high) = (number("mean")?, number("low")?, number("high")?);
    let (size, less) = (mean.abs(), if mean < 0.0 { "more" } else { "less" });
    Some(format!("{size:.1} % {less} carbon {what}; 95 % confidence interval {low:.1} to {high:.1} % less"))
}

fn described(source: ProgressSource) -> &'static str {
    match source {
        ProgressSource::LogLine => "from lines that the command printed",
        ProgressSource::OptimizerHook => "from the steps of a PyTorch optimizer",
        ProgressSource::Keras => "from Keras",
        ProgressSource::Lightning => "from Lightning",
        ProgressSource::TrainerStatus => "from the Hugging Face Trainer",
        ProgressSource::PythonClient => "from the Python package wattune",
        ProgressSource::Http => "from the command's own requests",
    }
}

fn three_digits(number: f64) -> String {
    let decimals = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}

fn grams(carbon: f64) -> String {
    if carbon.abs() >= 1000.0 {
        format!("{} kgCO2e", three_digits(carbon / 1000.0))
    } else {
        format!("{} gCO2e", three_digits(carbon))
    }
}

fn energy(joules: f64) -> String {
    let kwh = joules / 3.6e6;
    if kwh >= 0.1 { format!("{} kWh", three_digits(kwh)) } else { format!("{} Wh", three_digits(kwh * 1000.0)) }
}

fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) => format!("{seconds:.1} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::wait_log::Stop;

    fn text(account: Option<Value>, source: Option<ProgressSource>, problem: Option<&str>) -> Option<String> {
        let problem = problem.map(Into::into);
        let outcome = Outcome { jobs: vec!["j".into()], account, source, problem, ..Outcome::default() };
        let mut wait_log = WaitLog::new(false);
        wait_log.ran_s = 723.4;
        Summary { command: &["a".into()], exit_code: 0, wall_s: 723.4, outcome: &outcome, wait_log: &wait_log }.text()
    }

    #[test]
    fn a_command_does_not_run_while_it_is_held_or_stopped() {
        let at = |seconds| chrono::DateTime::from_timestamp(seconds, 0);
        let begin = chrono::DateTime::UNIX_EPOCH;
        let stop = Stop { asked_at: begin, stopped_at: at(300), exit_code: Some(0), resumed_at: at(360) };
        // The user ended the job during its second stop.
        let last = Stop { resumed_at: None, ..stop.clone() };
        let mut wait_log = WaitLog::new(true);
        (wait_log.asked_at, wait_log.started_at, wait_log.stops) = (at(0), at(115), vec![stop, last]);
        (wait_log.ran_s, wait_log.expected_saving_pct) = (200.5, Some(-4.2));
        let outcome =
            Outcome { jobs: vec!["j".into()], account: Some(json!({ "name": "echo" })), ..Outcome::default() };
        let summary =
            Summary { command: &["a".into()], exit_code: 0, wall_s: 723.4, outcome: &outcome, wait_log: &wait_log };
        let text = summary.text().expect("a summary");
        for part in [
            "echo ran 3 min 20 s",
            "held      1 min 55 s before the start; 4 % more carbon was expected than at once",
            "stopped   once, for 1 min 0 s in all",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(summary.json()["wall_s"], 723.4);
        // The machine slept while the command was held: the wall clock went on, and the monotonic one stood still.
        let after_sleep = Summary { wall_s: 100.0, ..summary }.text().expect("a summary");
        assert!(after_sleep.contains("echo ran 3 min 20 s"), "{after_sleep}");
    }

    #[test]
    fn a_summary_states_every_figure_or_why_it_is_unknown() {
        let saving = json!({
            "carbon_reduction_g": {"mean": 15.24, "low": 12.1, "high": 18.31},
            "carbon_reduction_pct": {"mean": 12.34}, "time_increase_pct": {"mean": 1.234},
        });
        let mut account = json!({
            "name": "resnet\u{1b}50", "simulated": true, "energy_j": 1.48e6, "carbon_g": 123.4,
            "savings": {"against_original": saving}, "warnings": ["odd"],
        });
        let all = text(Some(account.clone()), Some(ProgressSource::Lightning), None).expect("a summary");
        for part in [
            "ran 12 min 3 s on simulated GPUs",
            "energy    0.411 kWh",
            "carbon    123 gCO2e",
            "saved     15.2 gCO2e (12.3 %) against the original limit; 95 % confidence interval 12.1 to 18.3",
            "time lost 1.23 %",
            "progress  from Lightning",
            "warning   odd",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!all.contains('\u{1b}') && !all.contains("carbon by"), "{all:?}");
        // A job that waited and was stopped has two effects more.
        let interval = |mean: f64| json!({"mean": mean, "low": mean - 1.0, "high": mean + 1.0});
        let mut waited = account.clone();
        waited["savings"]["against_original"]["start_effect_pct"] = interval(28.04);
        waited["savings"]["against_original"]["suspension_effect_pct"] = interval(-0.3);
        let waited = text(Some(waited), Some(ProgressSource::Lightning), None).expect("a summary");
        for part in [
            "(12.3 %) against the original limit and a start at once, without stops; 95 %",
            "start     28.0 % less carbon by the start after the request; 95 % confidence interval 27.0 to 29.0 % less",
            "stops     0.3 % more carbon by the stops; 95 % confidence interval -1.3 to 0.7 % less",
        ] {
            assert!(waited.contains(part), "{part}: {waited}");
        }
        let mut again = account.clone();
        again["with_earlier_parts"] = json!({"job_ids": ["i", "j"], "energy_j": 2.5e6, "carbon_g": 200.0});
        let again = text(Some(again), None, None).expect("a summary");
        for part in ["0.411 kWh; 0.694 kWh with earlier parts", "123 gCO2e; 200 gCO2e with earlier parts"] {
            assert!(again.contains(part), "{part}: {again}");
        }
        account["savings"]["against_original"] = json!({"unknown": "too short"});
        account["carbon_g"] = Value::Null;
        let mut idle = account.clone();
        idle["energy_j"] = json!(0.0);
        let idle = text(Some(idle), None, None).expect("a summary");
        assert!(idle.contains("carbon    0.000 gCO2e"), "{idle}");
        let unknown = text(Some(account), None, None).expect("a summary");
        for part in ["saved     unknown: too short", "time lost unknown", "carbon    unknown", "none was found"] {
            assert!(unknown.contains(part), "{part}: {unknown}");
        }
        assert_eq!(text(None, None, Some("frozen")).as_deref(), Some("no summary: frozen"));
    }
}
