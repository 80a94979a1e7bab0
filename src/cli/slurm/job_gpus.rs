//! The GPUs in `SLURM_JOB_GPUS`, by the same rules in all commands; the Python client follows them, too
//! (`clients/python/src/wattune/_gpus.py`).
//!
//! - The variable is a list of numbers and ranges, such as `0,2-3`. Other text names no GPU.
//! - A number is that of a device file: 3 is `/dev/nvidia3`. The driver says which GPU has that file; its index may be
//!   another. Only where the driver does not list the file, the number is taken for the index.

use std::collections::BTreeMap;
use std::path::Path;

/// The variable with the GPUs of a job.
pub(in crate::cli) const VARIABLE: &str = "SLURM_JOB_GPUS";

/// The directory in which the driver lists its GPUs.
pub(in crate::cli) const DRIVER_LIST: &str = "/proc/driver/nvidia/gpus";

/// Maximum number of GPUs of a node; a range with more is a mistake.
const MOST: u32 = 1024;

/// Parses the variable's value; returns the device numbers in order, each once.
pub(in crate::cli) fn device_numbers(text: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if last >= MOST || first > last {
            return None;
        }
        found.extend(first..=last);
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Returns the UUIDs of the GPUs in the driver's list, by device number.
pub(in crate::cli) fn uuids(driver_list: &Path) -> BTreeMap<u32, String> {
    let Ok(entries) = std::fs::read_dir(driver_list) else { return BTreeMap::new() };
    let one = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("information")).ok()?;
        let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim()));
        // The driver shows question marks before it has initialised a GPU.
        let uuid = field("GPU UUID").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?'))?;
        Some((field("Device Minor")?.parse().ok()?, uuid.to_owned()))
    };
    entries.flatten().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_are_read() {
        for (text, expected) in [
            ("0", Some(vec![0])),
            ("1,0", Some(vec![0, 1])),
            ("0,2-4", Some(vec![0, 2, 3, 4])),
            ("1-2, 2", Some(vec![1, 2])),
            ("", None),
            ("0,", None),
            ("3-1", None),
            ("0-99999", None),
            ("GPU-1", None),
            ("gpu:0", None),
        ] {
            assert_eq!(device_numbers(text), expected, "{text}");
        }
    }

    #[test]
    fn the_driver_knows_gpus_by_their_device_numbers() {
        let list = tempfile::tempdir().expect("a directory");
        for (pci, uuid, minor) in
            [("0000:01:00.0", "GPU-b", "1"), ("0000:02:00.0", "GPU-a", "0"), ("0000:03:00.0", "GPU-????", "2")]
        {
            let dir = list.path().join(pci);
            std::fs::create_dir(&dir).expect("made");
            let text = format!("Model: \t\t A40\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
            std::fs::write(dir.join("information"), text).expect("written");
        }
        let expected = BTreeMap::from([(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())]);
        assert_eq!(uuids(list.path()), expected);
        assert!(uuids(&list.path().join("absent")).is_empty());
    }
}
