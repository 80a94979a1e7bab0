//! The driver as seen by this process: the current script, the GPUs by slot, and the validity of handles.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::{
    codes::{GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, Outcome, UNKNOWN},
    gpu::{FakeGpu, Script},
    state::{State, tell_time_by, unix_ns},
    store::{Clients, Held, Stamp, StateFile, StateLock, complain, log_write},
};

/// The minimum interval between checks of the script's file.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The top bits of every handle. They make it an invalid address, so that a handle that is dereferenced crashes at
/// once, and an invented one is detected.
const HANDLE_MARK: u64 = 0xFA4E << 48;

#[derive(Debug)]
pub(crate) struct Driver {
    dir: PathBuf,
    pub(crate) script: Script,
    script_stamp: Stamp,
    script_is_settled: bool,
    next_look: Instant,
    /// A GPU keeps its slot for as long as the library is open, whatever the script contains.
    slots: Vec<Slot>,
    lock: StateLock,
    clients: Clients,
    /// The number of opens by this process without a close.
    pub(crate) opened: u32,
}

#[derive(Debug)]
struct Slot {
    gpu: FakeGpu,
    /// The GPU's number among those that are not removed.
    index: Option<u32>,
    file: StateFile,
    state: State,
}

impl Driver {
    /// Opens the directory; the error is one line.
    pub(crate) fn open() -> Result<Self, String> {
        let dir = env::var_os("FAKE_NVML_DIR").map(PathBuf::from).or_else(own_directory);
        let dir = dir.ok_or("FAKE_NVML_DIR is not set, and there is no boards.json beside this library")?;
        let clock = dir.join("clock");
        if clock.exists() {
            tell_time_by(clock);
        }
        let (script_stamp, script) = first_script(&dir)?;
        let open = |e: io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(dir.join("state")).map_err(open)?;
        let lock = StateLock::open(&dir).map_err(open)?;
        let clients = Clients::open(&dir).map_err(open)?;
        let mut driver = Self {
            script,
            script_is_settled: script_stamp.tells(),
            script_stamp,
            next_look: Instant::now() + LOOK_EVERY,
            slots: Vec::new(),
            lock: lock.clone(),
            clients,
            opened: 0,
            dir,
        };
        driver.seat();
        let held = lock.exclusive().map_err(|e| e.to_string())?;
        driver.settle(&held);
        // No process had the library open, perhaps because the last one was killed: the driver had unloaded by then.
        driver.unload_if_last(&held);
        driver.clients.enter().map_err(|e| e.to_string())?;
        Ok(driver)
    }

    pub(crate) fn close(mut self) {
        let Ok(held) = self.lock.clone().exclusive() else {
            return;
        };
        let _ = self.clients.leave();
        self.settle(&held);
        self.unload_if_last(&held);
    }

    fn unload_if_last(&mut self, _held: &Held) {
        if !self.script.persistence_lost_on_unload || !self.clients.none_in() {
            return;
        }
        let now = unix_ns();
        for slot in self.slots.iter_mut().filter(|s| !s.state.persistence) {
            slot.state.unload(&slot.gpu, now);
            save(slot);
        }
    }

    /// Detects a changed script, at most every five milliseconds.
    pub(crate) fn refresh(&mut self) -> Outcome<()> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK_EVERY;
        if self.script_changed() {
            let held = self.exclusive()?;
            self.settle(&held);
        }
        Ok(())
    }

    pub(crate) fn exclusive(&self) -> Outcome<Held> {
        self.lock.exclusive().map_err(|e| {
            complain(&format!("lock: {e}"));
            UNKNOWN
        })
    }

    fn script_changed(&self) -> bool {
        // A missing file counts as unchanged: the last script stays in force.
        Stamp::of(&script_path(&self.dir)).is_ok_and(|now| now != self.script_stamp || !self.script_is_settled)
    }

    /// Applies the script to the states. Under the lock, since a process with an older script must not undo the effects
    /// of a newer one.
    pub(crate) fn settle(&mut self, _held: &Held) {
        if self.script_changed() {
            self.reload();
        }
        for slot in &mut self.slots {
            let on_file = slot.file.load(&slot.gpu);
            let now = unix_ns();
            let mut state = on_file.unwrap_or_else(|| State::fresh(&slot.gpu, now));
            state.follow(&slot.gpu, now);
            slot.state = state;
            if on_file != Some(state) {
                save(slot);
            }
        }
    }

    fn reload(&mut self) {
        match read_script(&self.dir) {
            Ok((stamp, script)) => {
                self.script = script;
                self.script_stamp = stamp;
                self.script_is_settled = stamp.tells();
                self.seat();
            }
            Err(why) => {
                let stamp = Stamp::of(&script_path(&self.dir)).unwrap_or(self.script_stamp);
                self.script_stamp = stamp;
                // A file just written may be incomplete: it is read again at the next check, and only reported as wrong
                // once it has stopped changing.
                self.script_is_settled = stamp.tells();
                if self.script_is_settled {
                    complain(&format!("{why}; the last script stays in force"));
                }
            }
        }
    }

    /// Gives every GPU of the script its slot. A GPU that the script no longer lists counts as removed.
    fn seat(&mut self) {
        for slot in &mut self.slots {
            slot.gpu.removed = true;
            slot.index = None;
        }
        let mut index = 0..;
        for gpu in self.script.gpus.clone() {
            let at = match self.slots.iter().position(|s| s.gpu.uuid == gpu.uuid) {
                Some(at) => at,
                None => {
                    self.slots.push(Slot {
                        state: State::fresh(&gpu, unix_ns()),
                        file: StateFile::new(&self.dir, &gpu.uuid),
                        index: None,
                        gpu: gpu.clone(),
                    });
                    self.slots.len() - 1
                }
            };
            if let Some(slot) = self.slots.get_mut(at) {
                slot.index = if gpu.removed { None } else { index.next() };
                slot.gpu = gpu;
            }
        }
    }

    /// Returns the number of visible GPUs: lost ones count, removed ones do not.
    pub(crate) fn count(&self) -> u32 {
        self.slots.iter().filter(|s| s.index.is_some()).count() as u32
    }

    pub(crate) fn find(&self, wanted: impl Fn(u32, &FakeGpu) -> bool) -> Outcome<usize> {
        self.slots.iter().position(|s| s.index.is_some_and(|i| wanted(i, &s.gpu))).ok_or(NOT_FOUND)
    }

    pub(crate) fn gpu(&self, slot: usize) -> &FakeGpu {
        &self.slots[slot].gpu
    }

    pub(crate) fn state(&self, slot: usize) -> State {
        self.slots[slot].state
    }

    pub(crate) fn index(&self, slot: usize) -> Outcome<u32> {
        self.slots[slot].index.ok_or(GPU_IS_LOST)
    }

    /// Returns a handle for the GPU in its current generation; the next loss invalidates it.
    pub(crate) fn handle(&self, slot: usize) -> nvmlDevice_t {
        let generation = u64::from(self.state(slot).generation);
        let bits = HANDLE_MARK | (generation & 0xFFFF_FFFF) << 16 | slot as u64;
        std::ptr::without_provenance_mut(bits as usize)
    }

    /// Returns the slot and the generation of a handle.
    pub(crate) fn resolve(&self, device: nvmlDevice_t) -> Outcome<(usize, u32)> {
        let bits = device.addr() as u64;
        let slot = (bits & 0xFFFF) as usize;
        if bits & (0xFFFF << 48) != HANDLE_MARK || slot >= self.slots.len() {
            return Err(INVALID_ARGUMENT);
        }
        Ok((slot, (bits >> 16) as u32))
    }

    /// Loads other processes' changes of the GPU, and refuses one that is not present.
    pub(crate) fn meet(&mut self, slot: usize) -> Outcome<()> {
        let seat = &mut self.slots[slot];
        match seat.file.load(&seat.gpu) {
            Some(state) if state.agrees(&seat.gpu, unix_ns()) => seat.state = state,
            // Deleted or edited: its consequences are applied first.
            _ => {
                let held = self.exclusive()?;
                self.settle(&held);
            }
        }
        if self.gpu(slot).there() { Ok(()) } else { Err(GPU_IS_LOST) }
    }

    /// Returns the counter at a time without writers, so that every reader sees the same line.
    pub(crate) fn energy_mj(&mut self, slot: usize) -> Outcome<u64> {
        let _held = self.lock.shared().map_err(|_| UNKNOWN)?;
        let seat = &mut self.slots[slot];
        if let Some(state) = seat.file.load(&seat.gpu) {
            seat.state = state;
        }
        Ok(seat.state.counter_mj(seat.gpu.update_ms, unix_ns()))
    }

    /// Changes a GPU's state; the draw changes from now on.
    pub(crate) fn change(&mut self, slot: usize, _held: &Held, change: impl FnOnce(&mut State)) {
        let seat = &mut self.slots[slot];
        let before = seat.state;
        change(&mut seat.state);
        seat.state.follow(&seat.gpu, unix_ns());
        if seat.state != before {
            save(seat);
        }
    }

    pub(crate) fn log(&self, slot: Option<usize>, call: &str, args: &str, outcome: Outcome<()>) {
        let uuid = slot.map_or("-", |s| self.gpu(s).uuid.as_str());
        let code = outcome.err().unwrap_or_default();
        log_write(&self.dir, uuid, call, args, code);
    }
}

fn save(slot: &mut Slot) {
    if let Err(e) = slot.file.save(slot.state) {
        complain(&format!("state of {}: {e}", slot.gpu.uuid));
    }
}

/// Returns this library's directory, if it contains a script: the kernel knows the file of the loaded code.
fn own_directory() -> Option<PathBuf> {
    let here = own_directory as fn() -> Option<PathBuf> as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        (bound(from)?..bound(to)?).contains(&here).then(|| rest.find('/').map(|at| &rest[at..]))?
    })?;
    let dir = Path::new(path).parent()?.to_path_buf();
    script_path(&dir).exists().then_some(dir)
}

fn script_path(dir: &Path) -> PathBuf {
    dir.join("boards.json")
}

/// Reads the script at the start, when there is no earlier one to use while the file is being written.
fn first_script(dir: &Path) -> Result<(Stamp, Script), String> {
    loop {
        match read_script(dir) {
            Err(_) if Stamp::of(&script_path(dir)).is_ok_and(|s| !s.tells()) => thread::sleep(LOOK_EVERY),
            read => return read,
        }
    }
}

fn read_script(dir: &Path) -> Result<(Stamp, Script), String> {
    let path = script_path(dir);
    let say = |e: String| format!("{}: {e}", path.display());
    // The stamp first: if the file changes in between, the next check finds a newer one.
    let stamp = Stamp::of(&path).map_err(|e| say(e.to_string()))?;
    let text = fs::read_to_string(&path).map_err(|e| say(e.to_string()))?;
    let script = Script::parse(&text).map_err(say)?;
    Ok((stamp, script))
}
