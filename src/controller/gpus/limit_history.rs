//! Limits of a GPU over the last day, in memory alone: for display, not for the ledger.

use std::collections::VecDeque;

use chrono::{DateTime, TimeDelta, Utc};

use crate::controller::view::LimitSpanView;
use wattune_core::domain::{JobId, PowerLimit};
use wattune_core::units::{Millijoules, Seconds, Watts};

/// Length of the history.
const KEPT: TimeDelta = TimeDelta::hours(24);
/// Maximum length of a span (time in which the limit stays the same), over which the GPU's power is averaged.
const LONGEST: TimeDelta = TimeDelta::minutes(5);
/// Maximum time between two observations of one span (time in which the limit stays the same); a longer time leaves a
/// hole in the history.
const UNSEEN: TimeDelta = TimeDelta::minutes(2);
/// Maximum number of spans (times in which the limit stays the same), however often the limit changes: five times as
/// many as a day without changes has.
const MOST: usize = 1440;

/// State that stays the same during a span of the history.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitState {
    /// Limit in force, as reported.
    pub(super) limit: Option<PowerLimit>,
    /// Wanted limit.
    pub(super) wanted: Option<PowerLimit>,
    /// Job that controlled the GPU.
    pub(super) job: Option<JobId>,
}

/// Time between observations during which the state stayed the same.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    start: DateTime<Utc>,
    end: DateTime<Utc>,
    state: LimitState,
    /// Energy used during the span; `None` if the GPU reports neither energy nor power.
    energy: Option<Millijoules>,
}

/// Limits of a GPU over the last day, oldest first, without overlaps.
#[derive(Debug, Default)]
pub(crate) struct LimitHistory {
    spans: VecDeque<Span>,
    /// Reading of the GPU's energy meter at the last observation; `None` if the GPU was not metered then.
    metered: Option<Millijoules>,
}

impl LimitHistory {
    /// Records an observation; its state counts for the time since the previous observation. `metered` is the reading
    /// of the GPU's energy meter.
    pub(super) fn record(&mut self, now: DateTime<Utc>, state: LimitState, metered: Option<Millijoules>) {
        // After the clock was set back, spans of the repeated time are dropped.
        while self.spans.back().is_some_and(|last| last.start >= now) {
            self.spans.pop_back();
        }
        if let Some(last) = self.spans.back_mut().filter(|last| last.end > now) {
            // The meter was not read at the span's new end.
            (last.end, last.energy) = (now, None);
        }
        let drawn = metered.zip(self.metered).and_then(|(now, then)| now.checked_since(then));
        self.metered = metered;
        match self.spans.back_mut() {
            Some(last) if last.end < now && now - last.end <= UNSEEN => {
                let energy = last.energy.zip(drawn).map(|(sum, more)| sum + more);
                if last.state == state && now - last.start <= LONGEST {
                    (last.end, last.energy) = (now, energy);
                } else {
                    let start = last.end;
                    self.spans.push_back(Span { start, end: now, state, energy: drawn });
                }
            }
            _ => {
                let energy = metered.map(|_| Millijoules::ZERO);
                self.spans.push_back(Span { start: now, end: now, state, energy });
            }
        }
        let too_many = self.spans.len().saturating_sub(MOST);
        self.spans.drain(..too_many);
        while self.spans.front().is_some_and(|first| first.end <= now - KEPT) {
            self.spans.pop_front();
        }
    }

    /// Returns the spans (times in which the limit stays the same), for the API.
    pub(crate) fn view(&self) -> Vec<LimitSpanView> {
        let watts = |l: PowerLimit| l.watts().get();
        let power = |energy: Millijoules, span: &Span| -> Watts {
            energy.to_joules() / Seconds::from_delta(span.end - span.start)
        };
        // A single observation covers no time.
        let spans = self.spans.iter().filter(|s| s.start < s.end);
        spans
            .map(|s| LimitSpanView {
                start: s.start,
                end: s.end,
                power_limit_enforced_w: s.state.limit.map(watts),
                power_limit_wanted_w: s.state.wanted.map(watts),
                power_w: s.energy.map(|e| power(e, s).get()),
                job_id: s.state.job.as_ref().map(ToString::to_string),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(1) + TimeDelta::seconds(seconds)
    }

    fn state(watts: u32) -> LimitState {
        let limit = Some(PowerLimit::from_milliwatts(watts * 1000));
        LimitState { limit, wanted: None, job: None }
    }

    #[test]
    fn a_change_begins_a_span_and_so_do_five_minutes() {
        let mut history = LimitHistory::default();
        for s in 0..=400 {
            let watts = if s <= 40 { 300 } else { 200 };
            history.record(at(s), state(watts), Some(Millijoules::new(250_000 * s as u64)));
        }
        let spans: Vec<_> =
            history.view().iter().map(|s| (s.start, s.end, s.power_limit_enforced_w, s.power_w)).collect();
        let draw = Some(250.0);
        let expected = [
            (at(0), at(40), Some(300.0), draw),
            (at(40), at(340), Some(200.0), draw),
            (at(340), at(400), Some(200.0), draw),
        ];
        assert_eq!(spans, expected);
    }

    #[test]
    fn unobserved_time_is_a_hole_and_unreported_energy_is_absent() {
        let mut history = LimitHistory::default();
        for s in [0, 10, 200, 210] {
            history.record(at(s), state(300), None);
        }
        let spans: Vec<_> = history.view().iter().map(|s| (s.start, s.end, s.power_w)).collect();
        assert_eq!(spans, [(at(0), at(10), None), (at(200), at(210), None)]);
    }

    proptest! {
        #[test]
        fn it_stays_bounded_and_in_order_whatever_the_clock_does(
            steps in proptest::collection::vec((-90i64..90, 1u32..4), 1..400),
            stride in 1i64..600,
        ) {
            let (mut history, mut now) = (LimitHistory::default(), 0);
            for (step, watts) in steps {
                now += step + stride;
                history.record(at(now), state(watts), Some(Millijoules::ZERO));
                let view = history.view();
                prop_assert!(history.spans.len() <= MOST);
                prop_assert!(view.windows(2).all(|w| w[0].end <= w[1].start));
                prop_assert!(view.iter().all(|s| s.start < s.end && s.end <= at(now)));
                prop_assert!(view.iter().all(|s| at(now) - s.end < KEPT));
            }
        }
    }

    #[test]
    fn a_limit_that_changes_all_the_time_fills_no_memory() {
        let mut history = LimitHistory::default();
        for s in 0..5000 {
            history.record(at(s), state(100 + (s % 2) as u32), Some(Millijoules::ZERO));
        }
        assert_eq!(history.view().len(), MOST);
        assert_eq!(history.view().last().map(|s| s.end), Some(at(4999)));
    }
}
