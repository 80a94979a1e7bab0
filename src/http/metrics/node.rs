//! Metrics of the daemon, of the cap on the node's power and planning under this cap, and of CPU packages and memory.

use super::family::{Families, Metric, flag, unix_time};
use crate::controller::view::{CpuZoneView, Mode, StatusView};

/// Adds the metrics of the daemon itself.
pub(super) fn daemon(status: &StatusView, families: &mut Families) {
    families.info("build", "The daemon's version").push([("version", status.version.to_owned())]);
    let storage = &status.storage;
    let mut gauge = |name, unit, help, value: f64| {
        families.gauge(name, unit, help).add([], value);
    };
    let help = "1 if power limits are set, 0 if they are only planned";
    gauge("control_enabled", "", help, flag(status.mode == Mode::Control));
    gauge("simulated", "", "1 if every GPU is simulated", flag(status.simulated));
    let help = "Start time of the daemon since the Unix epoch";
    gauge("start_time", "seconds", help, unix_time(status.started_at));
    let help = "The daemon's time since the Unix epoch; in a demo not the wall clock's";
    gauge("present_time", "seconds", help, unix_time(status.now));
    let help = "Number of current problems; GET /v1/status lists them";
    gauge("problems", "", help, status.problems.len() as f64);
    let help = "1 while the ledger cannot be written; intervals are kept in memory meanwhile";
    gauge("store_fault", "", help, flag(storage.fault.is_some()));
    let help = "Ledger intervals in memory that are not written yet";
    gauge("store_unwritten_intervals", "", help, storage.unwritten_intervals as f64);
    let help = "1 while the journal of original limits cannot be written; no limit is set meanwhile";
    gauge("journal_fault", "", help, flag(storage.journal_fault.is_some()));
    let help =
        "Records of the audit log lost since the daemon's start: the database could not be written, or not fast enough";
    families.counter("audit_records_lost", "", help).add([], storage.audit_records_lost as f64);
}

/// Adds the metrics of the cap on the node's power and of planning.
pub(super) fn cap(status: &StatusView, families: &mut Families) {
    let cap = status.cap.as_ref();
    let mut gauge = |name, unit, help, value: Option<f64>| {
        families.gauge(name, unit, help).add([], value);
    };
    gauge("node_cap", "watts", "Current cap on the sum of all GPUs' power limits", cap.and_then(|c| c.limit_w));
    gauge("node_limits", "watts", "Sum of all GPUs' power limits", cap.map(|c| c.limits_sum_w));
    gauge("node_cap_headroom", "watts", "Unused part of the node's cap", cap.and_then(|c| c.headroom_w));
    gauge("node_cap_next", "watts", "Node's cap after its next change", cap.and_then(|c| c.next_limit_w));
    let help = "Time of the next change of the node's cap since the Unix epoch";
    gauge("node_cap_next_change", "seconds", help, cap.and_then(|c| c.next_change).map(unix_time));
    gauge("plan_search", "seconds", "Duration of the last search for plans", status.planning.last_search_s);
    let help = "1 while a search for plans exceeds its time limit and the previous plans stay in force";
    gauge("plan_search_late", "", help, Some(flag(status.planning.late_s.is_some())));
}

const CPU_GAUGES: [Metric<CpuZoneView>; 2] = [
    ("cpu_power", "watts", "Power draw of a CPU package or its memory", |zone| zone.power_w),
    ("cpu_zone_readable", "", "1 if the zone's counter can be read", |zone| Some(flag(zone.problem.is_none()))),
];

const CPU_COUNTERS: [Metric<CpuZoneView>; 1] =
    [("cpu_energy", "joules", "Energy since the daemon started", |zone| zone.energy_j)];

/// Adds the metrics of CPU packages and memory.
pub(super) fn processors(status: &StatusView, families: &mut Families) {
    let zones = status.cpu.as_ref().map(|cpu| cpu.zones.as_slice()).unwrap_or_default();
    let labels = |zone: &CpuZoneView| {
        [
            ("zone", zone.zone.clone()),
            ("kind", zone.kind.as_str().to_owned()),
            ("path", zone.path.clone()),
            ("device", zone.device.clone()),
        ]
    };
    families.each(Families::gauge, &CPU_GAUGES, zones, labels);
    families.each(Families::counter, &CPU_COUNTERS, zones, labels);
    let info = families.info("cpu", "Source of the CPUs' energy");
    if let Some(cpu) = &status.cpu {
        let cores = cpu.cores.map_or_else(String::new, |cores| cores.to_string());
        info.push([
            ("source", cpu.source.as_str().to_owned()),
            ("cores", cores),
            ("simulated", cpu.simulated.to_string()),
        ]);
    }
}
