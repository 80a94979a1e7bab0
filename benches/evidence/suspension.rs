//! Stopping a job without holding its GPU, against never stopping it and against perfect foresight.
//!
//! Everything is compared like for like: the same jobs from the same starts with the same forecasts, with and without the
//! permission to stop. The *gain* is the difference of the two carbon reductions, in points of the emissions at the largest
//! limit. The gain of perfect foresight is the same difference for clairvoyant. A start *loses* what its gain lies below
//! zero. The *forecast error* of a start is the mean absolute percentage error of the forecast that was planned with at
//! that start, over the time that the job may take.

use std::io::Write;

use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::domain::{Pausing, Slot, StopCosts};
use wattune_core::ledger::mean_intensity;
use wattune_core::units::{Seconds, Watts};
use wattune_lab::grid::{Foresight, VisibleGrid};
use wattune_lab::replay::Action;
use wattune_lab::study::CaseResult;

use super::{Bench, Failed, Ground, carbon, least, mean, of, on_each_grid, policies, study_pausing};

/// Twice the time.
const BUDGET: f64 = 1.0;
const HOURS: f64 = 24.0;
/// Power of a GPU that is held during a stop.
const HELD: f64 = 50.0;
/// Part of the gain of perfect foresight that has to be reached, in percent.
const PARTS: [(&str, f64); 2] = [("CISO", 88.0), ("DE", 75.0)];
/// Points that no start may lose whose forecast error is at most the median.
const MOST_LOST: f64 = 1.0;
/// Points that may be lost at 50 W: on the mean, and in any run.
const LOST_HELD: [f64; 2] = [0.02, 0.3];

/// Results of all runs on one grid, in the order of jobs and starts, in points.
struct Found {
    without: Vec<f64>,
    gains: Vec<f64>,
    stops: Vec<f64>,
    perfect: Vec<f64>,
    perfect_without: Vec<f64>,
    held: Vec<f64>,
    /// Forecast error of each start.
    errors: Vec<f64>,
}

/// Jobs of a day that may take two.
pub(super) fn table(bench: &Bench, out: &mut impl Write, missed: &mut Vec<String>) -> Result<(), Failed> {
    let (grids, count): (&[&'static str], i32) =
        if bench.quick { (&["CISO"], 6) } else { (&["CISO", "DE", "PJM", "SE", "CISO 96 h", "DE 96 h"], 24) };
    let grids = bench.among("suspension", grids)?;
    writeln!(out, "## Stopping without holding the GPU\n")?;
    writeln!(
        out,
        "Jobs of 24 h may take 100 % more time and may be stopped. A stop costs five minutes at running power; a"
    )?;
    writeln!(
        out,
        "stopped job draws 0 W. Means over 24 pairs and {count} starts, each a week and an hour after the one"
    )?;
    writeln!(out, "before; gains in points.\n")?;
    writeln!(
        out,
        "| grid | reduction without stops, % | gain | perfect foresight: reduction without stops, % | perfect foresight: \
         gain | share, % | stops per run | worst run on days of little error | worst run | worst start | gain at 50 W | \
         worst run at 50 W |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    let found = on_each_grid(bench, &grids, |ground| {
        let ground = Ground { jobs: bench.jobs(HOURS)?, grid: ground.grid.clone(), name: ground.name, hours: HOURS };
        run(&ground, count)
    })?;
    for (name, found) in grids.iter().zip(found) {
        let average = |values: &[f64]| mean(values.iter().copied());
        let part = 100.0 * average(&found.gains) / average(&found.perfect);
        let calm = least(found.calm().map(|run| found.gains[run]));
        let starts = found.errors.len();
        let of_start = |start: usize| mean((start..found.gains.len()).step_by(starts).map(|run| found.gains[run]));
        let held = [average(&found.held), least(found.held.iter().copied())];
        writeln!(
            out,
            "| {name} | {:.3} | {:+.3} | {:.3} | {:+.3} | {part:.1} | {:.2} | {calm:+.3} | {:+.3} | {:+.3} | {:+.4} | {:+.3} |",
            average(&found.without),
            average(&found.gains),
            average(&found.perfect_without),
            average(&found.perfect),
            average(&found.stops),
            least(found.gains.iter().copied()),
            least((0..starts).map(of_start)),
            held[0],
            held[1]
        )?;
        // Values that are no numbers are missed too.
        for (_, least) in PARTS.iter().filter(|(grid, _)| name.starts_with(grid)) {
            if part.is_nan() || part < *least {
                missed.push(format!("{name}, suspension: {part:.1} % of the gain of perfect foresight"));
            }
        }
        if calm.is_nan() || calm < -MOST_LOST {
            missed.push(format!("{name}, suspension: {calm:.3} points on a day of little forecast error"));
        }
        if !(held[0] >= -LOST_HELD[0] && held[1] >= -LOST_HELD[1]) {
            missed.push(format!("{name}, suspension at {HELD} W: mean {:.4}, worst {:.3} points", held[0], held[1]));
        }
    }
    writeln!(out)?;
    Ok(())
}

impl Found {
    /// Returns the runs from starts whose forecast error is at most the median.
    fn calm(&self) -> impl Iterator<Item = usize> {
        let mut sorted = self.errors.clone();
        sorted.sort_by(f64::total_cmp);
        let median = 0.5 * (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]);
        let starts = self.errors.len();
        (0..self.gains.len()).filter(move |run| self.errors[run % starts] <= median)
    }
}

fn run(ground: &Ground, count: i32) -> Result<Found, Failed> {
    let first: DateTime<Utc> = "2021-07-06T00:00:00Z".parse()?;
    let starts: Vec<_> = (0..count).map(|i| first + TimeDelta::hours(169) * i).collect();
    let costs = StopCosts::new(Seconds::new(120.0), Seconds::new(180.0)).map_err(|e| e.why)?;
    let policies = policies(&["wattune", "clairvoyant"])?;
    let study = |idle: Option<f64>| {
        let pausing: Option<Pausing> = idle.map(|idle| costs.pausing(Watts::new(idle)));
        study_pausing(ground, Foresight::AsIssued, &starts, &[BUDGET], &policies, pausing)
    };
    let [without, with, held] = [study(None)?, study(Some(0.0))?, study(Some(HELD))?];
    let reductions = |found: &[CaseResult], policy| -> Vec<f64> { of(found, policy, BUDGET).map(carbon).collect() };
    let less = |a: Vec<f64>, b: &[f64]| -> Vec<f64> { a.into_iter().zip(b).map(|(a, b)| a - b).collect() };
    let base = reductions(&without, "wattune");
    let perfect_without = reductions(&without, "clairvoyant");
    Ok(Found {
        gains: less(reductions(&with, "wattune"), &base),
        held: less(reductions(&held, "wattune"), &base),
        perfect: less(reductions(&with, "clairvoyant"), &perfect_without),
        stops: of(&with, "wattune", BUDGET).map(stops).collect(),
        errors: starts.iter().map(|start| error_from(ground, *start)).collect(),
        without: base,
        perfect_without,
    })
}

#[expect(clippy::cast_precision_loss, reason = "a few stops")]
fn stops(found: &CaseResult) -> f64 {
    let legs = found.replayed.as_ref().map_or(&[][..], |replayed| &replayed.legs);
    legs.iter().filter(|leg| leg.action == Action::Pause).count() as f64
}

/// Mean absolute percentage error of the forecast at a start, over the time that the job may take.
fn error_from(ground: &Ground, start: DateTime<Utc>) -> f64 {
    let allowed = Seconds::new(HOURS * 3600.0 * (1.0 + BUDGET));
    let expected = VisibleGrid::new(&ground.grid, Foresight::AsIssued, allowed).expected(start);
    let until = start + allowed.to_delta();
    let error = |(slot, expected): (Slot, f64)| {
        let actual = mean_intensity(&ground.grid.actual, &slot).map_or(f64::NAN, |actual| actual.get());
        100.0 * (expected - actual).abs() / actual
    };
    let ahead = expected.iter().filter(|s| s.slot.start() >= start && s.slot.end() <= until);
    mean(ahead.map(|s| error((s.slot, s.intensity.get()))))
}
