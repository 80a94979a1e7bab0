//! Metrics of the GPUs.

use super::family::{Families, Metric, flag};
use crate::controller::view::{Concern, GpuState, GpuView};
use wattune_core::domain::EventReasons;

/// Returns the labels that every series of a GPU has.
pub(super) fn labels(gpu: &GpuView) -> [(&'static str, String); 4] {
    [
        ("gpu", gpu.index.to_string()),
        ("gpu_uuid", gpu.uuid.clone()),
        ("pci_bus_id", gpu.pci_bus_id.clone()),
        ("model", gpu.model.clone()),
    ]
}

fn hertz(megahertz: u32) -> f64 {
    f64::from(megahertz) * 1e6
}

const GAUGES: [Metric<GpuView>; 18] = [
    ("gpu_power", "watts", "Power draw", |g| g.power_w),
    ("gpu_power_limit_requested", "watts", "Limit requested by software, by any writer", |g| g.power_limit_requested_w),
    ("gpu_power_limit_enforced", "watts", "Limit in force", |g| g.power_limit_enforced_w),
    ("gpu_power_limit_wanted", "watts", "Limit that wattune wants now", |g| g.power_limit_wanted_w),
    ("gpu_power_limit_original", "watts", "Original limit, before wattune's first write; it will be restored", |g| {
        g.power_limit_original_w
    }),
    ("gpu_power_limit_default", "watts", "Default limit", |g| g.power_limit_default_w),
    ("gpu_power_limit_min", "watts", "Lowest limit that the GPU accepts", |g| g.power_limit_min_w),
    ("gpu_power_limit_max", "watts", "Highest limit that the GPU accepts", |g| g.power_limit_max_w),
    ("gpu_out_of_band_cap", "watts", "Out-of-band cap below the requested limit", |g| g.out_of_band_cap_w),
    ("gpu_temperature", "celsius", "Core temperature", |g| g.temperature_c),
    ("gpu_sm_clock", "hertz", "Clock of the streaming multiprocessors", |g| g.sm_clock_mhz.map(hertz)),
    ("gpu_clock_limit", "hertz", "Highest clock that wattune allows by a lock", |g| g.clock_limit_mhz.map(hertz)),
    ("gpu_clock_limit_wanted", "hertz", "Highest clock that wattune wants to allow now", |g| {
        g.clock_limit_wanted_mhz.map(hertz)
    }),
    ("gpu_energy_over_power", "ratio", "Counted energy over integrated power in the last ten seconds", |g| {
        g.counter_over_power
    }),
    ("gpu_persistence_enabled", "", "Persistence mode", |g| g.persistence.map(flag)),
    ("gpu_external_limit", "", "1 while wattune leaves the GPU alone because of an external limit", |g| {
        Some(flag(g.state == GpuState::External))
    }),
    ("gpu_restore_failed", "", "1 while a restore of the original limit has failed", |g| Some(flag(g.restore_failed))),
    ("gpu_observed_jobs", "", "Jobs whose energy is recorded on the GPU without controlling it", |g| {
        Some(g.observed_jobs.len() as f64)
    }),
];

const COUNTERS: [Metric<GpuView>; 4] = [
    ("gpu_energy", "joules", "Energy since the daemon started", |g| Some(g.energy_j)),
    ("gpu_energy_resets", "", "Resets of the GPU's energy counter since the daemon started", |g| {
        Some(f64::from(g.counter_resets))
    }),
    ("gpu_external_limits", "", "External limits that wattune left in place since the daemon started", |g| {
        Some(f64::from(g.external_limits))
    }),
    ("gpu_restore_failures", "", "Failed restores of the original limit", |g| Some(f64::from(g.restore_failures))),
];

pub(super) fn describe(gpus: &[GpuView], families: &mut Families) {
    let info = families.info("gpu", "Model of the GPU and source of its energy");
    for gpu in gpus {
        let more = [
            ("driver", gpu.driver.clone()),
            ("energy_source", gpu.energy_source.as_str().to_owned()),
            ("simulated", gpu.simulated.to_string()),
        ];
        info.push(labels(gpu).into_iter().chain(more));
    }
    families.each(Families::gauge, &GAUGES, gpus, labels);
    families.each(Families::counter, &COUNTERS, gpus, labels);
    let states = families.gauge("gpu_state", "", "Controller of the GPU's limit: 1 for the current state");
    for gpu in gpus {
        let known = GpuState::ALL.iter().map(|state| state.as_str());
        states.states(&labels(gpu), "state", known, |state| gpu.state.as_str() == state);
    }
    let problems = families.gauge(
        "gpu_problem",
        "",
        "1 while the problem in the label kind keeps wattune from measuring or controlling the GPU",
    );
    for gpu in gpus {
        problems.states(&labels(gpu), "kind", Concern::ALL.iter().map(|kind| kind.as_str()), |kind| {
            gpu.problems.iter().any(|problem| problem.as_str() == kind)
        });
    }
    let known = EventReasons::from_bits(u64::MAX);
    let reasons = families.gauge("gpu_clocks_event_reason", "", "Reasons for lowered clocks: 1 for the current ones");
    for gpu in gpus {
        // The reasons of an unresponsive GPU are unknown, which is not the same as no reasons.
        let Some(present) =
            gpu.event_reasons.as_ref().filter(|_| !matches!(gpu.state, GpuState::Lost | GpuState::Unresponsive))
        else {
            continue;
        };
        reasons.states(&labels(gpu), "reason", known.names(), |reason| present.contains(&reason));
    }
}
