//! Permission to pause, against the same without it and against a bound.

use std::io::Write;

use wattune_core::domain::{Pausing, Slot};
use wattune_lab::grid::Foresight;
use wattune_lab::study::CaseResult;

use super::{Bench, Failed, Ground, bound, carbon, mean, of, policies, starts, study_pausing};

const BUDGET: f64 = 0.25;
/// What part of the bound's additional reduction has to be reached, in percent.
const PART: f64 = 95.0;
/// Percent by which rounding may lift a reduction over the bound.
const ROUNDING: f64 = 1e-6;

/// One job from one start on: percent less carbon.
struct Case {
    name: String,
    without: f64,
    again: f64,
    once: f64,
    /// With forecasts as issued, without and with permission.
    issued: [f64; 2],
    bound: f64,
}

/// A quarter more time and permission to pause, against the same without it.
pub(super) fn table(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    let (grids, places): (&[&'static str], &[usize]) =
        if bench.quick { (&["DE"], &[7]) } else { (&["CISO", "DE"], &[1, 4, 7, 10]) };
    let grids = bench.among("pausing", grids)?;
    writeln!(out, "## Pausing\n")?;
    writeln!(
        out,
        "Jobs may take 25 % more time and may pause, at 50 W of idle power; running and pausing last at least"
    )?;
    writeln!(
        out,
        "half an hour each, a checkpoint two minutes. The values are the additional carbon reduction of the"
    )?;
    writeln!(out, "permission to pause, in points: means over 24 pairs and {} starts.\n", places.len())?;
    writeln!(
        out,
        "| grid | bound | clairvoyant | wattune, perfect forecasts | share of the bound, % | wattune, forecasts as issued |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for name in grids {
        let cases = cases(&bench.ground(name)?, places)?;
        let more = |value: fn(&Case) -> f64| mean(cases.iter().map(|case| value(case) - case.without));
        let (bound, once, again) = (more(|c| c.bound), more(|c| c.once), more(|c| c.again));
        let part = 100.0 * again / bound;
        let issued = mean(cases.iter().map(|case| case.issued[1] - case.issued[0]));
        writeln!(out, "| {name} | {bound:.4} | {once:.4} | {again:.4} | {part:.1} | {issued:.4} |")?;
        // A value that is no number is missed too.
        if part.is_nan() || part < PART {
            missed.push(format!("{name}, pausing: {part:.1} % of the bound's additional reduction"));
        }
        for case in cases {
            if !(case.once <= case.bound + ROUNDING && case.again <= case.bound + ROUNDING) {
                missed.push(format!("{}, pausing: more saved than the bound allows", case.name));
            }
            if case.again > case.once + ROUNDING {
                let more = case.again - case.once;
                missed.push(format!("{}, pausing: planned anew {more:.4} points better than clairvoyant", case.name));
            }
        }
    }
    writeln!(out)?;
    Ok(())
}

fn cases(ground: &Ground, places: &[usize]) -> Result<Vec<Case>, Failed> {
    let all = starts(ground, 0)?;
    let starts: Vec<_> = places.iter().map(|place| all[*place]).collect();
    let costs = Pausing::default_for(1);
    let policies = policies(&["wattune", "clairvoyant"])?;
    let run = |foresight, pausing| study_pausing(ground, foresight, &starts, &[BUDGET], &policies, pausing);
    let with = run(Foresight::Perfect, Some(costs))?;
    let without = run(Foresight::Perfect, None)?;
    let issued = run(Foresight::AsIssued, Some(costs))?;
    let issued_without = run(Foresight::AsIssued, None)?;
    let rows = of(&with, "wattune", BUDGET).zip(of(&with, "clairvoyant", BUDGET));
    let rows = rows.zip(of(&without, "clairvoyant", BUDGET)).zip(of(&issued, "wattune", BUDGET));
    let rows = rows.zip(of(&issued_without, "wattune", BUDGET));
    let jobs = ground.jobs.iter().flat_map(|job| starts.iter().map(move |_| job));
    jobs.zip(rows)
        .map(|(job, ((((again, once), without), issued), issued_without))| {
            let row = &again.row;
            let name = format!("{} {}/{} on {} from {}", row.gpu, row.workload, row.batch_size, row.grid, row.start);
            let end = row.start + (job.time_at_max() * (1.0 + BUDGET)).to_delta();
            let span = Slot::new(row.start, end).ok_or("the job has no length")?;
            let least = bound::least_carbon(job, &costs, &ground.grid.actual, span);
            let least = least.ok_or_else(|| format!("{name}: no bound"))?;
            let at_max = |found: &CaseResult| Some(found.replayed.as_ref()?.against_max.carbon_at_reference);
            let at_max = at_max(once).ok_or("a run without its replay")?;
            let bound = 100.0 * (1.0 - least / at_max);
            let [without, again, once] = [without, again, once].map(carbon);
            let issued = [issued_without, issued].map(carbon);
            Ok(Case { name, without, again, once, issued, bound })
        })
        .collect()
}
