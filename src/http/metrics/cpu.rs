//! CPU packages and memory.

use super::family::Families;
use crate::controller::view::{CpuView, CpuZoneView};

fn labels(zone: &CpuZoneView) -> [(&'static str, String); 4] {
    [
        ("zone", zone.zone.clone()),
        ("kind", zone.kind.to_owned()),
        ("path", zone.path.clone()),
        ("device", zone.device.clone()),
    ]
}

pub(super) fn describe(cpu: Option<&CpuView>, families: &mut Families) {
    let zones = cpu.map(|cpu| cpu.zones.as_slice()).unwrap_or_default();
    let power = families.gauge("cpu_power", "watts", "Power draw of a CPU package or its memory");
    for zone in zones {
        power.add(labels(zone), zone.power_w);
    }
    let readable = families.gauge("cpu_zone_readable", "", "1 if the zone's counter can be read");
    for zone in zones {
        readable.add(labels(zone), f64::from(u8::from(zone.problem.is_none())));
    }
    let energy = families.counter("cpu_energy", "joules", "Energy since the daemon started");
    for zone in zones {
        energy.add(labels(zone), zone.energy_j);
    }
    let info = families.info("cpu", "Source of the CPUs' energy");
    if let Some(cpu) = cpu {
        let cores = cpu.cores.map_or_else(String::new, |cores| cores.to_string());
        info.push([("source", cpu.source.to_owned()), ("cores", cores), ("simulated", cpu.simulated.to_string())]);
    }
}
