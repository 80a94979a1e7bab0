//! Demand-response events: announced periods in which the node must draw less power.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::configured::{CapSource, Level, check_level};
use super::rule::Rule;
use crate::domain::{EventId, InvalidJob, Slot};
use crate::time::later;
use crate::units::{Seconds, Short, Watts};

/// Cap after a demand-response event, so that the node does not return to full power at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rebound {
    /// Level of the cap.
    pub level: Level,
    /// Duration of the cap from the event's end on.
    pub lasts: Seconds,
}

/// A demand-response event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandResponse {
    /// Identifier. Repeated announcements with the same identifier are one event.
    pub id: EventId,
    /// Period in which the target applies.
    pub slot: Slot,
    /// Cap during the period.
    pub target: Level,
    /// Time before the event's start at which the event becomes known; until then, planning ignores it, but limits are
    /// lowered in time for its start all the same. `None` means that it is known at once.
    pub notice: Option<Seconds>,
    /// Duration of the linear ramp of the cap from the baseline (sum of the GPUs' maximum limits) down to the target
    /// before the start, and of the ramp back after the end.
    pub ramp: Seconds,
    /// Cap after the event; `None` if there is none.
    pub rebound: Option<Rebound>,
}

/// Maximum duration of each part of an event: period, notice, ramp and rebound.
const LONGEST: Seconds = Seconds::new(31.0 * 86_400.0);

impl DemandResponse {
    /// Checks ranges that the types cannot express. The field names in errors are those of the API and the settings.
    pub fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why: String| Err(InvalidJob { field, why });
        if self.slot.duration() > LONGEST {
            return invalid("end", "is more than 31 days after start; make it several events".into());
        }
        check_level("target_w", "target_pct", self.target)?;
        let in_range = |s: Seconds| (0.0..=LONGEST.get()).contains(&s.get());
        if !in_range(self.ramp) {
            return invalid(
                "ramp_s",
                format!("is {}; it must be from 0 to {} seconds", Short(self.ramp.get()), LONGEST.get()),
            );
        }
        if let Some(notice) = self.notice {
            if !in_range(notice) {
                let why = format!("is {}; it must be from 0 to {} seconds", Short(notice.get()), LONGEST.get());
                return invalid("notice_s", why);
            }
            if self.ramp > notice {
                let why = format!(
                    "is {}, longer than the notice of {}: a ramp cannot begin before the announcement",
                    self.ramp, notice
                );
                return invalid("ramp_s", why);
            }
        }
        if let Some(Rebound { level, lasts }) = self.rebound {
            check_level("rebound_w", "rebound_pct", level)?;
            if !in_range(lasts) || lasts <= Seconds::ZERO {
                let why =
                    format!("is {}; it must be more than 0 and at most {} seconds", Short(lasts.get()), LONGEST.get());
                return invalid("rebound_s", why);
            }
        }
        Ok(self)
    }

    /// Returns true if the event is announced at `now`.
    pub fn is_announced(&self, now: DateTime<Utc>) -> bool {
        self.notice.is_none_or(|notice| self.slot.start() - notice.to_delta() <= now)
    }

    /// Returns the time at which both the ramp back and the rebound cap have ended.
    pub fn ends_at(&self) -> DateTime<Utc> {
        let rebound = self.rebound.map_or(Seconds::ZERO, |r| r.lasts);
        later(self.slot.end(), self.ramp.max(rebound).to_delta())
    }

    /// Returns the rules of the event for a node with this baseline, the sum of its GPUs' maximum limits.
    pub(super) fn rules(&self, baseline: Watts) -> Vec<(CapSource, Rule)> {
        let (start, end) = (self.slot.start(), self.slot.end());
        let target = self.target.of(baseline);
        let mut knots = vec![(start, target), (end, target)];
        if self.ramp.to_delta() > TimeDelta::zero() && target < baseline {
            knots.insert(0, (start - self.ramp.to_delta(), baseline));
            knots.push((later(end, self.ramp.to_delta()), baseline));
        }
        let mut rules = vec![(CapSource::Event(self.id.clone()), Rule::Line(knots))];
        if let Some(after) = self.rebound.and_then(|r| Some((Slot::new(end, later(end, r.lasts.to_delta()))?, r.level)))
        {
            rules.push((CapSource::Rebound(self.id.clone()), Rule::flat(&after.0, after.1.of(baseline))));
        }
        rules
    }
}
