//! The view of the node's cap and its problems, for the API.

use chrono::TimeDelta;

use super::{Cap, Demand};
use crate::controller::view::CapView;
use wattune_core::cap::{LimitPurpose, LimitRequest};
use wattune_core::domain::Slot;
use wattune_core::units::Watts;

impl Cap {
    /// Returns the view of the cap; `None` if no cap holds now and none is known for later. An event with a short
    /// notice is known once limits are lowered for it.
    pub(crate) fn view(&self, demand: &Demand<'_>) -> Option<CapView> {
        let now = demand.now;
        let schedule = self.schedule_ahead(demand.gpus.maximum_limits(), demand.settings, now.utc);
        if schedule.is_empty() {
            return None;
        }
        let requests: Vec<LimitRequest> = demand.requests().into_iter().map(|(_, request)| request).collect();
        let sum: Watts = requests.iter().map(|s| s.in_force.watts()).sum();
        let binding = schedule.binding_at(now.utc);
        let limit = binding.map(|(cap, _)| cap);
        let next = schedule.next_change(now.utc);
        let following = next.map(|at| schedule.next_change(at).unwrap_or(at + TimeDelta::days(7)));
        let then = next.zip(following).and_then(|(from, to)| schedule.over(&Slot::new(from, to)?));
        Some(CapView {
            limit_w: limit.map(Watts::get),
            source: binding.map(|(_, source)| source.to_string()),
            limits_sum_w: sum.get(),
            headroom_w: limit.map(|cap| (cap - sum).get()),
            lowest_sum_w: lowest(&requests).get(),
            next_change: next,
            next_limit_w: then.map(Watts::get),
            lead_s: self.lead(demand.settings).get(),
        })
    }

    /// Returns the cap's problems, in one sentence each.
    pub(crate) fn problems(&self, demand: &Demand<'_>) -> Vec<String> {
        let (now, most) = (demand.now, demand.gpus.maximum_limits());
        let schedule = self.schedule_ahead(most, demand.settings, now.utc);
        if schedule.is_empty() {
            return Vec::new();
        }
        let requests: Vec<LimitRequest> = demand.requests().into_iter().map(|(_, request)| request).collect();
        let mut problems = Vec::new();
        let (lowest, sum): (Watts, Watts) = (lowest(&requests), requests.iter().map(|s| s.in_force.watts()).sum());
        let strictest = Slot::new(now.utc, now.utc + TimeDelta::days(8)).and_then(|week| schedule.over(&week));
        if let Some(cap) = strictest.filter(|cap| *cap < lowest) {
            let falls = match schedule.cap_at(now.utc) == Some(cap) {
                true => format!("is {cap}"),
                false => format!("goes down to {cap} within the next days"),
            };
            problems.push(format!(
                "the node's cap {falls}, but even the GPUs' lowest limits add up to {lowest}; raise the cap, or remove \
                 GPUs"
            ));
        }
        let events = self.fixed.iter().chain(self.events.values());
        for event in events.filter(|e| e.ends_at() > now.utc && most > Watts::ZERO && e.target.of(most) > most) {
            problems.push(format!(
                "demand-response event {} changes nothing: its target of {} is more than the GPUs' maximum limits add up \
                 to ({most}); is it in milliwatts?",
                event.id,
                event.target.of(most)
            ));
        }
        if let Some(cap) = schedule.cap_at(now.utc).filter(|cap| sum > *cap) {
            problems.push(format!("the limits in force add up to {sum}, {} above the node's cap of {cap}", sum - cap));
        }
        let silent: Vec<String> = demand
            .gpus
            .iter()
            .filter(|g| g.in_force().is_none())
            .map(|g| g.handle.identity().index.to_string())
            .collect();
        if !silent.is_empty() {
            problems.push(format!("the node's cap does not count GPU {}: no limit is reported", silent.join(", ")));
        }
        problems
    }
}

/// Returns the lowest possible sum of the limits.
fn lowest(requests: &[LimitRequest]) -> Watts {
    let least = |s: &LimitRequest| if s.purpose == LimitPurpose::Fixed { s.in_force } else { s.floor };
    requests.iter().map(|s| least(s).watts()).sum()
}
