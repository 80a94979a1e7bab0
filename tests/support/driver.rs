//! The fake `libnvidia-ml.so.1` (see `tests/fake_nvml`): its script, its memory and its log of writes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One directory of the fake driver.
pub(crate) struct FakeDriver {
    dir: tempfile::TempDir,
    gpus: std::sync::Mutex<Vec<Value>>,
}

/// A line of the driver's log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) at: f64,
    pub(crate) uuid: String,
    pub(crate) call: String,
    pub(crate) argument: String,
    pub(crate) code: i32,
}

impl FakeDriver {
    /// A driver with these GPUs (fields as in `tests/fake_nvml/README.md`).
    pub(crate) fn new(gpus: &[Value]) -> Self {
        let driver =
            Self { dir: tempfile::tempdir().expect("a directory"), gpus: std::sync::Mutex::new(gpus.to_vec()) };
        driver.write_script();
        driver
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Changes fields of one GPU.
    pub(crate) fn set(&self, gpu: usize, fields: Value) {
        {
            let mut gpus = self.gpus.lock().expect("not poisoned");
            let target = gpus[gpu].as_object_mut().expect("an object");
            target.extend(fields.as_object().expect("an object").clone());
        }
        self.write_script();
    }

    fn write_script(&self) {
        let gpus = self.gpus.lock().expect("not poisoned");
        let next = self.dir.path().join("boards.json.new");
        std::fs::write(&next, json!({ "boards": *gpus }).to_string()).expect("written");
        std::fs::rename(next, self.dir.path().join("boards.json")).expect("renamed");
    }

    pub(crate) fn uuid(gpu: usize) -> String {
        format!("GPU-00000000-0000-0000-0000-{gpu:012}")
    }

    fn memory(&self, gpu: usize) -> std::collections::HashMap<String, String> {
        let path = self.dir.path().join("state").join(format!("{}.txt", Self::uuid(gpu)));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn number(&self, gpu: usize, key: &str) -> Option<f64> {
        self.memory(gpu).get(key)?.parse().ok()
    }

    /// The GPU's requested limit in watts.
    pub(crate) fn limit_w(&self, gpu: usize) -> Option<f64> {
        Some(self.number(gpu, "limit_mw")? / 1e3)
    }

    /// What the GPU's clocks are locked to, in MHz; 0 where they are not.
    pub(crate) fn lock_mhz(&self, gpu: usize) -> Option<f64> {
        self.number(gpu, "lock_mhz")
    }

    /// What the GPU's counter shows now, in joules.
    pub(crate) fn counter_j(&self, gpu: usize) -> f64 {
        let now = super::now().timestamp_nanos_opt().expect("this century") as f64;
        let get = |key| self.number(gpu, key).expect("known");
        get("energy_uj") / 1e6 + get("draw_mw") / 1e3 * (now - get("since_unix_ns")) / 1e9
    }

    /// All that the GPU ever used, in joules: what its counter shows, and what it forgot.
    pub(crate) fn used_j(&self, gpu: usize) -> f64 {
        self.counter_j(gpu) + self.number(gpu, "lost_uj").expect("known") / 1e6
    }

    /// Sets the limit behind wattune's back, as another tool would.
    pub(crate) fn set_limit_as_somebody_else(&self, gpu: usize, watts: u32) {
        self.remember(gpu, "limit_mw", watts * 1000);
    }

    /// Has the energy counter jump forward by `joules` that were never used.
    pub(crate) fn jump_counter(&self, gpu: usize, joules: u64) {
        let counter = self.number(gpu, "energy_uj").expect("known") as u64;
        self.remember(gpu, "energy_uj", counter + joules * 1_000_000);
    }

    /// Locks the clocks behind wattune's back; 0 unlocks them.
    pub(crate) fn lock_as_somebody_else(&self, gpu: usize, mhz: u32) {
        self.remember(gpu, "lock_mhz", mhz);
    }

    fn remember(&self, gpu: usize, key: &str, value: impl std::fmt::Display) {
        // The library reads and writes under this lock.
        let lock = std::fs::File::create(self.dir.path().join("lock")).expect("opens");
        lock.lock().expect("locked");
        let path = self.dir.path().join("state").join(format!("{}.txt", Self::uuid(gpu)));
        let text = std::fs::read_to_string(&path).expect("readable");
        let line = |l: &str| match l.split_once('=') {
            Some((k, _)) if k == key => format!("{key}={value}\n"),
            _ => format!("{l}\n"),
        };
        let next = path.with_extension("new");
        std::fs::write(&next, text.lines().map(line).collect::<String>()).expect("written");
        std::fs::rename(next, path).expect("renamed");
    }

    /// Every write call so far, oldest first.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let text = std::fs::read_to_string(self.dir.path().join("writes.log")).unwrap_or_default();
        text.lines().map(parse).collect()
    }

    /// The limits written to a GPU so far, in watts, oldest first; refused writes are left out.
    pub(crate) fn limits_written(&self, gpu: usize) -> Vec<f64> {
        let uuid = Self::uuid(gpu);
        let limits = self
            .writes()
            .into_iter()
            .filter(|w| w.uuid == uuid && w.call == "nvmlDeviceSetPowerManagementLimit" && w.code == 0);
        limits.map(|w| w.argument.parse::<f64>().expect("milliwatts") / 1e3).collect()
    }

    /// The writes to a GPU's clocks so far, oldest first: the highest clock of a lock, 0 for its end. Refused ones are
    /// left out.
    pub(crate) fn locks_written(&self, gpu: usize) -> Vec<u32> {
        let uuid = Self::uuid(gpu);
        let lock = |w: Write| match w.call.as_str() {
            "nvmlDeviceSetGpuLockedClocks" => w.argument.split_once(',').map(|(_, max)| max.parse().expect("a clock")),
            "nvmlDeviceResetGpuLockedClocks" => Some(0),
            _ => None,
        };
        self.writes().into_iter().filter(|w| w.uuid == uuid && w.code == 0).filter_map(lock).collect()
    }

    /// The library that the tests' build made.
    pub(crate) fn library() -> PathBuf {
        // The test runs from target/<profile>/deps; the cdylib lies beside it in examples.
        let test = std::env::current_exe().expect("known");
        let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
        let library = profile.join("examples/libfake_nvml.so");
        assert!(library.exists(), "no {}; run `cargo build --examples` first", library.display());
        library
    }

    /// An older driver: a copy of the library in this driver's directory that lacks some functions.
    pub(crate) fn library_without(&self, symbols: &[&str]) -> PathBuf {
        let mut bytes = std::fs::read(Self::library()).expect("readable");
        for symbol in symbols {
            let name = format!("{symbol}\0").into_bytes();
            let places: Vec<usize> =
                (0..bytes.len() - name.len()).filter(|&i| bytes[i..i + name.len()] == name).collect();
            assert!(!places.is_empty(), "the library has no {symbol}");
            for place in places {
                bytes[place] = b'x';
            }
        }
        let path = self.dir.path().join("libnvidia-ml-old.so");
        std::fs::write(&path, bytes).expect("written");
        path
    }
}

/// `<unix seconds> pid=<pid> <uuid> <call> <arguments> -> <code>`
fn parse(line: &str) -> Write {
    let (head, code) = line.rsplit_once(" -> ").expect("a code");
    let mut words = head.split(' ');
    let mut next = || words.next().expect("a word").to_owned();
    let (at, _pid, uuid, call) = (next(), next(), next(), next());
    Write {
        at: at.parse().expect("seconds"),
        uuid,
        call,
        argument: words.collect::<Vec<_>>().join(" "),
        code: code.trim().parse().expect("a code"),
    }
}
