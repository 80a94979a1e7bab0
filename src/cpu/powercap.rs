//! Reads the energy counters of RAPL zones from the kernel's powercap files.
//!
//! `/sys/class/powercap` links to all zones side by side (`intel-rapl:0`, `intel-rapl:0:1`); the directory behind it
//! holds the same zones as a tree. Both layouts are read. AMD packages use Intel's names too. `intel-rapl-mmio` lists
//! packages a second time: of zones with the same name, the first in the order of [`rank`] is used.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ZoneReading, Zones};
use wattune_core::domain::{DeviceId, DeviceKind};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// The longest interval between searches for zones.
const SEARCH_EVERY: Seconds = Seconds::new(10.0);

/// The depth of zones below the root: control type, package, subzone.
const MAX_DEPTH: usize = 3;

#[derive(Debug)]
pub(super) struct Powercap {
    root: PathBuf,
    zones: Vec<Zone>,
    listed: Vec<String>,
    searched: Option<Monotonic>,
    problems: Vec<String>,
}

#[derive(Clone, Debug)]
struct Zone {
    device: DeviceId,
    path: PathBuf,
    range_uj: Option<u64>,
}

/// A zone's directory and the kernel's name of the zone, such as "intel-rapl:0:1".
#[derive(Debug)]
struct Entry {
    id: String,
    path: PathBuf,
}

impl Powercap {
    pub(super) fn at(root: PathBuf) -> Self {
        Self { root, zones: Vec::new(), listed: Vec::new(), searched: None, problems: Vec::new() }
    }

    /// Reads the counters of all known zones. Searches for zones first if the entries of the root directory changed, if
    /// a zone could not be read last time, or if the last search was ten seconds ago.
    pub(super) fn read(&mut self, now: Monotonic) -> Zones {
        let listed = match names(&self.root) {
            Ok(listed) => listed,
            Err(error) => {
                (self.zones, self.listed, self.searched) = (Vec::new(), Vec::new(), None);
                return Zones { readings: Vec::new(), problems: vec![self.describe_root_error(&error)] };
            }
        };
        if listed != self.listed || self.searched.is_none_or(|at| now.since(at) >= SEARCH_EVERY) {
            self.search();
            (self.listed, self.searched) = (listed, Some(now));
        }
        let readings: Vec<ZoneReading> = self.zones.iter().map(Zone::read).collect();
        if readings.iter().any(|zone| zone.counter_uj.is_err()) {
            self.searched = None;
        }
        // A zone whose directory was removed is dropped.
        let is_present = |zone: &ZoneReading| zone.counter_uj.is_ok() || Path::new(&zone.path).is_dir();
        Zones { readings: readings.into_iter().filter(is_present).collect(), problems: self.problems.clone() }
    }

    fn describe_root_error(&self, error: &io::Error) -> String {
        let root = self.root.display();
        match error.kind() {
            ErrorKind::NotFound => format!(
                "{root} does not exist: this kernel has no powercap (module intel_rapl_msr, CONFIG_POWERCAP), or this is a \
                 virtual machine or a container that does not show it; in a container, mount the host's \
                 /sys/devices/virtual/powercap and set cpu.powercap_root"
            ),
            ErrorKind::NotADirectory => format!("{root} is not a directory; set cpu.powercap_root to one"),
            _ => format!("{root} cannot be listed: {error}"),
        }
    }

    fn search(&mut self) {
        let mut entries = BTreeMap::new();
        collect(&self.root, MAX_DEPTH, &mut entries);
        let mut entries: Vec<Entry> = entries.into_iter().map(|(id, path)| Entry { id, path }).collect();
        entries.sort_by(|a, b| rank(&a.id).cmp(&rank(&b.id)).then_with(|| natural(&a.id).cmp(&natural(&b.id))));
        (self.zones, self.problems) = (Vec::new(), Vec::new());
        let named: BTreeMap<String, Result<String, String>> =
            entries.iter().map(|e| (e.id.clone(), read_text(&e.path.join("name")))).collect();
        let mut psys = false;
        for entry in &entries {
            match named.get(&entry.id) {
                Some(Ok(name)) => {
                    psys |= name == "psys";
                    self.add(entry, name, &named);
                }
                Some(Err(problem)) => self.problems.push(problem.clone()),
                None => {}
            }
        }
        self.zones.sort_by(|a, b| {
            (a.device.kind(), natural(a.device.as_str())).cmp(&(b.device.kind(), natural(b.device.as_str())))
        });
        if self.zones.is_empty() && self.problems.is_empty() {
            let seen = if psys { "; psys is the whole platform, which is not recorded as a CPU" } else { "" };
            self.problems.push(format!(
                "{} has no CPU package{seen}: RAPL needs the module intel_rapl_msr and a processor that has it; virtual \
                 machines do not, and Docker hides it (mount the host's /sys/devices/virtual/powercap and set \
                 cpu.powercap_root)",
                self.root.display()
            ));
        }
    }

    fn add(&mut self, entry: &Entry, name: &str, named: &BTreeMap<String, Result<String, String>>) {
        let kind = match name {
            "dram" => DeviceKind::Dram,
            name if name.starts_with("package") => DeviceKind::Cpu,
            _ => return,
        };
        // A zone inside another one, such as memory, is read only if the outer zone was found.
        if entry.id.rsplit_once(':').is_some_and(|(parent, _)| parent.contains(':') && !named.contains_key(parent)) {
            return;
        }
        let parent = || named.get(entry.id.rsplit_once(':')?.0)?.as_ref().ok().filter(|p| p.starts_with("package"));
        let package = match kind {
            DeviceKind::Dram => parent().map_or("node", String::as_str),
            _ => name,
        };
        let Ok(device) = DeviceId::of_package(package, kind) else {
            self.problems
                .push(format!("{}/name holds {name:?}, which is not the name of a zone", entry.path.display()));
            return;
        };
        if let Some(first) = self.zones.iter().find(|zone| zone.device == device) {
            // Another control type may list the same package again; two packages of one name within a control type are
            // a problem.
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
                self.problems.push(format!("{} holds 0; a wrap of the counter counts as a reset", range.display()));
                None
            }
            Err(problem) => {
                self.problems.push(format!("{problem}; a wrap of the counter counts as a reset"));
                None
            }
        };
        self.zones.push(Zone { device, path: entry.path.clone(), range_uj });
    }
}

impl Zone {
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

/// Ranks zones of the same name, lowest first: `intel-rapl`, then others, then memory-mapped registers (`-mmio`).
fn rank(id: &str) -> u8 {
    match id.split(':').next() {
        Some("intel-rapl") => 0,
        Some(kind) if kind.ends_with("-mmio") => 2,
        _ => 1,
    }
}

/// Returns a sort key that places package-10 after package-9.
fn natural(name: &str) -> (usize, &str) {
    (name.len(), name)
}

/// Collects zones: directories whose names have a colon. Other directories may be control types with zones inside.
fn collect(dir: &Path, depth: usize, found: &mut BTreeMap<String, PathBuf>) {
    let Ok(entries) = names(dir) else { return };
    for id in entries {
        let path = dir.join(&id);
        let is_zone = id.contains(':');
        // Below the top level only zones matter: the links `subsystem` and `device` lead back up.
        if !is_zone && depth < MAX_DEPTH {
            continue;
        }
        if !path.is_dir() {
            continue;
        }
        // Only zones with energy or a name count: other kinds of powercap zones (idle injection) can only limit power.
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
        Err(error) => Err(describe_unreadable(path, &error)),
    }
}

fn read_number(path: &Path) -> Result<u64, String> {
    let text = read_text(path)?;
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        format!("{} holds {shown:?}, not a count of microjoules", path.display())
    })
}

/// Describes an unreadable file: its owner, its mode and the remedy.
fn describe_unreadable(path: &Path, error: &io::Error) -> String {
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
