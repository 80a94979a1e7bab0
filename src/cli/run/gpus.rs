//! Finds the GPUs of a command by its environment, as CUDA, containers and Slurm describe them.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::Path;

use serde::Deserialize;

use super::ranks::Ranks;
use crate::cli::slurm::job_gpus;

/// GPU as the daemon lists it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Gpu {
    pub(super) index: u32,
    pub(super) uuid: String,
    pub(super) pci_bus_id: Option<String>,
    pub(super) model: String,
}

/// GPUs of the command, as its environment describes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Visible {
    /// `CUDA_VISIBLE_DEVICES`.
    pub(super) cuda: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub(super) order: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`, with which container runtimes choose GPUs.
    pub(super) container: Option<String>,
    /// `SLURM_JOB_GPUS`: the device numbers of the GPUs that Slurm gave to the job.
    pub(super) slurm: Option<String>,
    /// UUIDs of the GPUs that the driver lists, by device number.
    pub(super) devices: BTreeMap<u32, String>,
    /// PCI bus ids of the GPUs that the driver shows to this process; in a container, only the container's GPUs. Empty
    /// if unknown.
    pub(super) driver: Vec<String>,
    /// Place of this process among those of its training.
    pub(super) ranks: Ranks,
}

impl Visible {
    /// Reads the environment of this process, and the driver's files.
    pub(super) fn read() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self {
            cuda: variable("CUDA_VISIBLE_DEVICES"),
            order: variable("CUDA_DEVICE_ORDER"),
            container: variable("NVIDIA_VISIBLE_DEVICES"),
            slurm: variable(job_gpus::VARIABLE),
            devices: job_gpus::uuids(Path::new(job_gpus::DRIVER_LIST)),
            driver: shown_by_driver(Path::new("/")),
            ranks: Ranks::detect(variable),
        }
    }

    /// Returns the UUIDs of the command's GPUs, in the command's order; with those of the other processes of its
    /// training on this node.
    ///
    /// # Errors
    /// If the environment hides all GPUs, names unknown ones, or is ambiguous. The text says how to name them.
    pub(super) fn choose(&self, gpus: &[Gpu]) -> Result<Vec<String>, String> {
        let base = self.base(gpus)?;
        let is_ordered = self.is_in_cuda_order(&base) || self.names_begin_with("GPU-");
        let chosen = match self.cuda.as_deref() {
            None => base,
            Some(list) => self.cuda_devices(list.trim(), &base, gpus)?,
        };
        let chosen = self.of_all_ranks(chosen, is_ordered, gpus)?;
        match chosen.as_slice() {
            [] => Err("the daemon has no GPUs".into()),
            some => Ok(some.iter().map(|gpu| gpu.uuid.clone()).collect()),
        }
    }

    /// Returns the GPUs that the process can reach before `CUDA_VISIBLE_DEVICES` selects among them.
    fn base<'a>(&self, gpus: &'a [Gpu]) -> Result<Vec<&'a Gpu>, String> {
        let mut sorted: Vec<&Gpu> = gpus.iter().collect();
        sorted.sort_by_key(|gpu| gpu.index);
        if let Some(list) = self.container.as_deref().map(str::trim) {
            let named: Option<Vec<&Gpu>> = list.split(',').map(|name| find(name.trim(), gpus)).collect();
            if let Some(named) = named.filter(|named| !named.is_empty()) {
                return Ok(named);
            }
        }
        let shown =
            |gpu: &&Gpu| gpu.pci_bus_id.as_ref().is_some_and(|id| self.driver.iter().any(|d| is_same_bus(d, id)));
        let in_container: Vec<&Gpu> = sorted.iter().copied().filter(shown).collect();
        Ok(if in_container.is_empty() { sorted } else { in_container })
    }

    /// Returns the GPUs that `CUDA_VISIBLE_DEVICES` selects.
    fn cuda_devices<'a>(&self, list: &str, base: &[&'a Gpu], gpus: &'a [Gpu]) -> Result<Vec<&'a Gpu>, String> {
        // CUDA takes the entries up to the first invalid one.
        let entries: Vec<&str> = list.split(',').map(str::trim).take_while(|e| !e.is_empty() && *e != "-1").collect();
        if entries.is_empty() {
            return Err(format!("CUDA_VISIBLE_DEVICES={list:?} hides all GPUs"));
        }
        let indexes: Option<Vec<usize>> = entries.iter().map(|entry| entry.parse().ok()).collect();
        match indexes {
            Some(indexes) => self.by_index(&indexes, base, gpus),
            None => entries.iter().map(|entry| Self::by_name(entry, base, gpus)).collect(),
        }
    }

    /// Returns the GPU that an entry names. The newer names of MIG devices, `MIG-<UUID>`, do not say which GPU contains
    /// them: where the process reaches only one, it is that one.
    fn by_name<'a>(entry: &str, base: &[&'a Gpu], gpus: &'a [Gpu]) -> Result<&'a Gpu, String> {
        match (entry.starts_with("MIG-"), base) {
            (true, [only]) => Ok(only),
            _ => by_id(entry, gpus),
        }
    }

    fn by_index<'a>(&self, indexes: &[usize], base: &[&'a Gpu], gpus: &'a [Gpu]) -> Result<Vec<&'a Gpu>, String> {
        if let (Some(given), Some(list)) = (self.of_slurm_job(gpus), self.slurm.as_deref()) {
            return in_slurm(indexes, &given, list);
        }
        if indexes.len() != base.len() && !self.is_in_cuda_order(base) {
            return Err(
                "CUDA_VISIBLE_DEVICES has indexes, but this node's GPUs differ and CUDA numbers the fastest first; set \
                 CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs with --gpus"
                    .into(),
            );
        }
        let one = |index: &usize| {
            base.get(*index).copied().ok_or_else(|| {
                format!("CUDA_VISIBLE_DEVICES names GPU {index}, but the daemon has {} here; give --gpus", base.len())
            })
        };
        indexes.iter().map(one).collect()
    }

    /// Returns true if CUDA counts these GPUs by PCI bus id, as the daemon does.
    fn is_in_cuda_order(&self, base: &[&Gpu]) -> bool {
        let by_bus = self.order.as_deref().is_some_and(|order| order.trim() == "PCI_BUS_ID");
        by_bus || base.iter().all(|gpu| gpu.model == base[0].model)
    }

    /// Returns true if `CUDA_VISIBLE_DEVICES` has names that begin like this.
    fn names_begin_with(&self, beginning: &str) -> bool {
        self.cuda.as_deref().is_some_and(|list| list.trim().starts_with(beginning))
    }

    /// Returns the GPUs that Slurm gave to the job, by index; `None` if it names none, or others than the daemon's.
    fn of_slurm_job<'a>(&self, gpus: &'a [Gpu]) -> Option<Vec<&'a Gpu>> {
        let numbers = job_gpus::device_numbers(self.slurm.as_deref()?)?;
        let one = |number: &u32| match self.devices.get(number) {
            Some(uuid) => gpus.iter().find(|gpu| gpu.uuid == *uuid),
            None => gpus.iter().find(|gpu| gpu.index == *number),
        };
        let mut found: Vec<&Gpu> = numbers.iter().map(one).collect::<Option<_>>()?;
        found.sort_by_key(|gpu| gpu.index);
        Some(found)
    }

    /// Returns the GPUs of all processes of the training on this node, of which this one has `chosen`. Each is assumed
    /// to use the GPU of its local rank. `is_ordered` is true if the GPUs are in CUDA's order.
    fn of_all_ranks<'a>(
        &self,
        mut chosen: Vec<&'a Gpu>,
        is_ordered: bool,
        gpus: &'a [Gpu],
    ) -> Result<Vec<&'a Gpu>, String> {
        let processes = self.ranks.local_world.map_or(1, |processes| processes as usize);
        // The limit of a GPU of which only a slice is used is not this job's alone.
        if processes <= 1 || chosen.is_empty() || self.names_begin_with("MIG-") {
            return Ok(chosen);
        }
        let is_shared = !self.ranks.has_own_gpus;
        if is_shared && processes <= chosen.len() {
            if processes < chosen.len() && !is_ordered {
                return Err(format!(
                    "{processes} processes use some of {} GPUs that differ, and CUDA numbers the fastest first; set \
                     CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs with --gpus",
                    chosen.len()
                ));
            }
            chosen.truncate(processes);
            return Ok(chosen);
        }
        // Each process was given GPUs of its own: Slurm knows those of the others.
        let has_chosen = |all: &Vec<&Gpu>| chosen.iter().all(|one| all.iter().any(|gpu| gpu.uuid == one.uuid));
        match self.of_slurm_job(gpus).filter(has_chosen) {
            Some(all) => Ok(all),
            // Several processes share a GPU.
            None if gpus.len() == 1 || (is_shared && chosen.len() > 1) => Ok(chosen),
            None => Err(format!(
                "{processes} processes run on this node, and this one has {} of its GPUs; name the GPUs of all of them \
                 with --gpus",
                chosen.len()
            )),
        }
    }
}

/// Returns the PCI bus ids of the GPUs that the driver shows below `root`. In some containers it shows all GPUs of the
/// machine: those without a device file do not count, unless all are.
fn shown_by_driver(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let is_usable = |entry: &DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("information")).unwrap_or_default();
        let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
        minor.is_none_or(|minor| root.join(format!("dev/nvidia{}", minor.trim())).exists())
    };
    let bus_id = |entry: DirEntry| entry.file_name().into_string().ok();
    let (usable, others): (Vec<DirEntry>, Vec<DirEntry>) = entries.partition(is_usable);
    let shown = if usable.is_empty() { others } else { usable };
    shown.into_iter().filter_map(bus_id).collect()
}

/// Returns the GPUs of a task in a Slurm job that was `given` these GPUs. Slurm's indexes are the node's or, where
/// control groups hide the other GPUs, those among the job's own.
fn in_slurm<'a>(indexes: &[usize], given: &[&'a Gpu], list: &str) -> Result<Vec<&'a Gpu>, String> {
    let on_node: Option<Vec<&Gpu>> =
        indexes.iter().map(|index| given.iter().find(|gpu| gpu.index as usize == *index).copied()).collect();
    let of_job: Option<Vec<&Gpu>> = indexes.iter().map(|index| given.get(*index).copied()).collect();
    match (on_node, of_job) {
        (Some(a), Some(b)) if a.len() == given.len() || a.iter().zip(&b).all(|(a, b)| a.uuid == b.uuid) => Ok(a),
        (Some(_), Some(_)) => Err(format!(
            "CUDA_VISIBLE_DEVICES may count the node's GPUs or those of SLURM_JOB_GPUS={list}; name the GPUs with --gpus"
        )),
        (Some(found), None) | (None, Some(found)) => Ok(found),
        (None, None) => {
            Err(format!("CUDA_VISIBLE_DEVICES does not fit SLURM_JOB_GPUS={list}; name the GPUs with --gpus"))
        }
    }
}

/// Returns the GPU with this UUID or beginning of a UUID, or the one that contains this MIG device.
fn by_id<'a>(entry: &str, gpus: &'a [Gpu]) -> Result<&'a Gpu, String> {
    // The older names of MIG devices contain the UUID of the GPU: MIG-GPU-<UUID>/<GPU instance>/<compute instance>.
    let whole = entry.strip_prefix("MIG-").filter(|id| id.starts_with("GPU-")).and_then(|id| id.split('/').next());
    let name = whole.unwrap_or(entry);
    let mut found = gpus.iter().filter(|gpu| gpu.uuid.starts_with(name));
    match (found.next(), found.next()) {
        (Some(one), None) if name.len() > "GPU-".len() => Ok(one),
        (Some(_), Some(_)) => Err(format!("CUDA_VISIBLE_DEVICES names {entry}, which several GPUs' UUIDs begin with")),
        _ if entry.starts_with("MIG-") => {
            Err(format!("CUDA_VISIBLE_DEVICES names the MIG device {entry}; name the GPU that contains it with --gpus"))
        }
        _ => Err(format!(
            "CUDA_VISIBLE_DEVICES names {entry}, which the daemon does not have; name the GPUs with --gpus"
        )),
    }
}

/// Returns the GPU with this index of the node or this UUID.
fn find<'a>(name: &str, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
    match name.parse::<u32>() {
        Ok(index) => gpus.iter().find(|gpu| gpu.index == index),
        Err(_) => by_id(name, gpus).ok(),
    }
}

/// Returns whether two PCI bus ids, of which NVML writes the domain with 8 digits and the kernel with 4, are the same.
fn is_same_bus(a: &str, b: &str) -> bool {
    let short = |id: &str| id.to_ascii_lowercase().trim_start_matches('0').to_owned();
    short(a) == short(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(models: &[&str]) -> Vec<Gpu> {
        let one = |(index, model): (usize, &&str)| Gpu {
            index: index as u32,
            uuid: format!("GPU-{index}{index}aa"),
            pci_bus_id: Some(format!("00000000:{index}A:00.0")),
            model: (*model).to_owned(),
        };
        models.iter().enumerate().map(one).collect()
    }

    /// Returns the indexes of the chosen GPUs, or the error.
    fn chosen(visible: &Visible, gpus: &[Gpu]) -> Result<Vec<u32>, String> {
        let index = |uuid: &String| gpus.iter().find(|gpu| gpu.uuid == *uuid).expect("one of them").index;
        Ok(visible.choose(gpus)?.iter().map(index).collect())
    }

    #[test]
    fn the_environment_selects_gpus() {
        let four = gpus(&["A", "A", "A", "A"]);
        let cuda = |list: &str| Visible { cuda: Some(list.into()), ..Visible::default() };
        let slurm = |list: &str, cuda: &str| Visible {
            slurm: Some(list.into()),
            cuda: Some(cuda.into()),
            ..Visible::default()
        };
        let container = |list: &str, cuda: Option<&str>| Visible {
            container: Some(list.into()),
            cuda: cuda.map(Into::into),
            ..Visible::default()
        };
        let driver = Visible { driver: vec!["0000:1a:00.0".into(), "0000:3a:00.0".into()], ..cuda("1") };
        // /dev/nvidia0 and /dev/nvidia1 are the last two GPUs of the daemon.
        let minors = BTreeMap::from([(0, "GPU-33aa"), (1, "GPU-22aa"), (2, "GPU-00aa"), (3, "GPU-11aa")]);
        let devices = |visible: Visible| Visible {
            devices: minors.iter().map(|(minor, uuid)| (*minor, (*uuid).to_owned())).collect(),
            ..visible
        };
        let table: [(Visible, &[u32]); 19] = [
            (Visible::default(), &[0, 1, 2, 3]),
            (cuda("2"), &[2]),
            (cuda(" 3, 1 "), &[3, 1]),
            (cuda("1,-1,2"), &[1]),
            (cuda("GPU-22aa"), &[2]),
            (cuda("GPU-2"), &[2]),
            (cuda("MIG-GPU-33aa/7/0"), &[3]),
            (container("GPU-33aa,GPU-11aa", None), &[3, 1]),
            (container("GPU-33aa,GPU-11aa", Some("1")), &[1]),
            (container("all", Some("1")), &[1]),
            (driver, &[3]),
            (slurm("2,3", "2,3"), &[2, 3]),
            (slurm("2,3", "0,1"), &[2, 3]),
            (slurm("0,1,2", "1"), &[1]),
            (slurm("2-3", "1"), &[3]),
            // What is no list, or names other GPUs than the daemon's, names none.
            (slurm("MIG-1,2", "0"), &[0]),
            (slurm("2-9", "0"), &[0]),
            (devices(slurm("0", "0")), &[3]),
            (devices(slurm("0,2", "1")), &[3]),
        ];
        for (visible, expected) in table {
            assert_eq!(chosen(&visible, &four).as_deref(), Ok(expected), "{visible:?}");
        }
    }

    #[test]
    fn the_job_has_the_gpus_of_all_processes() {
        let of = |processes: u32, cuda: Option<&str>, slurm: Option<&str>| Visible {
            cuda: cuda.map(Into::into),
            slurm: slurm.map(Into::into),
            ranks: Ranks { local_world: Some(processes), ..Ranks::default() },
            ..Visible::default()
        };
        let own = |visible: Visible| Visible { ranks: Ranks { has_own_gpus: true, ..visible.ranks }, ..visible };
        let unknown = |visible: Visible| Visible { ranks: Ranks { local_world: None, ..visible.ranks }, ..visible };
        let (four, mixed) = (gpus(&["A", "A", "A", "A"]), gpus(&["A", "B", "A"]));
        type Expected<'a> = Result<&'a [u32], &'a str>;
        let table: [(Visible, &[Gpu], Expected<'_>); 13] = [
            // torchrun: every process sees all GPUs and takes that of its local rank.
            (of(2, None, None), &four, Ok(&[0, 1])),
            (of(2, Some("3,2,1"), None), &four, Ok(&[3, 2])),
            (unknown(of(2, None, None)), &four, Ok(&[0, 1, 2, 3])),
            (of(2, None, None), &mixed, Err("CUDA_DEVICE_ORDER=PCI_BUS_ID")),
            (of(2, Some("GPU-11aa,GPU-22aa,GPU-00aa"), None), &mixed, Ok(&[1, 2])),
            // Several processes share each GPU.
            (of(4, Some("1,2"), None), &four, Ok(&[1, 2])),
            (of(4, None, None), &four[..1], Ok(&[0])),
            // srun gives each task a GPU of its own, or several.
            (of(2, Some("2"), Some("2,3")), &four, Ok(&[2, 3])),
            (own(of(2, Some("0,1"), Some("0-3"))), &four, Ok(&[0, 1, 2, 3])),
            (own(of(2, Some("0,1"), None)), &four, Err("has 2 of its GPUs")),
            (of(2, Some("1"), None), &four, Err("name the GPUs of all of them")),
            (of(2, Some("1"), Some("2,3")), &four, Ok(&[2, 3])),
            // A slice of a GPU.
            (of(2, Some("MIG-GPU-33aa/7/0"), None), &four, Ok(&[3])),
        ];
        for (visible, gpus, expected) in table {
            match (chosen(&visible, gpus), expected) {
                (found, Ok(expected)) => assert_eq!(found.as_deref(), Ok(expected), "{visible:?}"),
                (found, Err(part)) => assert!(found.is_err_and(|error| error.contains(part)), "{visible:?}"),
            }
        }
    }

    #[test]
    fn ambiguous_and_wrong_names_are_refused_with_a_remedy() {
        let mixed = gpus(&["A", "B"]);
        let cuda = |list: &str, order: Option<&str>| Visible {
            cuda: Some(list.into()),
            order: order.map(Into::into),
            ..Visible::default()
        };
        assert_eq!(chosen(&cuda("1", Some("PCI_BUS_ID")), &mixed), Ok(vec![1]));
        assert_eq!(chosen(&cuda("1,0", None), &mixed), Ok(vec![1, 0]), "all of them, in whatever order");
        let slice = cuda("MIG-41b3359c-e721-56e5-8009-12e5797ed514", None);
        assert_eq!(chosen(&slice, &gpus(&["A"])), Ok(vec![0]), "the only GPU contains it");
        let hidden = Visible { driver: vec!["0000:1a:00.0".into()], ..slice };
        assert_eq!(chosen(&hidden, &mixed), Ok(vec![1]), "the only GPU that the container has");
        let slurm = Visible { slurm: Some("1,2".into()), ..cuda("1", None) };
        let refused = [
            (cuda("1", None), gpus(&["A", "B"]), "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
            (cuda("", None), gpus(&["A"]), "hides all GPUs"),
            (cuda("-1", None), gpus(&["A"]), "hides all GPUs"),
            (cuda("4", None), gpus(&["A", "A"]), "names GPU 4"),
            (cuda("GPU-", None), gpus(&["A", "A"]), "several"),
            (cuda("GPU-99", None), gpus(&["A"]), "does not have"),
            (cuda("MIG-1234", None), gpus(&["A", "A"]), "MIG device"),
            (slurm, gpus(&["A", "A", "A"]), "SLURM_JOB_GPUS=1,2"),
            (Visible::default(), gpus(&[]), "no GPUs"),
        ];
        for (visible, gpus, expected) in refused {
            let error = chosen(&visible, &gpus).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn in_a_container_only_gpus_with_a_device_file_count() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        for (bus, minor) in [("0000:0a:00.0", 0), ("0000:1a:00.0", 1)] {
            let folder = at("proc/driver/nvidia/gpus").join(bus);
            std::fs::create_dir_all(&folder).expect("made");
            let text = format!("Model: \t\t A40\nDevice Minor: \t {minor}\n");
            std::fs::write(folder.join("information"), text).expect("written");
        }
        assert_eq!(shown_by_driver(root.path()).len(), 2, "where no device file is known, all count");
        std::fs::create_dir(at("dev")).expect("made");
        std::fs::write(at("dev/nvidia1"), "").expect("written");
        assert_eq!(shown_by_driver(root.path()), ["0000:1a:00.0"]);
        assert!(shown_by_driver(&at("dev")).is_empty(), "no driver");
    }
}
