//! RAPL's zones in the kernel's powercap files: which there are, and what their counters say.
//!
//! `/sys/class/powercap` holds links to all zones side by side (`intel-rapl:0`, `intel-rapl:0:1`), the directory behind
//! it the same as a tree; both are read. AMD's packages carry Intel's names. `intel-rapl-mmio` shows packages a second
//! time: of zones with the same name the first one counts, in the order of [`rank`].

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ZoneReading, Zones};
use wattune_core::domain::{DeviceId, DeviceKind};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Without a sign of change, zones are looked for this often.
const LOOK_EVERY: Seconds = Seconds::new(10.0);

/// Zones lie this deep below the root at the most: control type, package, subzone.
const DEEPEST: usize = 3;

/// The zones below one root.
#[derive(Debug)]
pub(super) struct Powercap {
    root: PathBuf,
    known: Vec<Known>,
    listed: Vec<String>,
    looked: Option<Monotonic>,
    problems: Vec<String>,
}

/// A zone that was found.
#[derive(Clone, Debug)]
struct Known {
    device: DeviceId,
    path: PathBuf,
    range_uj: Option<u64>,
}

/// A zone's directory by the kernel's name for it: "intel-rapl:0:1".
#[derive(Debug)]
struct Entry {
    id: String,
    path: PathBuf,
}

impl Powercap {
    pub(super) fn at(root: PathBuf) -> Self {
        Self { root, known: Vec::new(), listed: Vec::new(), looked: None, problems: Vec::new() }
    }

    /// Reads all counters. Zones are looked for anew when the root has other entries, when one could not be read, and
    /// every ten seconds.
    pub(super) fn read(&mut self, now: Monotonic) -> Zones {
        let listed = match names(&self.root) {
            Ok(listed) => listed,
            Err(error) => {
                (self.known, self.listed, self.looked) = (Vec::new(), Vec::new(), None);
                return Zones { readings: Vec::new(), problems: vec![self.unusable(&error)] };
            }
        };
        if listed != self.listed || self.looked.is_none_or(|at| now.since(at) >= LOOK_EVERY) {
            self.look();
            (self.listed, self.looked) = (listed, Some(now));
        }
        let readings: Vec<ZoneReading> = self.known.iter().map(Known::read).collect();
        if readings.iter().any(|zone| zone.counter_uj.is_err()) {
            self.looked = None;
        }
        // A directory that went away since it was found is no zone any more.
        let there = |zone: &ZoneReading| zone.counter_uj.is_ok() || Path::new(&zone.path).is_dir();
        Zones { readings: readings.into_iter().filter(there).collect(), problems: self.problems.clone() }
    }

    fn unusable(&self, error: &io::Error) -> String {
        let root = self.root.display();
        match error.kind() {
            ErrorKind::NotFound => format!(
                "{root} is not there: this kernel has no powercap (module intel_rapl_msr, CONFIG_POWERCAP), or this is a \
                 virtual machine or a container that does not show it; in a container, mount the host's \
                 /sys/devices/virtual/powercap and set cpu.powercap_root"
            ),
            ErrorKind::NotADirectory => format!("{root} is not a directory; set cpu.powercap_root to one"),
            _ => format!("{root} cannot be listed: {error}"),
        }
    }

    fn look(&mut self) {
        let mut entries = BTreeMap::new();
        collect(&self.root, DEEPEST, &mut entries);
        let mut entries: Vec<Entry> = entries.into_iter().map(|(id, path)| Entry { id, path }).collect();
        entries.sort_by(|a, b| rank(&a.id).cmp(&rank(&b.id)).then_with(|| natural(&a.id).cmp(&natural(&b.id))));
        (self.known, self.problems) = (Vec::new(), Vec::new());
        let named: BTreeMap<String, Result<String, String>> =
            entries.iter().map(|e| (e.id.clone(), read_text(&e.path.join("name")))).collect();
        let mut psys = false;
        for entry in &entries {
            match named.get(&entry.id) {
                Some(Ok(name)) => {
                    psys |= name == "psys";
                    self.take(entry, name, &named);
                }
                Some(Err(problem)) => self.problems.push(problem.clone()),
                None => {}
            }
        }
        self.known.sort_by(|a, b| {
            (a.device.kind(), natural(a.device.as_str())).cmp(&(b.device.kind(), natural(b.device.as_str())))
        });
        if self.known.is_empty() && self.problems.is_empty() {
            let seen = if psys { "; psys is the whole platform, which is not booked as a CPU" } else { "" };
            self.problems.push(format!(
                "{} has no CPU package{seen}: RAPL needs the module intel_rapl_msr and a processor that has it; virtual \
                 machines do not, and Docker hides it (mount the host's /sys/devices/virtual/powercap and set \
                 cpu.powercap_root)",
                self.root.display()
            ));
        }
    }

    fn take(&mut self, entry: &Entry, name: &str, named: &BTreeMap<String, Result<String, String>>) {
        let kind = match name {
            "dram" => DeviceKind::Dram,
            name if name.starts_with("package") => DeviceKind::Cpu,
            _ => return,
        };
        // Memory goes by its package; while that is going or coming, it is nobody's.
        if entry.id.rsplit_once(':').is_some_and(|(parent, _)| parent.contains(':') && !named.contains_key(parent)) {
            return;
        }
        let parent = || named.get(entry.id.rsplit_once(':')?.0)?.as_ref().ok().filter(|p| p.starts_with("package"));
        let package = match kind {
            DeviceKind::Dram => parent().map_or("node", String::as_str),
            _ => name,
        };
        let Ok(device) = DeviceId::of_package(package, kind) else {
            self.problems.push(format!("{}/name holds {name:?}, which is no zone's name", entry.path.display()));
            return;
        };
        if let Some(first) = self.known.iter().find(|known| known.device == device) {
            // Another control type shows the same package again; the same one does not.
            let of_type = |path: &Path| path.file_name()?.to_str()?.split(':').next().map(str::to_owned);
            if of_type(&first.path) == of_type(&entry.path) {
                let (counted, left) = (first.path.display(), entry.path.display());
                self.problems.push(format!("{left} has the name of {counted}, {name:?}: only that one is read"));
            }
            return;
        }
        let range = entry.path.join("max_energy_range_uj");
        let range_uj = match read_number(&range) {
            Ok(range) if range > 0 => Some(range),
            Ok(_) => {
                self.problems.push(format!("{} holds 0; turns of the counter count as resets", range.display()));
                None
            }
            Err(problem) => {
                self.problems.push(format!("{problem}; turns of the counter count as resets"));
                None
            }
        };
        self.known.push(Known { device, path: entry.path.clone(), range_uj });
    }
}

impl Known {
    fn read(&self) -> ZoneReading {
        let file = self.path.join("energy_uj");
        let counter_uj = read_number(&file).and_then(|counter| match self.range_uj {
            Some(range) if counter > range => {
                Err(format!("{} holds {counter}, beyond its range of {range} µJ", file.display()))
            }
            _ => Ok(counter),
        });
        ZoneReading {
            device: self.device.clone(),
            path: self.path.display().to_string(),
            counter_uj,
            range_uj: self.range_uj,
        }
    }
}

/// Which of two zones of the same name counts: the kernel's own, then others, and those of the memory-mapped registers last.
fn rank(id: &str) -> u8 {
    match id.split(':').next() {
        Some("intel-rapl") => 0,
        Some(kind) if kind.ends_with("-mmio") => 2,
        _ => 1,
    }
}

/// So that package-10 comes after package-9.
fn natural(name: &str) -> (usize, &str) {
    (name.len(), name)
}

/// Directories whose names have a colon are zones; others may be control types with zones in them.
fn collect(dir: &Path, depth: usize, found: &mut BTreeMap<String, PathBuf>) {
    let Ok(entries) = names(dir) else { return };
    for id in entries {
        let path = dir.join(&id);
        let is_zone = id.contains(':');
        // Below a zone, only zones are of interest: `subsystem` and `device` lead back up.
        if !is_zone && depth < DEEPEST {
            continue;
        }
        if !path.is_dir() {
            continue;
        }
        // Energy is what makes it a zone: other kinds of powercap (idle injection) only limit.
        if is_zone && (path.join("energy_uj").symlink_metadata().is_ok() || path.join("name").exists()) {
            found.entry(id.clone()).or_insert_with(|| path.clone());
        }
        if depth > 1 {
            collect(&path, depth - 1, found);
        }
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn read_text(path: &Path) -> Result<String, String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn read_number(path: &Path) -> Result<u64, String> {
    let text = read_text(path)?;
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        format!("{} holds {shown:?}, not a count of microjoules", path.display())
    })
}

/// Which file, who may read it, and what to do.
fn unreadable(path: &Path, error: &io::Error) -> String {
    let file = path.display();
    if error.kind() != ErrorKind::PermissionDenied {
        return format!("{file} cannot be read: {error}");
    }
    let who = match std::fs::metadata(path) {
        Ok(meta) => {
            let owner = if meta.uid() == 0 { "root".to_owned() } else { format!("user {}", meta.uid()) };
            format!(" (mode {:04o}, of {owner})", meta.permissions().mode() & 0o7777)
        }
        Err(_) => String::new(),
    };
    format!(
        "{file} may not be read{who}: since Linux 5.10 only root may; run the daemon as root, or with CAP_DAC_READ_SEARCH, or \
         let its group read the file (chgrp and chmod g+r, again after each boot, by a udev rule or a tmpfiles.d line)"
    )
}
