//! Runs with forecasts as issued, compared with the other policies.

use std::collections::BTreeMap;

use wattune_lab::study::{CaseResult, Figures, Frontier};

use super::{NO_WORSE, OVER, carbon, least, mean, most_over, of, time};

/// A line of the table.
pub(super) struct Line {
    fixed: f64,
    wattune: f64,
    clairvoyant: f64,
    worst_to_static: f64,
    to_carbon_zeus: f64,
    worst_to_carbon_zeus: f64,
    to_one_knob: f64,
    over: f64,
}

/// How much more a run saves than carbon-zeus at the same slowdown, its knob chosen afterwards for this very run.
fn to_frontier(ours: &CaseResult, theirs: &CaseResult) -> f64 {
    let at_equal = theirs.frontier.as_ref().and_then(|f| f.at(time(ours)));
    carbon(ours) - at_equal.map_or(f64::NAN, |f| f.carbon_reduction_pct)
}

/// The same with one knob for all starts, which together are as slow.
fn to_one_knob(runs: &[(&CaseResult, &CaseResult)]) -> f64 {
    let frontiers: Vec<_> = runs.iter().filter_map(|(_, theirs)| theirs.frontier.as_ref()).collect();
    let knobs = frontiers.first().map_or(0, |f| f.runs().len());
    let of_knob = |knob: usize| {
        let all: Vec<Figures> = frontiers.iter().map(|f| f.runs()[knob]).collect::<Option<_>>()?;
        Some(Figures {
            time_increase_pct: mean(all.iter().map(|f| f.time_increase_pct)),
            carbon_reduction_pct: mean(all.iter().map(|f| f.carbon_reduction_pct)),
            ..Figures::default()
        })
    };
    let frontier = Frontier::new((0..knobs).map(of_knob).collect());
    let at_equal = frontier.at(mean(runs.iter().map(|(ours, _)| time(ours))));
    let ours = mean(runs.iter().map(|(ours, _)| carbon(ours)));
    ours - at_equal.map_or(f64::NAN, |f| f.carbon_reduction_pct)
}

impl Line {
    pub(super) fn of(found: &[CaseResult], budget: f64) -> Self {
        let carbon_of = |policy| mean(of(found, policy, budget).map(carbon));
        let mut pairs: BTreeMap<(String, String), Vec<(&CaseResult, &CaseResult)>> = BTreeMap::new();
        for (ours, theirs) in of(found, "wattune", budget).zip(of(found, "carbon-zeus", budget)) {
            pairs.entry((ours.row.gpu.clone(), ours.row.workload.clone())).or_default().push((ours, theirs));
        }
        let means = |difference: fn(&[(&CaseResult, &CaseResult)]) -> f64| -> Vec<f64> {
            pairs.values().map(|runs| difference(runs)).collect()
        };
        let to_static = means(|runs| mean(runs.iter().map(|(ours, _)| ours.row.over_static.unwrap_or(f64::NAN))));
        let to_each = means(|runs| mean(runs.iter().map(|(ours, theirs)| to_frontier(ours, theirs))));
        let to_one_knob = means(to_one_knob);
        Self {
            fixed: carbon_of("static"),
            wattune: carbon_of("wattune"),
            clairvoyant: carbon_of("clairvoyant"),
            worst_to_static: least(to_static.into_iter()),
            to_carbon_zeus: mean(to_each.iter().copied()),
            worst_to_carbon_zeus: least(to_each.into_iter()),
            to_one_knob: mean(to_one_knob.iter().copied()),
            over: most_over(found, budget),
        }
    }

    fn captured(&self) -> f64 {
        100.0 * (self.wattune - self.fixed) / (self.clairvoyant - self.fixed)
    }

    pub(super) fn missed(&self, grid: &str, budget: f64) -> impl Iterator<Item = String> {
        let least = match grid {
            "CISO" if budget < 0.05 => 80.0,
            "DE" if budget < 0.05 => 60.0,
            _ => f64::NEG_INFINITY,
        };
        let checks = [
            (self.captured() >= least, format!("{:.1} % captured, at least {least}", self.captured())),
            (
                self.worst_to_static >= -NO_WORSE,
                format!("a pair is {:.3} points worse than static", -self.worst_to_static),
            ),
            (self.to_carbon_zeus > 0.0, format!("{:.3} points worse than carbon-zeus", -self.to_carbon_zeus)),
            (
                self.worst_to_carbon_zeus >= -NO_WORSE,
                format!("a pair is {:.3} points worse than carbon-zeus", -self.worst_to_carbon_zeus),
            ),
            (self.over <= OVER, format!("{:.3} points over the budget", self.over)),
        ];
        checks.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.3} | {:.3} | {:.3} | {:.1} | {:+.4} | {:+.4} | {:+.4} | {:+.4} | {:+.4}",
            self.fixed,
            self.wattune,
            self.clairvoyant,
            self.captured(),
            self.worst_to_static,
            self.to_carbon_zeus,
            self.worst_to_carbon_zeus,
            self.to_one_knob,
            self.over
        )
    }
}
