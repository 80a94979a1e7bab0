//! Choosing a start: how much of what perfect foresight saves is saved with forecasts as issued.

use std::io::Write;

use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::units::Seconds;
use wattune_lab::grid::{Foresight, VisibleGrid};
use wattune_lab::waiting::{START_POLICIES, WaitingMean, WaitingRow, WaitingStudy, calibration, waiting_means};

use super::{Bench, Failed, mean};

const DURATIONS_H: [f64; 4] = [1.0, 4.0, 8.0, 24.0];
const FREEDOMS_H: [f64; 3] = [12.0, 24.0, 48.0];
/// Durations whose means are compared with perfect foresight, in hours.
const SHORT_H: f64 = 8.0;
/// Parts of perfect foresight's reduction that are to be caught within 24 and within 48 hours, in percent.
const LEAST_CAUGHT: [(&str, f64, f64); 4] =
    [("CISO", 95.0, 92.0), ("DE", 88.0, 85.0), ("PJM", 60.0, 50.0), ("SE", 60.0, 50.0)];
/// Largest mean loss of a duration and freedom, in percent.
const MOST_LOST: f64 = 0.05;
/// Largest part of submissions that lose more than 2 %, in percent.
const MOST_LOSING: f64 = 8.0;
/// Largest difference of stated and observed probability, in points.
const MOST_OFF: f64 = 5.0;

/// Jobs that may wait, submitted every third hour from July to 24 December 2021.
pub(super) fn table(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    let all: &[&'static str] =
        if bench.quick { &["DE 96 h"] } else { &["CISO 96 h", "DE 96 h", "PJM 96 h", "SE 96 h"] };
    let grids = bench.among("waiting", all)?;
    let every = if bench.quick { 27 } else { 3 };
    let studied: Vec<Vec<WaitingRow>> = std::thread::scope(|scope| {
        let running: Vec<_> = grids.iter().map(|name| scope.spawn(move || rows(bench, name, every))).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        ended.collect::<Result<_, Failed>>()
    })?;
    writeln!(out, "## Choosing a start\n")?;
    writeln!(
        out,
        "Jobs of 1, 4, 8 and 24 hours may wait for 12, 24 or 48 hours. A job is submitted every {every} hours"
    )?;
    writeln!(out, "from 1 July to 24 December 2021. All values are mean reductions of carbon in percent,")?;
    writeln!(out, "relative to starting at once.\n")?;
    by_policy(out, missed, &grids, &studied)?;
    by_duration(out, missed, &grids, &studied)?;
    stated(out, missed, &studied.concat())
}

fn rows(bench: &Bench, name: &str, every: i64) -> Result<Vec<WaitingRow>, Failed> {
    let grid = bench.grid(name)?;
    let seconds = |hours: &f64| Seconds::new(hours * 3600.0);
    let (durations, freedoms) = (DURATIONS_H.map(|h| seconds(&h)), FREEDOMS_H.map(|h| seconds(&h)));
    let visible = VisibleGrid::new(&grid, Foresight::AsIssued, seconds(&72.0));
    let (from, until): (DateTime<Utc>, DateTime<Utc>) =
        ("2021-07-01T00:00:00Z".parse()?, "2021-12-25T00:00:00Z".parse()?);
    let submissions: Vec<DateTime<Utc>> = std::iter::successors(Some(from), |at| Some(*at + TimeDelta::hours(every)))
        .take_while(|at| *at < until)
        .collect();
    let study = WaitingStudy {
        grid: &visible,
        durations: &durations,
        freedoms: &freedoms,
        submissions: &submissions,
        policies: &START_POLICIES,
    };
    Ok(study.run(|| ()))
}

/// Returns the mean over the means of jobs of up to 8 hours.
fn of_short(means: &[WaitingMean], policy: &str, within_h: Option<f64>, value: fn(&WaitingMean) -> f64) -> f64 {
    let fits = |m: &&WaitingMean| {
        m.policy == policy && m.duration_h <= SHORT_H && within_h.is_none_or(|within| m.within_h == within)
    };
    mean(means.iter().filter(fits).map(value))
}

fn by_policy(
    out: &mut impl Write,
    missed: &mut Vec<String>,
    grids: &[&str],
    studied: &[Vec<WaitingRow>],
) -> Result<(), Failed> {
    writeln!(out, "By policy, jobs of 1, 4 and 8 hours together:\n")?;
    let names: Vec<&str> = START_POLICIES.iter().map(|p| p.name).filter(|name| *name != "now").collect();
    writeln!(out, "| grid | may wait, h | {} | share of clairvoyant, % | share in grams, % |", names.join(" | "))?;
    writeln!(out, "|---|---|{}---|---|", "---|".repeat(names.len()))?;
    for (grid, rows) in grids.iter().zip(studied) {
        let means = waiting_means(rows);
        for within in FREEDOMS_H {
            let of = |policy| of_short(&means, policy, Some(within), |m| m.carbon_reduction_pct);
            let shown: Vec<String> = names.iter().map(|name| format!("{:.2}", of(name))).collect();
            let caught = 100.0 * of("when") / of("clairvoyant");
            let total = total(rows, within);
            writeln!(out, "| {grid} | {within} | {} | {caught:.1} | {total:.1} |", shown.join(" | "))?;
            let bound = LEAST_CAUGHT.iter().find(|(name, ..)| grid.starts_with(name));
            let least = bound.map_or(0.0, |(_, day, two)| match within {
                24.0 => *day,
                48.0 => *two,
                _ => 0.0,
            });
            if caught.is_nan() || caught < least {
                missed.push(format!("{grid}, within {within} h: {caught:.1} % of perfect foresight, not {least} %"));
            }
        }
        let ours = of_short(&means, "when", None, |m| m.carbon_reduction_pct);
        for name in names.iter().filter(|name| !["when", "clairvoyant"].contains(name)) {
            let theirs = of_short(&means, name, None, |m| m.carbon_reduction_pct);
            if theirs.is_nan() || theirs > ours {
                missed.push(format!("{grid}: {name} saves {theirs:.2} %, more than {ours:.2} %"));
            }
        }
    }
    writeln!(
        out,
        "\n*Share of clairvoyant* is the mean reduction of *when*, divided by that of clairvoyant. *Share in grams* weights"
    )?;
    writeln!(
        out,
        "each submission by its emissions: the grams that *when* saves, divided by those that clairvoyant saves.\n"
    )?;
    Ok(())
}

/// Returns the grams saved by when, in percent of those saved by clairvoyant. Each duration counts alike.
fn total(rows: &[WaitingRow], within_h: f64) -> f64 {
    let of = |duration_h: f64, value: fn(&WaitingRow) -> f64| -> f64 {
        let fits = |r: &&WaitingRow| r.policy == "when" && r.within_h == within_h && r.duration_h == duration_h;
        let weigh = |r: &WaitingRow| r.at_once_g_per_kwh * value(r);
        let (sum, level) =
            rows.iter().filter(fits).fold((0.0, 0.0), |(sum, level), r| (sum + weigh(r), level + r.at_once_g_per_kwh));
        sum / level
    };
    let short = || DURATIONS_H.into_iter().filter(|h| *h <= SHORT_H);
    let ours: f64 = short().map(|h| of(h, |r| r.carbon_reduction_pct)).sum();
    let best: f64 = short().map(|h| of(h, |r| r.best_reduction_pct)).sum();
    100.0 * ours / best
}

fn by_duration(
    out: &mut impl Write,
    missed: &mut Vec<String>,
    grids: &[&str],
    studied: &[Vec<WaitingRow>],
) -> Result<(), Failed> {
    writeln!(
        out,
        "*when* by duration; the last column has the share of submissions that lose more than 2 % relative to starting at \
         once:\n"
    )?;
    writeln!(
        out,
        "| grid | duration, h | may wait 12 h | may wait 24 h | may wait 48 h | clairvoyant: 12, 24, 48 h | lose more than \
         2 %, % |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for (grid, rows) in grids.iter().zip(studied) {
        let means = waiting_means(rows);
        let own: Vec<&WaitingMean> = means.iter().filter(|m| m.policy == "when").collect();
        for duration in DURATIONS_H {
            let of = |value: fn(&WaitingMean) -> f64| -> Vec<f64> {
                own.iter().filter(|m| m.duration_h == duration).map(|m| value(m)).collect()
            };
            let reductions = of(|m| m.carbon_reduction_pct);
            let best = of(|m| m.best_reduction_pct);
            let shown: Vec<String> = reductions.iter().map(|r| format!("{r:.2}")).collect();
            let best: Vec<String> = best.iter().map(|r| format!("{r:.2}")).collect();
            let losing = mean(of(|m| m.losing_over_2_pct).into_iter());
            writeln!(out, "| {grid} | {duration} | {} | {} | {losing:.1} |", shown.join(" | "), best.join(", "))?;
            for (reduction, within) in reductions.iter().zip(FREEDOMS_H) {
                if reduction.is_nan() || *reduction < -MOST_LOST {
                    missed.push(format!("{grid}, {duration} h within {within} h: the mean loses {:.2} %", -reduction));
                }
            }
        }
        let losing = mean(own.iter().map(|m| m.losing_over_2_pct));
        if losing.is_nan() || losing > MOST_LOSING {
            missed.push(format!("{grid}: {losing:.1} % of the submissions lose more than 2 %"));
        }
    }
    writeln!(out)?;
    Ok(())
}

fn stated(out: &mut impl Write, missed: &mut Vec<String>, rows: &[WaitingRow]) -> Result<(), Failed> {
    writeln!(
        out,
        "Probability that waiting for the window with the least expected emissions emits more than starting at once: as"
    )?;
    writeln!(
        out,
        "stated at each submission (also if the job then starts at once), and as observed; all grids together. The last two"
    )?;
    writeln!(
        out,
        "columns are about the jobs that waited. Their starts were chosen anew meanwhile, so they lost less often.\n"
    )?;
    writeln!(
        out,
        "| stated probability, % | submissions | stated, mean in % | observed, % | jobs that waited | of these lost, % |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for bin in calibration(rows) {
        let (Some(stated), Some(observed)) = (bin.stated, bin.observed) else { continue };
        let (stated, observed) = (100.0 * stated, 100.0 * observed);
        let bounds = format!("{:.0} to {:.0}", 100.0 * bin.from, 100.0 * bin.to);
        let lost = bin.lost_waiting.map_or_else(|| "-".into(), |lost| format!("{:.1}", 100.0 * lost));
        let (submissions, waited) = (bin.submissions, bin.waited);
        writeln!(out, "| {bounds} | {submissions} | {stated:.1} | {observed:.1} | {waited} | {lost} |")?;
        if (stated - observed).abs() > MOST_OFF {
            missed.push(format!("probability of losing of {bounds} %: {observed:.1} % observed, {stated:.1} % stated"));
        }
    }
    writeln!(out)?;
    Ok(())
}
