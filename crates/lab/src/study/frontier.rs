//! Frontier of a policy with a parameter (knob): the carbon reduction over the time increase, interpolated between runs
//! with different values of the knob.

use super::figures::Figures;

/// Runs of a policy with different values of its knob. In `best`, time increase and carbon reduction both rise strictly
/// from run to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontier {
    runs: Vec<Option<Figures>>,
    best: Vec<Figures>,
    truncated: bool,
}

impl Frontier {
    /// Keeps the runs that no other run surpasses in both carbon and time. `runs` has one run for each value of the
    /// knob; `None` if the run reaches a time without a value in the trace. If there is a `None`, nothing is known
    /// beyond the slowest of the other runs.
    pub fn new(runs: Vec<Option<Figures>>) -> Self {
        let mut by_time: Vec<Figures> = runs.iter().flatten().copied().collect();
        by_time.sort_by(|a, b| {
            let time = a.time_increase_pct.total_cmp(&b.time_increase_pct);
            time.then(b.carbon_reduction_pct.total_cmp(&a.carbon_reduction_pct))
        });
        let mut best: Vec<Figures> = Vec::new();
        for run in by_time {
            if best.last().is_none_or(|last| run.carbon_reduction_pct > last.carbon_reduction_pct) {
                best.push(run);
            }
        }
        let truncated = runs.iter().any(Option::is_none);
        Self { runs, best, truncated }
    }

    /// Returns all runs, in the order of the knob's values; `None` for those that reach a time without a value in the
    /// trace.
    pub fn runs(&self) -> &[Option<Figures>] {
        &self.runs
    }

    /// Returns the runs that no other run surpasses in both carbon and time, the fastest first.
    pub fn best(&self) -> &[Figures] {
        &self.best
    }

    /// Returns the figures at an increase of time in percent, interpolated between the neighbouring runs. For an
    /// increase below that of the fastest run, returns the figures of the fastest run; above that of the slowest, those
    /// of the slowest, or `None` if some runs reach a time without a value in the trace. `None` also if there is no
    /// run.
    pub fn at(&self, time_increase_pct: f64) -> Option<Figures> {
        let next = self.best.partition_point(|run| run.time_increase_pct < time_increase_pct);
        let (Some(before), Some(after)) = (next.checked_sub(1).map(|i| self.best[i]), self.best.get(next)) else {
            return self.best.get(next).or(self.best.last().filter(|_| !self.truncated)).copied();
        };
        let span = after.time_increase_pct - before.time_increase_pct;
        Some(before.towards(after, (time_increase_pct - before.time_increase_pct) / span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(time_increase_pct: f64, carbon_reduction_pct: f64) -> Figures {
        Figures { time_increase_pct, carbon_reduction_pct, ..Figures::default() }
    }

    #[test]
    fn the_frontier_is_interpolated_and_never_extrapolated() {
        let runs = [run(8.0, 9.0), run(0.0, 0.0), run(4.0, 10.0), run(2.0, 4.0), run(3.0, 2.0)];
        let truncated = Frontier::new(runs.into_iter().map(Some).chain([None]).collect());
        assert_eq!((truncated.at(3.0), truncated.at(20.0)), (Some(run(3.0, 7.0)), None), "slower runs are missing");
        let frontier = Frontier::new(runs.into_iter().map(Some).collect());
        let carbon = |time| frontier.at(time).map(|f| (f.time_increase_pct, f.carbon_reduction_pct));
        assert_eq!(carbon(3.0), Some((3.0, 7.0)), "not the dominated run");
        assert_eq!(carbon(1.0), Some((1.0, 2.0)));
        assert_eq!(carbon(20.0), Some((4.0, 10.0)), "slower costs carbon");
        assert_eq!(carbon(-1.0), Some((0.0, 0.0)));
        assert_eq!(carbon(4.0), Some((4.0, 10.0)));
        assert!(Frontier::new(Vec::new()).at(1.0).is_none());
    }
}
