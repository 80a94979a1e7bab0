//! What the runs show, and the bounds that they are held to.

use std::cmp::Ordering;
use std::io::Write as _;
use std::path::Path;

use anyhow::bail;

use super::{Case, Framework, Outcome, curve, static_saving};

/// Runs that count.
const COUNTED: [usize; 3] = [0, 1, 4];

/// Points above the budget that a run may have, in 99 % of the runs of a duration: by minutes at the least.
const BOUNDS: [(f64, f64); 2] = [(30.0, 0.1), (0.0, 0.5)];
/// Points above the budget that no run may have.
const NEVER: f64 = 2.0;

/// True slowdown against the budget, by duration and by what else the cases differ in.
pub(crate) fn promises(found: &[(Case, Vec<Outcome>)]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut failed = false;
    let mut durations: Vec<f64> = found.iter().map(|(case, _)| case.duration.get() / 60.0).collect();
    durations.sort_by(f64::total_cmp);
    durations.dedup();
    writeln!(
        out,
        "| minutes | runs | over | within % | p99 over | worst over | over, no warning | reported % | reported off, p99 | saved % |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for minutes in durations {
        let bound = BOUNDS.iter().find(|b| minutes >= b.0).map_or(0.5, |b| b.1);
        let (mut over, mut off) = (Vec::new(), Vec::new());
        let (mut unwarned, mut saved) = (0, 0.0);
        for (case, outcomes) in found.iter().filter(|(case, _)| case.duration.get() / 60.0 == minutes) {
            for outcome in outcomes.iter().filter(|o| COUNTED.contains(&o.run)) {
                let points = 100.0 * (outcome.slowdown - case.budget);
                if points > bound && !outcome.warned {
                    unwarned += 1;
                }
                if std::env::var_os("SHOW").is_some() && points > bound {
                    writeln!(out, "  {points:+.2} {case:?} {outcome:?}")?;
                }
                off.extend(outcome.reported.map(|reported| 100.0 * (reported - outcome.slowdown).abs()));
                saved += 100.0 * outcome.saved;
                over.push(points);
            }
        }
        over.sort_by(f64::total_cmp);
        off.sort_by(f64::total_cmp);
        let within = over.iter().filter(|points| **points <= bound).count() as f64 / over.len() as f64;
        let at = |part: f64| over[((over.len() - 1) as f64 * part).round() as usize];
        let worst = at(1.0);
        writeln!(
            out,
            "| {minutes} | {} | {} | {:.2} | {:+.3} | {worst:+.3} | {unwarned} | {:.1} | {:.3} | {:.2} |",
            over.len(),
            over.iter().filter(|points| **points > bound).count(),
            100.0 * within,
            at(0.99),
            100.0 * off.len() as f64 / over.len() as f64,
            off.get(off.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(f64::NAN),
            saved / over.len() as f64,
        )?;
        // Written so that a value that is no number fails too.
        failed |= !(within >= 0.99 && worst <= NEVER);
    }
    if failed {
        bail!("a promise about slowdown is not kept as often or as nearly as it should be");
    }
    Ok(())
}

/// Whether a value is a number and at most `bound`.
fn within(value: f64, bound: f64) -> bool {
    matches!(value.partial_cmp(&bound), Some(Ordering::Less | Ordering::Equal))
}

/// Points above the budget that a job that reports as frameworks do may have.
const RARE_OVER: f64 = 0.1;
/// Points of energy by which it may save less than with a report every second.
const RARE_LESS: f64 = 0.3;

/// Jobs that report as frameworks do, each beside the same job with a report every second.
pub(crate) fn rare(found: &[(Case, Vec<Outcome>)]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut failed = false;
    let mut less = Vec::new();
    writeln!(out, "| workload | seed | run | slowdown % | saved % | each second: slowdown % | saved % |")?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    let mut seeds: Vec<u64> = found.iter().map(|(case, _)| case.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    for seed in seeds {
        let of = |framework| found.iter().find(|(case, _)| case.seed == seed && case.framework == Some(framework));
        let (Some((case, rare)), Some((_, exact))) = (of(Framework::Lumps), of(Framework::Exact)) else { continue };
        for (rare, exact) in rare.iter().zip(exact) {
            let pct = |part: f64| 100.0 * part;
            writeln!(
                out,
                "| {} | {seed} | {} | {:.3} | {:.2} | {:.3} | {:.2} |",
                case.workload,
                rare.run + 1,
                pct(rare.slowdown),
                pct(rare.saved),
                pct(exact.slowdown),
                pct(exact.saved)
            )?;
            less.push(pct(exact.saved - rare.saved));
            failed |= !within(pct(rare.slowdown - case.budget), RARE_OVER);
        }
    }
    let mean = less.iter().sum::<f64>() / less.len() as f64;
    let most = less.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    writeln!(out, "saved less than with a report every second: {mean:.3} points in the mean, {most:.3} at most")?;
    if failed || !within(mean, RARE_LESS) {
        bail!("rare reports cost more slowdown or more of the saving than they may");
    }
    Ok(())
}

/// Means over seeds of what the third run saves, against what the constant mix allows.
pub(crate) fn savings(traces: &Path, found: &[(Case, Vec<Outcome>)]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let key = |case: &Case| (case.workload.clone(), case.budget, case.noise, case.every.get());
    let mut keys: Vec<_> = found.iter().map(|(case, _)| key(case)).collect();
    keys.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    keys.dedup();
    let mut failed = false;
    writeln!(
        out,
        "| workload | budget % | noise % | reports s | static % | runs 1 to 5: saved % | third of static | slowest |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for wanted in keys {
        let (workload, budget, noise, every) = wanted.clone();
        let allowed = static_saving(&curve(traces, &workload)?, budget).unwrap_or(0.0);
        let of_key: Vec<_> = found.iter().filter(|(case, _)| key(case) == wanted).map(|(_, o)| o).collect();
        let mean = |run: usize| of_key.iter().map(|o| o[run].saved).sum::<f64>() / of_key.len() as f64;
        let slowest = of_key.iter().flat_map(|o| o.iter()).map(|o| o.slowdown).fold(0.0, f64::max);
        let part = mean(2) / allowed;
        let runs: Vec<String> = (0..5).map(|run| format!("{:.1}", 100.0 * mean(run))).collect();
        writeln!(
            out,
            "| {workload} | {:.0} | {:.0} | {every} | {:.1} | {} | {part:.2} | {:.2} |",
            100.0 * budget,
            100.0 * noise,
            100.0 * allowed,
            runs.join(" "),
            100.0 * slowest
        )?;
        // Written so that a value that is no number fails too.
        failed |= !matches!(part.partial_cmp(&0.5), Some(Ordering::Greater | Ordering::Equal));
    }
    if failed {
        bail!("a third run saves less than half of what its static mix allows");
    }
    Ok(())
}
