//! Checks the settings of the node as a whole against its GPUs.

use chrono::TimeDelta;

use super::{Finding, Verdict, finding};
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::gpu::thread::GpuHandle;
use wattune_core::domain::{CapSchedule, Slot};
use wattune_core::units::Watts;

/// The time for which caps are checked: longer than weekly windows take to repeat.
const AHEAD: TimeDelta = TimeDelta::days(8);

/// Checks the configured cap against the GPUs' lowest limits. A running daemon checks announced events itself.
pub(super) fn cap(handles: &[GpuHandle], settings: &Settings) -> Vec<Finding> {
    let what = "node's cap";
    let asked = &settings.cap;
    if asked.is_empty() {
        return Vec::new();
    }
    let (standing, events) = match (asked.configured(), asked.events()) {
        (Ok(standing), Ok(events)) => (standing, events),
        (Err(why), _) | (_, Err(why)) => return vec![finding(what, Verdict::Broken, why)],
    };
    let now = SystemClock::start().utc();
    let range = |handle: &GpuHandle| handle.capabilities().limits.as_ref().ok().copied();
    let baseline: Watts = handles.iter().filter_map(range).map(|range| range.max.watts()).sum();
    let lowest: Watts = handles.iter().map(lowest).sum();
    let constant = standing.constant.map(|level| format!("{:.0} W at all times", level.of(baseline).get()));
    let counted = [
        (standing.windows.len(), "window(s) of the week"),
        (standing.spans.iter().filter(|(span, _)| now < span.end()).count(), "span(s) to come"),
        (events.iter().filter(|event| now < event.ends_at()).count(), "event(s) to come"),
    ];
    let counted = counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let mut rules: Vec<String> = constant.into_iter().chain(counted).collect();
    if rules.is_empty() {
        rules.push("none in the future".into());
    }
    // Events whose notice has not come yet count too: here they only matter for the check.
    let known: Vec<_> =
        events.into_iter().map(|event| wattune_core::domain::DemandResponse { notice: None, ..event }).collect();
    let schedule = CapSchedule::new(&standing, &known, baseline, now);
    let far = known.iter().map(|event| event.ends_at()).chain(standing.spans.iter().map(|(span, _)| span.end()));
    let until = far.max().unwrap_or(now).max(now + AHEAD);
    let strictest = Slot::new(now, until).and_then(|slot| schedule.over(&slot));
    let found = match strictest {
        Some(cap) if cap < lowest => finding(
            what,
            Verdict::Limited,
            format!(
                "{}; the lowest cap is {:.0} W, but the GPUs' lowest limits add up to {:.0} W: it cannot be met",
                rules.join(", "),
                cap.get(),
                lowest.get()
            ),
        ),
        Some(cap) => finding(
            what,
            Verdict::Good,
            format!(
                "{}; the lowest cap is {:.0} W, the GPUs' lowest limits add up to {:.0} W",
                rules.join(", "),
                cap.get(),
                lowest.get()
            ),
        ),
        None => finding(what, Verdict::Good, rules.join(", ")),
    };
    vec![found]
}

/// Returns a GPU's least part of the cap: its lowest limit, or the current one if wattune may not set it.
fn lowest(handle: &GpuHandle) -> Watts {
    let can = handle.capabilities();
    let present = handle.observe().reading.requested.map(|limit| limit.watts());
    match can.limits.as_ref() {
        Ok(range) if can.why_no_control().is_none() => range.min.watts(),
        Ok(range) => present.unwrap_or(range.max.watts()),
        Err(_) => present.unwrap_or(Watts::ZERO),
    }
}

/// Checks the configured carbon budget.
pub(super) fn carbon_budget(settings: &Settings) -> Vec<Finding> {
    let what = "node's carbon budget";
    let Some(limit) = settings.carbon_budget.limit() else { return Vec::new() };
    let now = SystemClock::start().utc();
    let Some(span) = settings.carbon_budget.span(now) else {
        return vec![finding(what, Verdict::Limited, "its span is over; configure another one, or remove it")];
    };
    let detail = format!(
        "{limit} from {} until {}; wattune status shows the rest of the budget and if the plans meet it",
        span.start().format("%FT%TZ"),
        span.end().format("%FT%TZ")
    );
    vec![finding(what, Verdict::Good, detail)]
}
