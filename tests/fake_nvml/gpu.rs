//! The script: the properties, demand and faults of each GPU.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use serde::Deserialize;

/// The content of `boards.json`. An unknown field is an error, since a misspelt fault would silently not happen.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) driver_version: String,
    /// Makes a GPU without persistence lose its limit and counter once no process has the library open.
    pub(crate) persistence_lost_on_unload: bool,
    /// Return codes of the calls that name no GPU: start, count, versions.
    pub(crate) fail_calls: BTreeMap<String, nvmlReturn_t>,
    #[serde(rename = "boards")]
    pub(crate) gpus: Vec<FakeGpu>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            driver_version: "580.95.05".into(),
            persistence_lost_on_unload: false,
            fail_calls: BTreeMap::new(),
            gpus: Vec::new(),
        }
    }
}

/// One GPU of the script. Powers are in watts and may be fractional.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FakeGpu {
    /// By default derived from the position in the script, like the PCI address.
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) pci_bus_id: String,
    pub(crate) min_w: f64,
    pub(crate) max_w: f64,
    pub(crate) default_w: f64,
    /// The limit at the GPU's very first start; by default `default_w`.
    pub(crate) initial_limit_w: Option<f64>,
    pub(crate) initial_energy_j: f64,
    pub(crate) persistence: bool,
    pub(crate) demand_w: f64,
    /// The demand from each time on, in place of `demand_w`: Unix seconds, increasing, and watts.
    pub(crate) demand: Vec<(f64, f64)>,
    /// The times at which its counter is reset: Unix seconds, increasing.
    pub(crate) resets_at: Vec<f64>,
    pub(crate) idle: bool,
    pub(crate) idle_w: f64,
    pub(crate) temperature_c: i32,
    pub(crate) noise: f64,
    pub(crate) oob_cap_w: Option<f64>,
    pub(crate) lost: bool,
    pub(crate) removed: bool,
    /// Gives the GPU its default limit after a loss or a removal, as after a reset.
    pub(crate) back_with_default_limit: bool,
    pub(crate) deny_set_limit: bool,
    pub(crate) deny_persistence: bool,
    pub(crate) deny_clocks: bool,
    pub(crate) clocks_supported: bool,
    pub(crate) energy_supported: bool,
    pub(crate) limit_supported: bool,
    pub(crate) energy_resets: u64,
    pub(crate) event_reasons: Option<u64>,
    pub(crate) slow_ms: u64,
    pub(crate) slow_calls: Vec<String>,
    pub(crate) fail_calls: BTreeMap<String, nvmlReturn_t>,
    /// Return codes of writes that take effect and report a failure.
    pub(crate) fail_after_calls: BTreeMap<String, nvmlReturn_t>,
    /// Writes that succeed without an effect.
    pub(crate) ignore_calls: Vec<String>,
    pub(crate) mig_mode: bool,
    pub(crate) vgpu: bool,
    pub(crate) processes: u32,
    /// The ids of further processes, which exist on this machine.
    pub(crate) process_ids: Vec<u32>,
    pub(crate) utilization: Option<u32>,
    /// The use of each process in percent, by process id. Those at 0 have no samples.
    pub(crate) process_utilization: BTreeMap<u32, u32>,
    /// The clock without a limit or a lock.
    pub(crate) sm_clock_mhz: u32,
    /// The range of lockable clocks, in steps of 15 MHz.
    pub(crate) min_clock_mhz: u32,
    pub(crate) max_clock_mhz: u32,
    /// The demand at each clock, in place of `demand_w`: MHz and watts, both increasing.
    pub(crate) clock_curve: Vec<(u32, f64)>,
    /// A lock at the GPU's very first start.
    pub(crate) initial_lock_mhz: Option<u32>,
    pub(crate) mem_clock_mhz: u32,
    pub(crate) update_ms: u64,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA Fake A40".into(),
            pci_bus_id: String::new(),
            min_w: 100.0,
            max_w: 300.0,
            default_w: 300.0,
            initial_limit_w: None,
            initial_energy_j: 0.0,
            persistence: true,
            demand_w: 260.0,
            demand: Vec::new(),
            resets_at: Vec::new(),
            idle: false,
            idle_w: 30.0,
            temperature_c: 55,
            noise: 0.0,
            oob_cap_w: None,
            lost: false,
            removed: false,
            back_with_default_limit: false,
            deny_set_limit: false,
            deny_persistence: false,
            deny_clocks: false,
            clocks_supported: true,
            energy_supported: true,
            limit_supported: true,
            energy_resets: 0,
            event_reasons: None,
            slow_ms: 0,
            slow_calls: Vec::new(),
            fail_calls: BTreeMap::new(),
            fail_after_calls: BTreeMap::new(),
            ignore_calls: Vec::new(),
            mig_mode: false,
            vgpu: false,
            processes: 0,
            process_ids: Vec::new(),
            utilization: None,
            process_utilization: BTreeMap::new(),
            sm_clock_mhz: 1740,
            min_clock_mhz: 210,
            max_clock_mhz: 1740,
            clock_curve: Vec::new(),
            initial_lock_mhz: None,
            mem_clock_mhz: 7251,
            update_ms: 20,
        }
    }
}

impl Script {
    /// Parses a script; the error is one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut script: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mut uuids = HashSet::new();
        for (place, gpu) in script.gpus.iter_mut().enumerate() {
            if gpu.uuid.is_empty() {
                gpu.uuid = format!("GPU-00000000-0000-0000-0000-{place:012}");
            }
            if gpu.pci_bus_id.is_empty() {
                gpu.pci_bus_id = format!("00000000:{place:02X}:00.0");
            }
            gpu.check().map_err(|e| format!("board {place}: {e}"))?;
            if !uuids.insert(gpu.uuid.clone()) {
                return Err(format!("board {place}: uuid {} is there twice", gpu.uuid));
            }
        }
        Ok(script)
    }
}

impl FakeGpu {
    fn check(&self) -> Result<(), String> {
        // The UUID names the state file, so it must not lead out of the directory.
        if !self.uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(format!("uuid {:?} is not of letters, digits and -", self.uuid));
        }
        if self.pci().is_none() {
            return Err(format!("pci_bus_id {:?} is no PCI address", self.pci_bus_id));
        }
        let watts = [
            self.min_w,
            self.max_w,
            self.default_w,
            self.initial_limit_w.unwrap_or(0.0),
            self.initial_energy_j,
            self.demand_w,
            self.idle_w,
            self.oob_cap_w.unwrap_or(0.0),
            self.noise,
        ];
        if watts.iter().chain(self.demand.iter().map(|(_, w)| w)).any(|w| !w.is_finite() || *w < 0.0) {
            return Err("a power, an energy or the noise is negative".into());
        }
        if self.min_w > self.max_w {
            return Err("min_w is above max_w".into());
        }
        if self.min_clock_mhz == 0 || self.min_clock_mhz > self.max_clock_mhz {
            return Err("min_clock_mhz is 0 or above max_clock_mhz".into());
        }
        let times: Vec<f64> = self.demand.iter().map(|(at, _)| *at).collect();
        if [&times, &self.resets_at].iter().any(|times| !times.is_sorted_by(|a, b| a < b)) {
            return Err("demand or resets_at does not rise in time".into());
        }
        if self.clock_curve.windows(2).any(|w| w[0].0 >= w[1].0 || w[0].1 >= w[1].1) {
            return Err("clock_curve does not rise in clock and power".into());
        }
        Ok(())
    }

    pub(crate) fn there(&self) -> bool {
        !self.lost && !self.removed
    }

    pub(crate) fn min_mw(&self) -> u32 {
        milli(self.min_w)
    }

    pub(crate) fn max_mw(&self) -> u32 {
        milli(self.max_w)
    }

    pub(crate) fn default_mw(&self) -> u32 {
        milli(self.default_w)
    }

    pub(crate) fn initial_mw(&self) -> u32 {
        milli(self.initial_limit_w.unwrap_or(self.default_w))
    }

    /// Returns the limit in force: the requested one, or the out-of-band cap if that is lower.
    pub(crate) fn enforced_mw(&self, limit_mw: u32) -> u32 {
        self.oob_cap_w.map_or(limit_mw, |cap| limit_mw.min(milli(cap)))
    }

    /// Returns the lockable clocks, the highest first.
    pub(crate) fn lockable_clocks(&self) -> Vec<u32> {
        (self.min_clock_mhz..=self.max_clock_mhz).rev().step_by(15).collect()
    }

    /// Returns the clock without a limit, under a lock (0 for none).
    fn free_clock_mhz(&self, lock_mhz: u32) -> u32 {
        if lock_mhz == 0 { self.sm_clock_mhz } else { self.sm_clock_mhz.min(lock_mhz) }
    }

    /// Returns the next time after this one at which the script changes something, and if the counter is reset then.
    pub(crate) fn change_after(&self, at_ns: u64) -> Option<(u64, bool)> {
        let next = |times: Box<dyn Iterator<Item = f64> + '_>| times.map(nanos).find(|ns| *ns > at_ns);
        let demand = next(Box::new(self.demand.iter().map(|(at, _)| *at)));
        let reset = next(Box::new(self.resets_at.iter().copied()));
        let first = [demand, reset].into_iter().flatten().min()?;
        Some((first, reset == Some(first)))
    }

    /// Returns the demand at a time without a limit.
    fn demand_mw(&self, at_ns: u64, lock_mhz: u32) -> u32 {
        if let Some((_, watts)) = self.demand.iter().rev().find(|(at, _)| nanos(*at) <= at_ns) {
            return milli(*watts);
        }
        let curve: Vec<_> = self.clock_curve.iter().map(|(mhz, w)| (f64::from(*mhz), *w)).collect();
        milli(linear(&curve, f64::from(self.free_clock_mhz(lock_mhz))).unwrap_or(self.demand_w))
    }

    /// Returns the clock under a limit and a lock.
    pub(crate) fn clock_mhz(&self, limit_mw: u32, lock_mhz: u32) -> u32 {
        let free = self.free_clock_mhz(lock_mhz);
        let curve: Vec<_> = self.clock_curve.iter().map(|(mhz, w)| (*w, f64::from(*mhz))).collect();
        let afforded = linear(&curve, f64::from(self.enforced_mw(limit_mw)) / 1e3);
        afforded.map_or(free, |mhz| free.min(mhz.round() as u32))
    }

    /// Returns the draw at a time under a limit and a lock; zero for a GPU that is not present.
    pub(crate) fn draw_mw(&self, at_ns: u64, limit_mw: u32, lock_mhz: u32) -> u32 {
        if !self.there() {
            0
        } else if self.idle {
            milli(self.idle_w)
        } else {
            self.demand_mw(at_ns, lock_mhz).min(self.enforced_mw(limit_mw))
        }
    }

    /// Returns the clock event reasons, unless the script states them: idle (1) or power cap (4).
    pub(crate) fn reasons(&self, at_ns: u64, limit_mw: u32, lock_mhz: u32) -> u64 {
        self.event_reasons.unwrap_or_else(|| {
            if self.idle {
                0x1
            } else if self.demand_mw(at_ns, lock_mhz) > self.enforced_mw(limit_mw) {
                0x4
            } else {
                0x0
            }
        })
    }

    /// Returns the scripted duration of this call.
    pub(crate) fn pause(&self, call: &str) -> Option<Duration> {
        let named = self.slow_calls.is_empty() || self.slow_calls.iter().any(|c| c == call);
        (self.slow_ms > 0 && named).then(|| Duration::from_millis(self.slow_ms))
    }

    /// Returns true if a write succeeds without an effect.
    pub(crate) fn ignores(&self, call: &str) -> bool {
        self.ignore_calls.iter().any(|c| c == call)
    }

    /// Returns domain, bus and device of the GPU's PCI address.
    pub(crate) fn pci(&self) -> Option<(u32, u32, u32)> {
        pci_address(&self.pci_bus_id)
    }
}

/// Parses `domain:bus:device.function`, with a domain of four or eight digits, as both are in use.
pub(crate) fn pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, _function) = rest.split_once('.')?;
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    Some((hex(domain)?, hex(bus)?, hex(device)?))
}

/// Interpolates linearly between points, flat beyond; `None` without points.
fn linear(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let next = points.partition_point(|p| p.0 < x);
    match (next.checked_sub(1).map(|i| points[i]), points.get(next)) {
        (Some(a), Some(b)) => Some(a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0)),
        (Some(only), None) => Some(only.1),
        (None, only) => only.map(|p| p.1),
    }
}

fn nanos(unix_s: f64) -> u64 {
    (unix_s * 1e9).round() as u64
}

fn milli(watts: f64) -> u32 {
    (watts * 1000.0).round() as u32
}
