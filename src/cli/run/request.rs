//! The registration of the command's job, from a file, flags, and the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

use super::advice::Stage;
use super::args::Args;
use super::due::{Due, Reading};
use crate::cli::slurm::facts::{LABELS, accepted_name, accepted_value};
use crate::cli::values::{name_flag, time_of};
use wattune_core::domain::JobSpec;
use wattune_core::units::Seconds;

/// Keys of a job file, which are those of `POST /v1/jobs`.
const KEYS: [&str; 12] = [
    "name",
    "gpus",
    "batch_size",
    "work",
    "objective",
    "lease_s",
    "control",
    "priority",
    "tags",
    "key",
    "start",
    "suspend",
];

/// Fields of a registration and the flags that set them.
const FLAGS: [(&str, &str); 16] = [
    ("name", "--name"),
    ("gpus", "--gpus"),
    ("batch_size", "--batch-size"),
    ("work", "--total-samples"),
    ("work.total_samples", "--total-samples"),
    ("objective.max_slowdown", "--max-slowdown"),
    ("objective.deadline", "--deadline"),
    ("lease_s", "--lease-s"),
    ("priority", "--priority"),
    ("tags", "--tag"),
    ("key", "--key"),
    ("start.within_s", "--within"),
    ("start.latest", "--latest"),
    ("start.duration_s", "--duration"),
    ("start.power_w", "--power"),
    ("suspend", "--suspend"),
];

/// Largest size of a job file in bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// Longest time to read a job file: a pipe may have no writer.
const READING: Duration = Duration::from_secs(5);

/// Interpreters and launchers, whose first argument that is no option names the program.
const LAUNCHERS: [&str; 5] = ["python", "torchrun", "accelerate", "deepspeed", "srun"];

/// Registration of the command's job. It contains no GPUs if neither the job file nor the flags name any.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Registration {
    pub(super) body: Map<String, Value>,
    /// Number of samples per step, which converts steps to samples.
    pub(super) batch_size: Option<u64>,
    /// True if the user named the GPUs.
    gives_gpus: bool,
    /// True if values may come from a job file.
    has_file: bool,
}

impl Registration {
    /// Combines the job file, the flags (which override it), and the environment (which supplies what both leave open).
    ///
    /// # Errors
    /// If the file cannot be read, or has an unknown key.
    pub(super) fn of(args: &Args, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let mut body = match &args.config {
            Some(path) => read(path)?,
            None => Map::new(),
        };
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        };
        set("name", args.name.clone().map(Value::from));
        set("gpus", args.gpus.as_deref().map(|list| list.split(',').map(|name| selector(name.trim())).collect()));
        set("batch_size", args.batch_size.map(Value::from));
        set("work", args.total_samples.map(|total| json!({ "total_samples": total })));
        set("lease_s", args.lease_s.map(Value::from));
        set("priority", args.priority.map(Value::from));
        set("control", args.no_control.then_some(Value::Bool(false)));
        args.start.add_to(&mut body)?;
        let objective = body.entry("objective").or_insert_with(|| json!({}));
        if let Some(objective) = objective.as_object_mut() {
            objective.extend(args.max_slowdown.map(|slowdown| ("max_slowdown".to_owned(), Value::from(slowdown))));
            objective.extend(args.deadline.clone().map(|deadline| ("deadline".to_owned(), Value::from(deadline))));
        }
        let tags = body.entry("tags").or_insert_with(|| json!({}));
        if let Some(tags) = tags.as_object_mut() {
            tags.extend(args.tags.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))));
            for (key, value) in slurm_tags(&variable) {
                // The user's own tags come first.
                if tags.len() < JobSpec::MOST_TAGS {
                    tags.entry(key).or_insert(Value::from(value));
                }
            }
        }
        if !body.contains_key("name") {
            let of_slurm = variable("SLURM_JOB_NAME").and_then(|name| accepted_name(&name));
            let name = of_slurm.or_else(|| accepted_name(&name_of(&args.command)));
            body.insert("name".into(), name.unwrap_or_else(|| "job".into()).into());
        }
        let batch_size = body.get("batch_size").and_then(Value::as_u64);
        let gives_gpus = body.contains_key("gpus");
        Ok(Self { body, batch_size, gives_gpus, has_file: args.config.is_some() })
    }

    /// Returns true if the command offers to wait for its start or to be suspended.
    pub(super) fn has_offer(&self) -> bool {
        self.is_held() || self.body.contains_key("suspend")
    }

    /// Returns true if the command waits for its start.
    pub(super) fn is_held(&self) -> bool {
        self.body.contains_key("start")
    }

    /// Returns the latest start of a command that waits; `None` if the command does not wait, or if only the daemon can
    /// interpret the given time.
    pub(super) fn latest(&self, now: &Reading) -> Option<Due> {
        let start = self.body.get("start")?;
        match start["within_s"].as_f64() {
            Some(within) if (0.0..1e10).contains(&within) => Some(Due::after(now, Seconds::new(within))),
            _ => Some(Due::at(now, time_of(&start["latest"])?)),
        }
    }

    /// Returns the registration for a command at this stage; after its start, without the offer to wait. `left` is the
    /// time until the latest start.
    pub(super) fn at_stage(&self, stage: Stage, left: Option<Seconds>) -> Map<String, Value> {
        let mut body = self.body.clone();
        if stage != Stage::Held {
            body.remove("start");
        } else if let (Some(Value::Object(start)), Some(left)) = (body.get_mut("start"), left)
            && start.contains_key("within_s")
        {
            start.insert("within_s".into(), left.get().ceil().max(0.0).into());
        }
        body
    }

    /// Returns whether a refusal with this status and field is about a value that the user gave.
    pub(super) fn is_own_value(&self, status: u16, field: Option<&str>) -> bool {
        match (status, field) {
            (400 | 404 | 422, Some(field)) if field.starts_with("gpus") => self.gives_gpus,
            (400 | 422, Some("pids" | "replaces" | "slurm_job_id")) => false,
            (400 | 422, _) | (403, Some("priority")) => true,
            (404, None) => self.gives_gpus,
            _ => false,
        }
    }

    /// Describes a refusal by the flag whose value is wrong or missing. With a job file, the message keeps the name of
    /// the field.
    pub(super) fn describe_refusal(&self, detail: &str, field: Option<&str>) -> String {
        let named = if self.has_file { detail.to_owned() } else { name_flag(detail, &FLAGS) };
        match field {
            Some("start.duration_s") => format!("{named}, such as --duration 8h"),
            Some("start.power_w") => format!("{named}, such as --power 250"),
            _ => named,
        }
    }

    /// Returns the total number of samples, if the job file or the flags state it.
    pub(super) fn total(&self) -> Option<f64> {
        self.body.get("work")?["total_samples"].as_f64()
    }

    /// Returns the job's key, if it has one.
    pub(super) fn key(&self) -> Option<&str> {
        self.body.get("key")?.as_str()
    }

    /// Returns the signal that asks the command to save and exit (first), and the seconds that saving takes, if known
    /// (second). `None` if the command does not offer to be suspended.
    pub(super) fn suspend(&self) -> Option<(&str, Option<f64>)> {
        let offer = self.body.get("suspend")?;
        Some((offer["signal"].as_str().unwrap_or("SIGTERM"), offer["checkpoint_s"].as_f64()))
    }

    /// Returns the deadline, if it is a valid time.
    pub(super) fn deadline(&self) -> Option<chrono::DateTime<chrono::Utc>> {
        time_of(&self.body.get("objective")?["deadline"])
    }
}

fn read(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let text = read_text(path).with_context(|| format!("--config: cannot read {}", path.display()))?;
    let table: Map<String, Value> =
        toml::from_str(&text).with_context(|| format!("--config: {} is no job file in TOML", path.display()))?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        bail!("--config: {} has the unknown key {key}; a job file has any of {}", path.display(), KEYS.join(", "));
    }
    Ok(table)
}

/// Reads a small text, from a pipe too.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let (to, read) = mpsc::channel();
    let path = path.to_owned();
    let body = move || {
        let text = std::fs::File::open(path).and_then(|file| {
            let mut text = String::new();
            file.take(LARGEST_FILE + 1).read_to_string(&mut text).map(|_| text)
        });
        // Nobody receives it after the time that reading may take.
        let _ = to.send(text);
    };
    std::thread::Builder::new().name("config".into()).spawn(body)?;
    let text = read.recv_timeout(READING).context("nothing to read within 5 s")??;
    if text.len() as u64 > LARGEST_FILE {
        bail!("it is larger than 1 MiB, and so no job file");
    }
    Ok(text)
}

/// Returns an index as a number, and a UUID or PCI bus id as text.
fn selector(name: &str) -> Value {
    name.parse::<u32>().map_or_else(|_| Value::from(name), Value::from)
}

/// Returns the tags of a job inside a Slurm job: those of the job that Slurm's Prolog registers.
fn slurm_tags(variable: &impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let number: [(&str, &[&str]); 1] = [("slurm_job_id", &["SLURM_JOB_ID"])];
    let tag = |(tag, names): (&str, &[&str])| {
        let value = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
        Some((tag.to_owned(), accepted_value(&value)))
    };
    LABELS.into_iter().chain(number).filter_map(tag).collect()
}

/// Returns a name for the command: that of the script that an interpreter or launcher runs, otherwise that of the
/// program.
fn name_of(command: &[OsString]) -> String {
    let stem = |part: &OsString| {
        let path = Path::new(part);
        let is_script = path.extension().is_some_and(|end| end == "py" || end == "sh");
        let name = if is_script { path.file_stem() } else { path.file_name() };
        name.map(|name| name.to_string_lossy().into_owned())
    };
    let program = command.first().and_then(stem).unwrap_or_else(|| "job".into());
    if !LAUNCHERS.iter().any(|launcher| program.starts_with(launcher)) {
        return program;
    }
    let mut rest = command.iter().skip(1);
    while let Some(part) = rest.next() {
        let text = part.to_string_lossy();
        match &*text {
            "-m" => match rest.next() {
                // `python -m torch.distributed.run train.py` and the like launch another script.
                Some(module) if module.to_string_lossy().contains("distributed") => {}
                module => return module.map_or(program, |module| module.to_string_lossy().into_owned()),
            },
            "-c" => return program,
            _ if text.ends_with(".py") || text.ends_with(".sh") => return stem(part).unwrap_or(program),
            _ => {}
        }
    }
    program
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::try_parse_from([&["run"], line].concat()).expect("accepted").args
    }

    fn body(line: &[&str], variables: &[(&str, &str)]) -> Value {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
        Value::Object(Registration::of(&args(line), variable).expect("read").body)
    }

    #[test]
    fn names_come_from_the_script() {
        let table = [
            ("python train.py --lr 1", "train"),
            ("python3.11 -u -m pkg.train", "pkg.train"),
            ("/usr/bin/torchrun --nproc-per-node 2 dir/train_b.py", "train_b"),
            ("python -m torch.distributed.run --nproc-per-node 2 a.py", "a"),
            ("accelerate launch train.py", "train"),
            ("python -c pass", "python"),
            ("./train.sh", "train"),
            ("nanogpt --config x", "nanogpt"),
        ];
        for (line, name) in table {
            let command: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(name_of(&command), name, "{line}");
        }
    }

    #[test]
    fn flags_override_the_file_and_slurm_fills_the_rest() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(
            &file,
            "name = \"a\"\nbatch_size = 8\n[objective]\neta = 0.5\nmax_slowdown = 0.1\n[tags]\nuser = \"x\"\n",
        )
        .expect("written");
        let path = file.path().to_str().expect("text");
        let line =
            ["--config", path, "--max-slowdown", "0.02", "--tag", "team=vision", "--gpus", "0,GPU-1", "--", "true"];
        let slurm = [
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_USER", "ann"),
            ("SLURM_JOB_NAME", "n"),
            ("SLURM_JOB_ACCOUNT", ""),
            ("SLURM_JOB_PARTITION", "gpu"),
            ("SLURM_JOB_RESTART_COUNT", "1"),
            ("SLURM_RESTART_COUNT", "2"),
        ];
        assert_eq!(
            body(&line, &slurm),
            json!({
                "name": "a", "batch_size": 8, "gpus": [0, "GPU-1"], "objective": {"eta": 0.5, "max_slowdown": 0.02},
                "tags": {
                    "team": "vision", "user": "x", "slurm_job_id": "77", "slurm_partition": "gpu",
                    "slurm_restart_count": "1",
                },
            })
        );
        assert_eq!(body(&["--", "python", "t.py"], &slurm)["name"], "n");
        assert_eq!(body(&["--", "python", "t.py"], &[]), json!({"name": "t", "objective": {}, "tags": {}}));
    }

    #[test]
    fn values_of_the_environment_are_made_acceptable() {
        let invisible = [("SLURM_JOB_ID", "77"), ("SLURM_JOB_NAME", "a\tb"), ("SLURM_JOB_ACCOUNT", "c\u{200b}d")];
        let found = body(&["--", "python", "t.py"], &invisible);
        assert_eq!((&found["name"], &found["tags"]["account"]), (&json!("a\u{fffd}b"), &json!("c\u{fffd}d")));
        assert_eq!(body(&["--", "python", "a\u{ad}b.py"], &[])["name"], "a\u{fffd}b");
        // A name may have no blank but the common one.
        assert_eq!(body(&["--", "python", "a\u{a0}b.py"], &[("SLURM_JOB_NAME", " ")])["name"], "job");
        let flags: Vec<String> = (0..16).flat_map(|n| ["--tag".to_owned(), format!("t{n}=x")]).collect();
        let line: Vec<&str> = flags.iter().map(String::as_str).chain(["--", "true"]).collect();
        let tags = body(&line, &invisible)["tags"].as_object().expect("an object").clone();
        assert!(tags.len() == 16 && !tags.contains_key("account"), "{tags:?}");
    }

    #[test]
    fn unknown_keys_of_a_file_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, "max_slowdown = 0.1\n").expect("written");
        let path = file.path().to_str().expect("text");
        let error = Registration::of(&args(&["--config", path, "--", "true"]), |_| None).expect_err("refused");
        assert!(error.to_string().contains("unknown key max_slowdown"), "{error}");
    }
}
