//! The most that the power limits of all boards of a node may add up to, over time (`planning.md` §3).
//!
//! A cap is made of rules: a constant, windows of the week, spans of time, and demand-response events. Where several
//! speak for one moment, the strictest counts. All times are UTC.

mod event;
mod rule;

use chrono::{DateTime, TimeDelta, Utc, Weekday};
use serde::{Deserialize, Serialize};

pub use event::{DemandResponse, Rebound, check_level};
use rule::Rule;

use super::{EventId, Slot};
use crate::units::Watts;

/// How high a cap is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// In watts.
    Watts(Watts),
    /// As a part of the baseline, which is the sum of the largest limits that the node's boards take: 0.7 is 70 %.
    Share(f64),
}

impl Level {
    /// In watts, for a node with this baseline.
    pub fn of(self, baseline: Watts) -> Watts {
        match self {
            Self::Watts(watts) => watts,
            Self::Share(share) => baseline * share,
        }
    }
}

/// A window of the week, in UTC. It may pass midnight; then `days` are those on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The days on which it begins; none means every day.
    pub days: Vec<Weekday>,
    /// When it begins, in seconds since midnight, below 86,400.
    pub from: u32,
    /// When it ends, likewise. At or before `from` it ends on the next day; equal to it, it lasts a whole day.
    pub to: u32,
    /// The cap within it.
    pub level: Level,
}

/// What is set once and holds until it is set otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StandingCap {
    /// At all times.
    pub constant: Option<Level>,
    /// Week by week.
    pub windows: Vec<Window>,
    /// Once.
    pub spans: Vec<(Slot, Level)>,
}

impl StandingCap {
    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        self.constant.is_none() && self.windows.is_empty() && self.spans.is_empty()
    }
}

/// Which rule makes the cap what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSource {
    /// The constant.
    Constant,
    /// A window of the week.
    Window,
    /// A span of the settings.
    Span,
    /// A demand-response event, its ramps included.
    Event(EventId),
    /// What an event leaves behind: limits may not return to more than this yet.
    Rebound(EventId),
}

impl std::fmt::Display for CapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant => f.write_str("the constant cap"),
            Self::Window => f.write_str("a weekly window"),
            Self::Span => f.write_str("a span of the settings"),
            Self::Event(id) => write!(f, "demand-response event {id}"),
            Self::Rebound(id) => write!(f, "the rebound limit of demand-response event {id}"),
        }
    }
}

/// The cap over time, as it is known at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapSchedule {
    rules: Vec<(CapSource, Rule)>,
}

/// Windows repeat after this.
const WEEK: TimeDelta = TimeDelta::days(7);

impl CapSchedule {
    /// What holds on a node whose boards' largest limits add up to `baseline`. Events that have not been announced by
    /// `now`, and what is over by then, are left out.
    pub fn new(standing: &StandingCap, events: &[DemandResponse], baseline: Watts, now: DateTime<Utc>) -> Self {
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

    /// Whether there is no cap at any time.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The cap at a moment; `None` where there is none.
    pub fn cap_at(&self, t: DateTime<Utc>) -> Option<Watts> {
        self.binding_at(t).map(|(cap, _)| cap)
    }

    /// The cap at a moment and the rule that makes it; of equal ones the first.
    pub fn binding_at(&self, t: DateTime<Utc>) -> Option<(Watts, &CapSource)> {
        let caps = self.rules.iter().filter_map(|(source, rule)| Some((rule.at(t)?, source)));
        caps.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The strictest cap within a slot: what may be used through all of it.
    pub fn over(&self, slot: &Slot) -> Option<Watts> {
        self.rules.iter().filter_map(|(_, rule)| rule.over(slot)).reduce(Watts::min)
    }

    /// The moments strictly between `from` and `to` at which a rule begins, bends or ends, in order, each once.
    /// Between two of them the cap is constant or changes steadily. Costs a few steps per day of the span.
    pub fn boundaries(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let mut all: Vec<DateTime<Utc>> = self.rules.iter().flat_map(|(_, rule)| rule.boundaries(from, to)).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The first moment after `t` at which the cap jumps, begins to change or stops changing; `None` if it stays as it
    /// is.
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

/// A moment, or the end of time.
fn later(t: DateTime<Utc>, by: TimeDelta) -> DateTime<Utc> {
    t.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests;
