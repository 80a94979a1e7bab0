//! What must hold at the end of a trial: every joule recorded once, jobs have theirs, and promises were kept.

use std::time::{Duration, Instant};

use super::case::{BOARDS, Fault, JobPlan};
use super::client::Record;
use super::laws::Laws;
use super::scene::Disturbances;

/// No more than so much of a GPU's time may be lost with a kill.
const LOST_WITH_A_KILL_S: f64 = 5.0;
/// What a GPU draws at its highest limit.
const MOST_W: f64 = 350.0;
/// Energy that is integrated from power is off by this part.
const ESTIMATED: f64 = 0.03;
/// An hour's growth of the state directory, in bytes, and what it may have from the beginning.
const GROWTH_PER_HOUR: f64 = 20e6;
const STATE_BYTES: f64 = 12e6;

/// One GPU's energy over a whole trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Energy {
    pub(crate) used_j: f64,
    pub(crate) recorded_j: f64,
}

/// How much a GPU's ledger may lack and may have too much, in joules.
fn allowed_j(disturbances: &Disturbances, gpu: usize, used_j: f64) -> (f64, f64) {
    let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
    let faults: f64 = disturbances
        .faults
        .iter()
        .filter(|(of, _, _, fault)| *of == gpu && fault.blurs_energy())
        .map(|(_, from, to, fault)| match fault {
            // The counter comes back and settles what is between.
            Fault::CounterUnsupported | Fault::CounterFails if gpu != 1 => 0.1 * seconds(*from, *to),
            Fault::CounterRestarts | Fault::Slow => 3.0,
            _ => seconds(*from, *to),
        })
        .sum();
    let has_counter = gpu != 1;
    let kills = disturbances.kills.len() as f64 * LOST_WITH_A_KILL_S;
    // Without a counter nobody knows what was used while the daemon was away.
    let away: f64 = disturbances.away.iter().map(|(from, to)| seconds(*from, *to)).sum();
    let blind = if has_counter { 0.0 } else { kills + away };
    // A counter that is away when the daemon is killed knows nothing of what was integrated instead.
    let hit = disturbances.faults.iter().filter(|(of, from, to, fault)| {
        *of == gpu && fault.blurs_energy() && disturbances.kills.iter().any(|kill| from <= kill && kill <= to)
    });
    let ends = 1.5;
    let lacks = MOST_W * (faults + blind + ends + LOST_WITH_A_KILL_S * hit.count() as f64);
    let estimated = if has_counter { 0.0 } else { used_j };
    let faulty: f64 =
        disturbances.faults.iter().filter(|f| f.0 == gpu).map(|(_, from, to, _)| seconds(*from, *to)).sum();
    // A counter moves every 100 ms at the latest; what is integrated instead of it may be too much.
    let exceeds = ESTIMATED * estimated + MOST_W * (0.1 + 0.2 * faulty.min(20.0));
    (lacks + ESTIMATED * estimated, exceeds)
}

/// Every joule once.
pub(crate) fn energy(laws: &mut Laws, disturbances: &Disturbances, energies: [Energy; BOARDS]) {
    for (gpu, Energy { used_j, recorded_j }) in energies.into_iter().enumerate() {
        let (lacks, exceeds) = allowed_j(disturbances, gpu, used_j);
        if recorded_j < used_j - lacks || recorded_j > used_j + exceeds {
            laws.breach(format!(
                "GPU {gpu} used {used_j:.0} J, and {recorded_j:.0} J are recorded (may lack {lacks:.0}, exceed {exceeds:.0})"
            ));
        }
    }
}

/// What a job was recorded, against what its GPU used under it.
pub(crate) fn job(laws: &mut Laws, disturbances: &Disturbances, plan: &JobPlan, record: &Record, recorded_j: f64) {
    let (Some(from), Some(to)) = (record.registered, record.ended) else { return };
    let name = record.id.as_deref().unwrap_or("?");
    for refusal in &record.refusals {
        laws.breach(format!("job {name} on GPU {}: {refusal}", plan.gpu));
    }
    let within = |(a, b): (Instant, Instant)| a <= to && from <= b;
    let faults = || disturbances.faults.iter().filter(|(of, a, b, _)| *of == plan.gpu && within((*a, *b)));
    let alone = !disturbances.guests.iter().any(|(of, a, b)| *of == plan.gpu && within((*a, *b)));
    let sound = !faults().any(|(_, _, _, fault)| fault.blurs_energy());
    let away: Vec<f64> =
        disturbances.away.iter().filter(|span| within(**span)).map(|(a, b)| (*b - *a).as_secs_f64()).collect();
    let kept = away.iter().all(|s| s + plan.report_s + plan.pauses.map_or(0.0, |p| p.for_s) + 1.0 < plan.lease_s);
    let pressed = disturbances.pressed.iter().any(|span| within(*span));
    if alone && sound && kept && !pressed && !plan.silent {
        let used_j = record.energy_j.1 - record.energy_j.0;
        // A counter knows what was used while the daemon was away, and the job was there all the time.
        let blind = if plan.gpu == 1 { away.iter().map(|s| s + LOST_WITH_A_KILL_S).sum() } else { 0.0 };
        let lacks = MOST_W * (blind + 1.5) + ESTIMATED * used_j;
        let exceeds = MOST_W * 1.5 + ESTIMATED * used_j;
        if recorded_j < used_j - lacks || recorded_j > used_j + exceeds {
            laws.breach(format!(
                "job {name} on GPU {}: {used_j:.0} J were used under it, {recorded_j:.0} J are recorded on it",
                plan.gpu
            ));
        }
    }
    let meddled = disturbances.meddled.iter().any(|(of, a, b)| *of == plan.gpu && within((*a, *b)));
    let slowdown = record.took_s / record.base_s - 1.0;
    let undisturbed = !meddled && faults().count() == 0 && away.is_empty() && !pressed;
    if record.finished && undisturbed && slowdown > plan.max_slowdown + 0.02 && !record.warned {
        laws.breach(format!(
            "job {name} on GPU {} was slowed by {:.1} %, {:.1} % were allowed, and nothing warned",
            plan.gpu,
            100.0 * slowdown,
            100.0 * plan.max_slowdown
        ));
    }
}

/// How long reports took.
pub(crate) fn answers(laws: &mut Laws, records: &[Record], p99_ms: Option<f64>) -> f64 {
    let mut all: Vec<(Instant, Duration)> = records.iter().flat_map(|record| record.answers.iter().copied()).collect();
    all.sort_by_key(|(_, took)| *took);
    let Some(last) = all.len().checked_sub(1) else { return 0.0 };
    let in_ms = |took: Duration| took.as_secs_f64() * 1e3;
    let p99 = in_ms(all[last * 99 / 100].1);
    if let Some(bound) = p99_ms.filter(|bound| p99 > *bound) {
        let mut slow: Vec<_> = all.iter().filter(|(_, took)| in_ms(*took) > bound).collect();
        slow.sort();
        let slow: Vec<String> =
            slow.iter().map(|(at, took)| format!("{:.0} ms at {:.1} s", in_ms(*took), laws.seconds(*at))).collect();
        laws.breach(format!("one report in a hundred took more than {p99:.0} ms: {}", slow.join(", ")));
    }
    if all[last].1 > Duration::from_secs(8) {
        laws.breach(format!("a report took {:.1} s", all[last].1.as_secs_f64()));
    }
    p99
}

/// The state directory stays small, and its own.
pub(crate) fn state_directory(laws: &mut Laws, state: &std::path::Path, length: Duration) -> f64 {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bytes = 0;
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "log.txt" || name == "test.toml" {
            continue;
        }
        bytes += meta.len();
        let mode = meta.permissions().mode() & 0o777;
        if meta.is_file() && mode & 0o037 != 0 {
            laws.breach(format!("{name} in the state directory has mode {mode:o}"));
        }
    }
    let most = STATE_BYTES + GROWTH_PER_HOUR * length.as_secs_f64() / 3600.0;
    if bytes as f64 > most {
        laws.breach(format!("the state directory has {:.1} MB, more than {:.1}", bytes as f64 / 1e6, most / 1e6));
    }
    bytes as f64 / 1e6
}
