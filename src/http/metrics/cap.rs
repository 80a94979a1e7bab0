//! The node's cap, and planning under it.

use super::family::Families;
use crate::controller::view::StatusView;

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let cap = status.cap.as_ref();
    let mut gauge = |name, help, value: Option<f64>| {
        families.gauge(name, "watts", help).add([], value);
    };
    gauge("node_cap", "Current cap on the sum of all GPUs' power limits", cap.and_then(|c| c.limit_w));
    gauge("node_limits", "Sum of all GPUs' power limits", cap.map(|c| c.limits_sum_w));
    gauge("node_cap_headroom", "Unused part of the node's cap", cap.and_then(|c| c.headroom_w));
    gauge("node_cap_next", "Node's cap after its next change", cap.and_then(|c| c.next_limit_w));
    let change = cap.and_then(|c| c.next_change).map(|at| at.timestamp_micros() as f64 / 1e6);
    let help = "Time of the next change of the node's cap since the Unix epoch";
    families.gauge("node_cap_next_change", "seconds", help).add([], change);
    let took = status.planning.last_search_s;
    families.gauge("plan_search", "seconds", "Duration of the last search for plans").add([], took);
    let late = f64::from(u8::from(status.planning.late_s.is_some()));
    let help = "1 while a search for plans exceeds its time limit and the previous plans stay in force";
    families.gauge("plan_search_late", "", help).add([], late);
}
