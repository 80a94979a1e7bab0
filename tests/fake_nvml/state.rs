//! The driver's state of one GPU, and the energy that follows from it.
//!
//! The state is a straight line: the energy at one time and the draw since. Nothing is written while the draw is
//! constant, and every process that reads the line at one time gets the same energy.

use std::{
    fs,
    path::PathBuf,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::gpu::FakeGpu;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) limit_mw: u32,
    /// The clock lock; 0 without one.
    pub(crate) lock_mhz: u32,
    /// The lock of the memory's clocks; 0 without one.
    pub(crate) memory_lock_mhz: u32,
    pub(crate) persistence: bool,
    energy_uj: u64,
    /// The energy that the counter showed before its resets: with it, `energy_uj` is the GPU's total energy.
    lost_uj: u64,
    since_unix_ns: u64,
    draw_mw: u32,
    /// The `energy_resets` of the script that the counter has applied.
    resets: u64,
    /// Increases with every loss, so that handles from before one are invalid after it.
    pub(crate) generation: u32,
    there: bool,
}

impl State {
    /// The state of a GPU that this driver has never seen.
    pub(crate) fn fresh(gpu: &FakeGpu, now_ns: u64) -> Self {
        let (limit_mw, lock_mhz) = (gpu.initial_mw(), gpu.initial_lock_mhz.unwrap_or(0));
        Self {
            limit_mw,
            lock_mhz,
            memory_lock_mhz: 0,
            persistence: gpu.persistence,
            energy_uj: (gpu.initial_energy_j * 1e6) as u64,
            lost_uj: 0,
            since_unix_ns: now_ns,
            draw_mw: gpu.draw_mw(now_ns, limit_mw, lock_mhz),
            resets: gpu.energy_resets,
            generation: 1,
            there: gpu.there(),
        }
    }

    /// Parses the file's text. Missing or invalid parts are as in a fresh GPU.
    pub(crate) fn parse(text: &str, fresh: Self) -> Self {
        let mut state = fresh;
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let value = value.trim();
            match key.trim() {
                "limit_mw" => set(&mut state.limit_mw, value),
                "lock_mhz" => set(&mut state.lock_mhz, value),
                "memory_lock_mhz" => set(&mut state.memory_lock_mhz, value),
                "persistence" => state.persistence = value == "1",
                "energy_uj" => set(&mut state.energy_uj, value),
                "lost_uj" => set(&mut state.lost_uj, value),
                "since_unix_ns" => set(&mut state.since_unix_ns, value),
                "draw_mw" => set(&mut state.draw_mw, value),
                "resets" => set(&mut state.resets, value),
                "generation" => set(&mut state.generation, value),
                "there" => state.there = value == "1",
                _ => {}
            }
        }
        state
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "limit_mw={}\nlock_mhz={}\nmemory_lock_mhz={}\npersistence={}\nenergy_uj={}\nlost_uj={}\nsince_unix_ns={}\ndraw_mw={}\nresets={}\n\
             generation={}\nthere={}\n",
            self.limit_mw,
            self.lock_mhz,
            self.memory_lock_mhz,
            u8::from(self.persistence),
            self.energy_uj,
            self.lost_uj,
            self.since_unix_ns,
            self.draw_mw,
            self.resets,
            self.generation,
            u8::from(self.there),
        )
    }

    /// Returns true if the state already matches the script at this time.
    pub(crate) fn agrees(&self, gpu: &FakeGpu, now_ns: u64) -> bool {
        gpu.change_after(self.since_unix_ns).is_none_or(|(at, _)| at > now_ns)
            && self.there == gpu.there()
            && self.resets == gpu.energy_resets
            && self.draw_mw == gpu.draw_mw(now_ns, self.limit_mw, self.lock_mhz)
    }

    /// Applies the script's timed changes since the last update, each at its own time.
    fn catch_up(&mut self, gpu: &FakeGpu, now_ns: u64) {
        while let Some((at, reset)) = gpu.change_after(self.since_unix_ns).filter(|(at, _)| *at <= now_ns) {
            self.energy_uj = self.energy_uj_at(at);
            self.since_unix_ns = at;
            if reset {
                self.forget_energy();
            }
            self.draw_mw = gpu.draw_mw(at, self.limit_mw, self.lock_mhz);
        }
    }

    fn forget_energy(&mut self) {
        self.lost_uj += std::mem::take(&mut self.energy_uj);
    }

    /// Applies the script to the state: the old draw holds until now, the new one from now on.
    pub(crate) fn follow(&mut self, gpu: &FakeGpu, now_ns: u64) {
        self.catch_up(gpu, now_ns);
        if self.agrees(gpu, now_ns) {
            return;
        }
        self.energy_uj = self.energy_uj_at(now_ns);
        self.since_unix_ns = now_ns;
        if gpu.energy_resets > self.resets {
            self.forget_energy();
        }
        self.resets = gpu.energy_resets;
        match (self.there, gpu.there()) {
            // A GPU that was lost or reset has no lock.
            (true, false) => {
                self.generation += 1;
                (self.lock_mhz, self.memory_lock_mhz) = (0, 0);
            }
            (false, true) if gpu.back_with_default_limit => self.limit_mw = gpu.default_mw(),
            _ => {}
        }
        self.there = gpu.there();
        self.draw_mw = gpu.draw_mw(now_ns, self.limit_mw, self.lock_mhz);
    }

    /// Unloads the driver from the GPU: the limit is the default again and the counter is reset.
    pub(crate) fn unload(&mut self, gpu: &FakeGpu, now_ns: u64) {
        self.limit_mw = gpu.default_mw();
        (self.lock_mhz, self.memory_lock_mhz) = (0, 0);
        self.energy_uj = self.energy_uj_at(now_ns);
        self.forget_energy();
        self.since_unix_ns = now_ns;
        self.draw_mw = gpu.draw_mw(now_ns, self.limit_mw, self.lock_mhz);
    }

    /// Returns the counter as the GPU shows it: refreshed every `update_ms`, and whenever the draw changes.
    pub(crate) fn counter_mj(&self, update_ms: u64, now_ns: u64) -> u64 {
        let step_ns = update_ms.saturating_mul(1_000_000).max(1);
        let refreshed_ns = (now_ns - now_ns % step_ns).max(self.since_unix_ns);
        self.energy_uj_at(refreshed_ns.min(now_ns.max(self.since_unix_ns))) / 1000
    }

    /// Returns a sensor's reading of the draw. The noise depends on the GPU and the time only, so it is reproducible.
    pub(crate) fn power_mw(&self, gpu: &FakeGpu, now_ns: u64) -> u32 {
        if gpu.noise == 0.0 {
            return self.draw_mw;
        }
        let moment = now_ns / gpu.update_ms.saturating_mul(1_000_000).max(1);
        let swing = 2.0 * unit(&gpu.uuid, moment) - 1.0;
        (f64::from(self.draw_mw) * (1.0 + gpu.noise * swing)).round().max(0.0) as u32
    }

    pub(crate) fn average_mw(&self) -> u32 {
        self.draw_mw
    }

    fn energy_uj_at(&self, at_ns: u64) -> u64 {
        // A clock that was set back must not reduce the energy.
        let held_ns = at_ns.saturating_sub(self.since_unix_ns);
        let grown = u128::from(self.draw_mw) * u128::from(held_ns) / 1_000_000;
        self.energy_uj + grown as u64
    }
}

fn set<T: std::str::FromStr>(field: &mut T, value: &str) {
    if let Ok(value) = value.parse() {
        *field = value;
    }
}

/// Returns a number in 0..1 from a name and a time (FNV-1a over both, then SplitMix64's finaliser).
fn unit(name: &str, moment: u64) -> f64 {
    let bytes = name.bytes().chain(moment.to_le_bytes());
    let mut x = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The file with the fake time, in nanoseconds since 1970.
static TOLD: OnceLock<PathBuf> = OnceLock::new();

/// Uses this file's time from now on.
pub(crate) fn tell_time_by(file: PathBuf) {
    // Only the first directory that a process opens counts.
    let _ = TOLD.set(file);
}

/// Returns the GPUs' time.
pub(crate) fn unix_ns() -> u64 {
    let reported = TOLD.get().and_then(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    reported.unwrap_or_else(machine_ns)
}

/// CLOCK_REALTIME: the only clock that has the same meaning in another process.
pub(crate) fn machine_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
