//! What happens in a trial: the steps, and how a seed becomes steps.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One counter that is read, one GPU whose energy is integrated from power, one counter that moves rarely.
pub(crate) const BOARDS: usize = 3;
/// Every GPU is found with this limit, below its default.
pub(crate) const FOUND_W: f64 = 280.0;
/// What a GPU draws without a job, and what a job would draw without a limit.
pub(crate) const IDLE_W: f64 = 35.0;
pub(crate) const LOAD_W: f64 = 400.0;
/// Nothing goes wrong in the last seconds, so that what is left over then is a defect.
const CALM_S: f64 = 30.0;

/// A trial: its steps in the order of time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) length_s: f64,
    pub(crate) steps: Vec<Timed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) at_s: f64,
    #[serde(flatten)]
    pub(crate) step: Step,
}

/// Something that happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum Step {
    Job(JobPlan),
    /// Jobs that are recorded and not controlled.
    Guests {
        gpu: usize,
        count: usize,
        for_s: f64,
    },
    Fault {
        gpu: usize,
        fault: Fault,
        for_s: f64,
    },
    /// Another program sets a limit.
    Foreign {
        gpu: usize,
        watts: u32,
    },
    /// Somebody sets a limit through the API.
    Override {
        gpu: usize,
        watts: f64,
        ttl_s: f64,
    },
    /// The daemon is killed; another program may set a limit while it is away.
    Kill {
        down_s: f64,
        foreign: Option<(usize, u32)>,
    },
    /// The daemon is asked to end, and started again.
    Restart {
        signal: String,
        down_s: f64,
    },
    /// A signal that must not end the daemon.
    Signal {
        name: String,
    },
    /// The daemon is stopped, and goes on later.
    Frozen {
        for_s: f64,
    },
    /// No file may grow.
    FullDisk {
        for_s: f64,
    },
    /// Another program holds the database.
    LockedDatabase {
        for_s: f64,
    },
    /// The journal cannot be written.
    BlockedJournal {
        for_s: f64,
    },
    Source {
        trouble: Trouble,
        for_s: f64,
    },
    Connections {
        manner: Manner,
        count: usize,
        for_s: f64,
    },
    /// Requests that no client should send.
    Nonsense {
        seed: u64,
        count: usize,
    },
    /// A job that can be registered and hardly be planned.
    OddJob {
        gpu: usize,
        body: Value,
        for_s: f64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobPlan {
    pub(crate) gpu: usize,
    /// Work that it declares, in seconds at the limit found. It ends after `runs_s` at the latest.
    pub(crate) declared_s: f64,
    pub(crate) runs_s: f64,
    pub(crate) max_slowdown: f64,
    /// Spread of its speed, relative.
    pub(crate) noise: f64,
    pub(crate) report_s: f64,
    pub(crate) lease_s: f64,
    pub(crate) pauses: Option<Pauses>,
    /// It stops reporting instead of ending.
    pub(crate) silent: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pauses {
    pub(crate) every_s: f64,
    pub(crate) for_s: f64,
    pub(crate) watts: f64,
}

/// What can be wrong with a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    CounterUnsupported,
    CounterFails,
    CounterRestarts,
    PowerFails,
    LimitUnsupported,
    SetsFail,
    SetsIgnored,
    SetsDenied,
    Lost,
    Slow,
    OutOfBandCap,
}

/// What can be wrong with the source of carbon intensities.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    Silent,
    HangsUp,
    Fails,
    Garbage,
    Half,
}

/// How somebody keeps connections.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Manner {
    Idle,
    SlowHeaders,
    SlowBody,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::CounterUnsupported,
        Self::CounterFails,
        Self::CounterRestarts,
        Self::PowerFails,
        Self::LimitUnsupported,
        Self::SetsFail,
        Self::SetsIgnored,
        Self::SetsDenied,
        Self::Lost,
        Self::Slow,
        Self::OutOfBandCap,
    ];

    /// Whether the GPU cannot be measured or steered as it should be.
    pub(crate) fn is_a_problem(self) -> bool {
        !matches!(self, Self::CounterRestarts | Self::OutOfBandCap | Self::Slow)
    }

    /// Whether a limit may stay because of it.
    pub(crate) fn keeps_limits(self) -> bool {
        !matches!(self, Self::CounterUnsupported | Self::CounterFails | Self::CounterRestarts | Self::PowerFails)
    }

    /// Whether energy may be known less exactly because of it.
    pub(crate) fn blurs_energy(self) -> bool {
        !matches!(self, Self::SetsFail | Self::SetsIgnored | Self::SetsDenied | Self::OutOfBandCap)
    }
}

/// Fields of a GPU of the fake driver under these faults.
pub(crate) fn fields(gpu: usize, faults: &[Fault], restarts: u32) -> Value {
    let has = |fault| faults.contains(&fault);
    let mut fails = serde_json::Map::new();
    let mut fail = |fault, call: &str| {
        if has(fault) {
            fails.insert(call.into(), json!(999));
        }
    };
    fail(Fault::CounterFails, "nvmlDeviceGetTotalEnergyConsumption");
    fail(Fault::PowerFails, "nvmlDeviceGetPowerUsage");
    fail(Fault::PowerFails, "nvmlDeviceGetFieldValues");
    fail(Fault::SetsFail, "nvmlDeviceSetPowerManagementLimit");
    json!({
        "energy_supported": gpu != 1 && !has(Fault::CounterUnsupported),
        "limit_supported": !has(Fault::LimitUnsupported),
        "ignore_calls": if has(Fault::SetsIgnored) { json!(["nvmlDeviceSetPowerManagementLimit"]) } else { json!([]) },
        "deny_set_limit": has(Fault::SetsDenied),
        "lost": has(Fault::Lost),
        "slow_ms": if has(Fault::Slow) { 700 } else { 0 },
        "oob_cap_w": if has(Fault::OutOfBandCap) { json!(180.0) } else { Value::Null },
        "energy_resets": restarts,
        "update_ms": if gpu == 2 { 100 } else { 20 },
        "fail_calls": fails,
    })
}

impl Case {
    /// The trial of a seed. Each GPU has one controlling job at a time; everything else comes whenever it comes.
    pub(crate) fn random(seed: u64, length_s: f64) -> Self {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let until = length_s - CALM_S;
        let mut steps = Vec::new();
        for gpu in 0..BOARDS {
            jobs(&mut dice, gpu, until, &mut steps);
        }
        let mut at = dice.between(6.0, 12.0);
        while at < until - 10.0 {
            let for_s = dice.between(2.0, 30.0).min(until - at - 2.0);
            let step = trouble(&mut dice, for_s);
            // What the daemon needs to come back, and to notice.
            let rest =
                if matches!(step, Step::Kill { .. } | Step::Restart { .. } | Step::Frozen { .. }) { 8.0 } else { 0.0 };
            steps.push(Timed { at_s: at, step });
            at += rest + dice.between(1.0, 12.0);
        }
        steps.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Self { seed, length_s, steps }
    }
}

fn jobs(dice: &mut Dice, gpu: usize, until: f64, steps: &mut Vec<Timed>) {
    let mut at = dice.between(1.0, 15.0);
    loop {
        let runs_s = dice.between(25.0, 120.0);
        let lease_s = dice.between(5.0, 20.0);
        let silent = dice.chance(0.2);
        let free_again = at + runs_s + if silent { lease_s + 8.0 } else { 8.0 };
        if free_again > until {
            return;
        }
        let pause_s = dice.between(1.0, 8.0);
        let pauses = Pauses { every_s: dice.between(10.0, 30.0), for_s: pause_s, watts: dice.between(50.0, 220.0) };
        let plan = JobPlan {
            gpu,
            // Much work gives much to learn with; little has to keep its promise to the end.
            declared_s: if dice.chance(0.5) { 20_000.0 } else { runs_s * 0.8 },
            runs_s,
            max_slowdown: *dice.among(&[0.01, 0.03, 0.1, 0.3]),
            noise: *dice.among(&[0.0, 0.02, 0.05]),
            report_s: *dice.among(&[0.2, 0.5, 1.0]),
            lease_s,
            pauses: dice.chance(0.25).then_some(pauses),
            silent,
        };
        steps.push(Timed { at_s: at, step: Step::Job(plan) });
        at = free_again + dice.between(0.0, 10.0);
    }
}

fn trouble(dice: &mut Dice, for_s: f64) -> Step {
    let gpu = dice.below(BOARDS);
    match dice.below(21) {
        0..=5 => Step::Fault { gpu, fault: *dice.among(&Fault::ALL), for_s },
        6 => Step::Foreign { gpu, watts: *dice.among(&[205, 215, 245, 265]) },
        7 => Step::Override { gpu, watts: *dice.among(&[150.0, 175.0, 225.0]), ttl_s: for_s },
        8 | 9 => {
            let down_s = *dice.among(&[0.1, 1.0, 6.0]);
            let foreign = dice.chance(0.3).then(|| (gpu, *dice.among(&[205, 215, 245])));
            Step::Kill { down_s, foreign }
        }
        10 => Step::Restart { signal: dice.among(&["TERM", "INT"]).to_string(), down_s: dice.between(0.1, 3.0) },
        11 => Step::Signal { name: dice.among(&["HUP", "USR1", "USR2", "ALRM"]).to_string() },
        12 => Step::FullDisk { for_s: for_s.min(10.0) },
        13 => Step::LockedDatabase { for_s: for_s.min(6.0) },
        14 => Step::BlockedJournal { for_s: for_s.min(10.0) },
        15 => {
            use Trouble::{Fails, Garbage, Half, HangsUp, Silent};
            Step::Source { trouble: *dice.among(&[Silent, HangsUp, Fails, Garbage, Half]), for_s }
        }
        16 => {
            use Manner::{Idle, SlowBody, SlowHeaders};
            Step::Connections { manner: *dice.among(&[Idle, SlowHeaders, SlowBody]), count: 300, for_s }
        }
        17 => Step::Nonsense { seed: dice.0.random(), count: 30 },
        18 => Step::Frozen { for_s: for_s.min(7.0) },
        19 => Step::Guests { gpu, count: 1 + dice.below(40), for_s },
        _ => Step::OddJob { gpu, body: odd_job(dice), for_s: for_s.min(10.0) },
    }
}

/// A job that says odd things in the API's own words.
fn odd_job(dice: &mut Dice) -> Value {
    let work = dice.among(&[1e9, 1.0, 5e-324, 1e300, 0.5]);
    let deadline = dice.among(&["2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]);
    json!({
        "name": "odd", "work": {"total_samples": work}, "lease_s": 5, "control": true,
        "objective": {"deadline": deadline, "pausable": dice.chance(0.7)},
    })
}

/// Random choices that follow from the seed alone.
struct Dice(ChaCha8Rng);

impl Dice {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        (self.0.random_range(low..high) * 100.0).round() / 100.0
    }

    fn below(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.0.random_bool(probability)
    }

    fn among<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
