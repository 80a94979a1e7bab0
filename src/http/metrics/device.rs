//! The boards.

use super::family::Families;
use crate::controller::view::GpuView;
use wattune_core::domain::EventReasons;

const STATES: [&str; 7] = ["free", "job", "override", "foreign", "observed", "lost", "unresponsive"];

const PROBLEMS: [&str; 6] = ["answer", "energy", "power", "limit", "clocks", "persistence"];

/// The labels of every series of a board.
pub(super) fn labels(gpu: &GpuView) -> [(&'static str, String); 4] {
    [
        ("gpu", gpu.index.to_string()),
        ("gpu_uuid", gpu.uuid.clone()),
        ("pci_bus_id", gpu.pci_bus_id.clone()),
        ("model", gpu.model.clone()),
    ]
}

type Value = fn(&GpuView) -> Option<f64>;

fn flag(on: bool) -> Option<f64> {
    Some(f64::from(u8::from(on)))
}

fn hertz(megahertz: u32) -> f64 {
    f64::from(megahertz) * 1e6
}

const GAUGES: [(&str, &str, &str, Value); 18] = [
    ("gpu_power", "watts", "Draw of the board", |g| g.power_w),
    ("gpu_power_limit_requested", "watts", "Limit asked for at the hardware, whoever asked", |g| {
        g.power_limit_requested_w
    }),
    ("gpu_power_limit_enforced", "watts", "Limit in force", |g| g.power_limit_enforced_w),
    ("gpu_power_limit_wanted", "watts", "Limit that wattune wants now", |g| g.power_limit_wanted_w),
    ("gpu_power_limit_found", "watts", "Limit before wattune touched it; it will be restored", |g| {
        g.power_limit_found_w
    }),
    ("gpu_power_limit_default", "watts", "The board's default limit", |g| g.power_limit_default_w),
    ("gpu_power_limit_min", "watts", "The lowest limit that the board takes", |g| g.power_limit_min_w),
    ("gpu_power_limit_max", "watts", "The highest limit that the board takes", |g| g.power_limit_max_w),
    ("gpu_out_of_band_cap", "watts", "A cap from outside, below the requested limit", |g| g.out_of_band_cap_w),
    ("gpu_temperature", "celsius", "Temperature of the core", |g| g.temperature_c),
    ("gpu_sm_clock", "hertz", "Clock of the multiprocessors", |g| g.sm_clock_mhz.map(hertz)),
    ("gpu_clock_limit", "hertz", "What wattune has locked the clocks to", |g| g.clock_limit_mhz.map(hertz)),
    ("gpu_clock_limit_wanted", "hertz", "What wattune wants the clocks locked to now", |g| {
        g.clock_limit_wanted_mhz.map(hertz)
    }),
    ("gpu_energy_over_power", "ratio", "Energy counter over integrated power in the last minute", |g| {
        g.counter_over_power
    }),
    ("gpu_persistence_enabled", "", "Persistence mode", |g| g.persistence.and_then(flag)),
    ("gpu_foreign_limit", "", "1 while the board is left alone because somebody else set its limit", |g| {
        flag(g.state == "foreign")
    }),
    ("gpu_restore_failed", "", "1 while the found limit has not come back although it was tried", |g| {
        flag(g.restore_failed)
    }),
    ("gpu_booked_jobs", "", "Jobs that are booked on the board without controlling it", |g| {
        Some(g.booked_jobs.len() as f64)
    }),
];

const COUNTERS: [(&str, &str, &str, Value); 4] = [
    ("gpu_energy", "joules", "Energy since the daemon started", |g| Some(g.energy_j)),
    ("gpu_energy_resets", "", "Resets of the board's energy counter since the daemon started", |g| {
        Some(f64::from(g.counter_resets))
    }),
    ("gpu_foreign_limits", "", "How often somebody else's limit was left in place since the daemon started", |g| {
        Some(f64::from(g.foreign_limits))
    }),
    ("gpu_restore_failures", "", "How often the found limit was refused when it was to come back", |g| {
        Some(f64::from(g.restore_failures))
    }),
];

pub(super) fn describe(gpus: &[GpuView], families: &mut Families) {
    let info = families.info("gpu", "What the board is and how its energy is read");
    for gpu in gpus {
        let more = [
            ("driver", gpu.driver.clone()),
            ("energy_source", gpu.energy_source.to_owned()),
            ("simulated", gpu.simulated.to_string()),
        ];
        info.push(labels(gpu).into_iter().chain(more));
    }
    for (name, unit, help, value) in GAUGES {
        let family = families.gauge(name, unit, help);
        for gpu in gpus {
            family.add(labels(gpu), value(gpu));
        }
    }
    for (name, unit, help, value) in COUNTERS {
        let family = families.counter(name, unit, help);
        for gpu in gpus {
            family.add(labels(gpu), value(gpu));
        }
    }
    let states = families.gauge("gpu_state", "", "Who decides on the board's limit: 1 for the present state");
    for gpu in gpus {
        states.states(&labels(gpu), "state", STATES, |state| gpu.state == state);
    }
    let problems =
        families.gauge("gpu_problem", "", "1 while this keeps the board from being measured or steered as wanted");
    for gpu in gpus {
        problems.states(&labels(gpu), "kind", PROBLEMS, |kind| gpu.problems.contains(&kind));
    }
    let known = EventReasons::from_bits(u64::MAX);
    let reasons = families.gauge("gpu_clocks_event_reason", "", "Why clocks are lowered: 1 for the present reasons");
    for gpu in gpus {
        // A board that does not answer gives no reasons, which is not the same as having none.
        let Some(present) = gpu.event_reasons.as_ref().filter(|_| !matches!(gpu.state, "lost" | "unresponsive")) else {
            continue;
        };
        reasons.states(&labels(gpu), "reason", known.names(), |reason| present.contains(&reason));
    }
}
