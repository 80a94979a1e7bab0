//! The script: what each board is, what it would draw, and how it misbehaves.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use serde::Deserialize;

/// `boards.json`. An unknown field makes it invalid, since a misspelt fault would otherwise quietly not happen.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) driver_version: String,
    /// A board without persistence forgets its limit and its counter once no process has the library open.
    pub(crate) persistence_lost_on_unload: bool,
    /// Codes for the calls that name no board: start, count, versions.
    pub(crate) fail_calls: BTreeMap<String, nvmlReturn_t>,
    pub(crate) boards: Vec<Board>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            driver_version: "580.95.05".into(),
            persistence_lost_on_unload: false,
            fail_calls: BTreeMap::new(),
            boards: Vec::new(),
        }
    }
}

/// One board of the script. Powers are in watts and may be fractional.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Board {
    /// Left out, it follows the place in the script, as the PCI address does.
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) pci_bus_id: String,
    pub(crate) min_w: f64,
    pub(crate) max_w: f64,
    pub(crate) default_w: f64,
    /// The limit at the board's very first start; `default_w` if left out.
    pub(crate) initial_limit_w: Option<f64>,
    pub(crate) initial_energy_j: f64,
    pub(crate) persistence: bool,
    pub(crate) demand_w: f64,
    /// What it would draw from each moment on, in place of `demand_w`: Unix seconds, rising, and watts.
    pub(crate) demand: Vec<(f64, f64)>,
    /// When its counter starts again from 0: Unix seconds, rising.
    pub(crate) resets_at: Vec<f64>,
    pub(crate) idle: bool,
    pub(crate) idle_w: f64,
    pub(crate) temperature_c: i32,
    pub(crate) noise: f64,
    pub(crate) oob_cap_w: Option<f64>,
    pub(crate) lost: bool,
    pub(crate) removed: bool,
    /// Back from a loss or a removal, the board starts with its default limit, as after a reset.
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
    /// Writes that succeed and change nothing.
    pub(crate) ignore_calls: Vec<String>,
    pub(crate) mig_mode: bool,
    pub(crate) vgpu: bool,
    pub(crate) processes: u32,
    pub(crate) utilization: Option<u32>,
    /// What each process uses, in percent, by its number. Those at 0 have no samples.
    pub(crate) process_utilization: BTreeMap<u32, u32>,
    /// The clock that the board runs at if neither its limit nor a lock lowers it.
    pub(crate) sm_clock_mhz: u32,
    /// The ends of what it can be locked to, in steps of 15 MHz.
    pub(crate) min_clock_mhz: u32,
    pub(crate) max_clock_mhz: u32,
    /// What it would draw at each clock, in place of `demand_w`: MHz and watts, both rising.
    pub(crate) clock_curve: Vec<(u32, f64)>,
    /// A lock at the board's very first start.
    pub(crate) initial_lock_mhz: Option<u32>,
    pub(crate) mem_clock_mhz: u32,
    pub(crate) update_ms: u64,
}

impl Default for Board {
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
            ignore_calls: Vec::new(),
            mig_mode: false,
            vgpu: false,
            processes: 0,
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
    /// Reads a script, or says in one line what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut script: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mut uuids = HashSet::new();
        for (place, board) in script.boards.iter_mut().enumerate() {
            if board.uuid.is_empty() {
                board.uuid = format!("GPU-00000000-0000-0000-0000-{place:012}");
            }
            if board.pci_bus_id.is_empty() {
                board.pci_bus_id = format!("00000000:{place:02X}:00.0");
            }
            board.check().map_err(|e| format!("board {place}: {e}"))?;
            if !uuids.insert(board.uuid.clone()) {
                return Err(format!("board {place}: uuid {} is there twice", board.uuid));
            }
        }
        Ok(script)
    }
}

impl Board {
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

    /// What the board keeps to: the limit asked for, or the out-of-band cap where that is lower.
    pub(crate) fn enforced_mw(&self, limit_mw: u32) -> u32 {
        self.oob_cap_w.map_or(limit_mw, |cap| limit_mw.min(milli(cap)))
    }

    /// What it can be locked to, from above.
    pub(crate) fn lockable_clocks(&self) -> Vec<u32> {
        (self.min_clock_mhz..=self.max_clock_mhz).rev().step_by(15).collect()
    }

    /// The clock without a limit, under a lock (0 for none).
    fn free_clock_mhz(&self, lock_mhz: u32) -> u32 {
        if lock_mhz == 0 { self.sm_clock_mhz } else { self.sm_clock_mhz.min(lock_mhz) }
    }

    /// The next moment after this one at which the script itself changes something, and whether the counter is reset then.
    pub(crate) fn change_after(&self, at_ns: u64) -> Option<(u64, bool)> {
        let next = |times: Box<dyn Iterator<Item = f64> + '_>| times.map(nanos).find(|ns| *ns > at_ns);
        let demand = next(Box::new(self.demand.iter().map(|(at, _)| *at)));
        let reset = next(Box::new(self.resets_at.iter().copied()));
        let first = [demand, reset].into_iter().flatten().min()?;
        Some((first, reset == Some(first)))
    }

    /// What it would draw at a moment without a limit.
    fn demand_mw(&self, at_ns: u64, lock_mhz: u32) -> u32 {
        if let Some((_, watts)) = self.demand.iter().rev().find(|(at, _)| nanos(*at) <= at_ns) {
            return milli(*watts);
        }
        let curve: Vec<_> = self.clock_curve.iter().map(|(mhz, w)| (f64::from(*mhz), *w)).collect();
        milli(linear(&curve, f64::from(self.free_clock_mhz(lock_mhz))).unwrap_or(self.demand_w))
    }

    /// The clock under a limit and a lock.
    pub(crate) fn clock_mhz(&self, limit_mw: u32, lock_mhz: u32) -> u32 {
        let free = self.free_clock_mhz(lock_mhz);
        let curve: Vec<_> = self.clock_curve.iter().map(|(mhz, w)| (*w, f64::from(*mhz))).collect();
        let afforded = linear(&curve, f64::from(self.enforced_mw(limit_mw)) / 1e3);
        afforded.map_or(free, |mhz| free.min(mhz.round() as u32))
    }

    /// The draw at a moment under a limit and a lock, of a board that is there. One that is not draws nothing.
    pub(crate) fn draw_mw(&self, at_ns: u64, limit_mw: u32, lock_mhz: u32) -> u32 {
        if !self.there() {
            0
        } else if self.idle {
            milli(self.idle_w)
        } else {
            self.demand_mw(at_ns, lock_mhz).min(self.enforced_mw(limit_mw))
        }
    }

    /// Why the clocks are what they are, unless the script says so itself: idle (1) or power cap (4).
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

    /// How long this call is to take.
    pub(crate) fn pause(&self, call: &str) -> Option<Duration> {
        let named = self.slow_calls.is_empty() || self.slow_calls.iter().any(|c| c == call);
        (self.slow_ms > 0 && named).then(|| Duration::from_millis(self.slow_ms))
    }

    /// Whether a write succeeds and changes nothing.
    pub(crate) fn ignores(&self, call: &str) -> bool {
        self.ignore_calls.iter().any(|c| c == call)
    }

    /// Domain, bus and device of the board's PCI address.
    pub(crate) fn pci(&self) -> Option<(u32, u32, u32)> {
        pci_address(&self.pci_bus_id)
    }
}

/// Reads `domain:bus:device.function`, with a domain of four or eight digits as both are in use.
pub(crate) fn pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, _function) = rest.split_once('.')?;
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    Some((hex(domain)?, hex(bus)?, hex(device)?))
}

/// Linear between points, flat beyond; `None` without points.
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
