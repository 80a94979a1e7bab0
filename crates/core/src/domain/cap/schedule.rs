//! The power cap of a node over time: at each time the strictest of its rules.

use chrono::{DateTime, TimeDelta, Utc};

use super::configured::{CapSource, ConfiguredCap, Level, Window};
use super::event::DemandResponse;
use super::rule::Rule;
use crate::domain::Slot;
use crate::time::later;
use crate::units::Watts;

/// Power cap of a node over time, from the rules and events that are known when it is created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapSchedule {
    rules: Vec<(CapSource, Rule)>,
}

/// Period after which weekly windows repeat.
const WEEK: TimeDelta = TimeDelta::days(7);

impl CapSchedule {
    /// Creates the schedule of a node with a `baseline`, the sum of its GPUs' maximum limits. Omits events that are not
    /// announced by `now` and rules that have ended.
    pub fn new(standing: &ConfiguredCap, events: &[DemandResponse], baseline: Watts, now: DateTime<Utc>) -> Self {
        let constant = standing.constant.map(|level| (CapSource::Constant, Rule::Always(level.of(baseline))));
        let window = |w: &Window| (CapSource::Window, Rule::weekly(&w.days, w.from, w.to, w.level.of(baseline)));
        let span = |(slot, level): &(Slot, Level)| (CapSource::Span, Rule::flat(slot, level.of(baseline)));
        let known = events.iter().filter(|e| e.is_announced(now));
        let rules = constant
            .into_iter()
            .chain(standing.windows.iter().map(window))
            .chain(standing.spans.iter().map(span))
            .chain(known.flat_map(|e| e.rules(baseline)))
            .filter(|(_, rule)| !rule.is_over(now));
        Self { rules: rules.collect() }
    }

    /// Returns true if there is no cap at any time.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the cap at a time; `None` without a cap.
    pub fn cap_at(&self, t: DateTime<Utc>) -> Option<Watts> {
        self.binding_at(t).map(|(cap, _)| cap)
    }

    /// Returns the cap at a time (first) and the rule that sets it (second); if several rules set the same cap, the
    /// first of them.
    pub fn binding_at(&self, t: DateTime<Utc>) -> Option<(Watts, &CapSource)> {
        let caps = self.rules.iter().filter_map(|(source, rule)| Some((rule.at(t)?, source)));
        caps.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Returns the strictest cap within a slot; `None` without a cap.
    pub fn over(&self, slot: &Slot) -> Option<Watts> {
        self.rules.iter().filter_map(|(_, rule)| rule.over(slot)).reduce(Watts::min)
    }

    /// Returns the times strictly between `from` and `to` at which a rule starts, changes its slope or ends, in order
    /// and without duplicates. Between successive times, each rule is constant or linear. The computing time grows with
    /// the number of days from `from` to `to`.
    pub fn boundaries(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let mut all: Vec<DateTime<Utc>> = self.rules.iter().flat_map(|(_, rule)| rule.boundaries(from, to)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns the first time after `t` at which the cap jumps, or at which a linear change of the cap begins or ends;
    /// `None` if the cap stays constant.
    pub fn next_change(&self, t: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let instant = TimeDelta::milliseconds(1);
        let near = self.boundaries(t, later(t, WEEK + TimeDelta::days(1)));
        let far = self.rules.iter().flat_map(|(_, rule)| rule.knots()).filter(|at| *at > t);
        let mut candidates: Vec<DateTime<Utc>> = near.into_iter().chain(far).collect();
        candidates.sort();
        candidates.dedup();
        candidates.into_iter().find(|at| {
            let [before, now, after] = [*at - instant, *at, later(*at, instant)].map(|t| self.cap_at(t));
            before != now || now != after
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
