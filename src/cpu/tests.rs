//! Tests of the CPU measurement on synthetic trees of powercap, `/proc` and control-group files.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use super::linux::LinuxNode;
use super::simulated::{FIRST_PID, SimulatedNode};
use super::watch::{CpuHandle, Observation};
use super::{CpuSource, Settings};
use crate::clock::ManualClock;
use crate::gpu::handle::Sampling;
use crate::gpu::simulated::{CurvePoint, LoadCurve, Physics, SimulatedGpu};
use wattune_core::domain::{CgroupPath, JobId, LimitRange, PowerLimit, ProcessSelector, Processes};
use wattune_core::units::{Millijoules, SamplesPerSecond, Seconds, Watts};

/// A machine that consists of such files in a temporary directory.
struct Machine {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

const RANGE: u64 = 262_143_328_850;

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for part in ["powercap", "proc", "cgroup"] {
            std::fs::create_dir(dir.path().join(part)).expect("made");
        }
        let clock = Arc::new(ManualClock::at(chrono::DateTime::UNIX_EPOCH));
        let machine = Self { dir, clock };
        machine.stat(0, 0);
        machine.write("cgroup/cgroup.controllers", "cpu memory");
        machine
    }

    fn write(&self, path: &str, text: impl std::fmt::Display) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("made");
        std::fs::write(path, format!("{text}\n")).expect("written");
    }

    fn remove(&self, path: &str) {
        std::fs::remove_dir_all(self.dir.path().join(path)).expect("removed");
    }

    /// Writes `/proc/stat` of a machine with four cores, with the total ticks of busy and idle time.
    fn stat(&self, busy: u64, idle: u64) {
        let cores = "cpu0 0\ncpu1 0\ncpu2 0\ncpu3 0";
        self.write("proc/stat", format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n{cores}\nbtime 1700000000"));
    }

    fn process(&self, pid: u32, parent: u32, start: u64, ticks: u64, waited: u64) {
        let line = format!("{pid} (py (x) y) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {waited} 0 20 0 1 0 {start} 0");
        self.write(&format!("proc/{pid}/stat"), line);
    }

    fn zone(&self, id: &str, name: &str, energy: impl std::fmt::Display) {
        self.write(&format!("powercap/{id}/name"), name);
        self.write(&format!("powercap/{id}/max_energy_range_uj"), RANGE);
        self.write(&format!("powercap/{id}/energy_uj"), energy);
    }

    fn settings(&self) -> Settings {
        let root = |part: &str| self.dir.path().join(part);
        Settings {
            powercap_root: root("powercap"),
            proc_root: root("proc"),
            cgroup_root: root("cgroup"),
            ..Settings::default()
        }
    }

    fn handle(&self) -> CpuHandle {
        let node = LinuxNode::new(&self.settings(), self.clock.clone());
        CpuHandle::start(Box::new(node), self.clock.clone(), Sampling::OnRequest)
    }

    fn after(&self, seconds: f64, handle: &CpuHandle) -> Arc<Observation> {
        self.clock.advance(Seconds::new(seconds));
        handle.sample()
    }
}

fn zones(seen: &Observation) -> Vec<&str> {
    seen.zones.iter().map(|zone| zone.device.as_str()).collect()
}

fn job(name: &str) -> JobId {
    JobId::new(name).expect("an id")
}

#[test]
fn packages_and_their_memory_count_once() {
    let machine = Machine::new();
    for (id, name) in [
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "uncore"),
        ("intel-rapl:0:2", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:1:0", "dram"),
        ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ] {
        machine.zone(id, name, 1_000);
    }
    let seen = machine.handle().sample();
    assert_eq!(zones(&seen), ["cpu:package-0", "cpu:package-1", "dram:package-0", "dram:package-1"]);
    assert!(seen.zones[0].path.ends_with("powercap/intel-rapl:0"), "{}", seen.zones[0].path);
    assert!(seen.problems.is_empty(), "{:?}", seen.problems);
    machine.zone("intel-rapl:3", "package-1", 5_000);
    let seen = machine.handle().sample();
    assert_eq!(zones(&seen).len(), 4);
    let [problem] = seen.problems.as_slice() else { panic!("{:?}", seen.problems) };
    assert!(problem.contains("intel-rapl:3 has the name of") && problem.contains("\"package-1\""), "{problem}");
}

#[test]
fn the_tree_behind_the_links_and_amd_packages_are_read() {
    let machine = Machine::new();
    machine.zone("amd-rapl/amd-rapl:0", "package-0", 5_000);
    machine.zone("amd-rapl/amd-rapl:0/amd-rapl:0:0", "dram", 5_000);
    machine.zone("intel-rapl/intel-rapl:10", "package-10-die-1", 5_000);
    machine.zone("intel-rapl/intel-rapl:9", "package-9-die-0", 5_000);
    // As in the kernel, some links lead back up, and others lead to zones by another path.
    let up = machine.dir.path().join("powercap");
    symlink(&up, up.join("amd-rapl/amd-rapl:0/subsystem")).expect("made");
    symlink(up.join("amd-rapl/amd-rapl:0"), up.join("amd-rapl:0")).expect("made");
    let seen = machine.handle().sample();
    let expected = ["cpu:package-0", "cpu:package-9-die-0", "cpu:package-10-die-1", "dram:package-0"];
    assert_eq!(zones(&seen), expected);
}

#[test]
fn wraps_missing_zones_and_garbage_are_handled() {
    let machine = Machine::new();
    machine.zone("intel-rapl:0", "package-0", RANGE - 20_000_850);
    let handle = machine.handle();
    handle.sample();
    machine.zone("intel-rapl:0", "package-0", 30_000_149);
    let seen = machine.after(1.0, &handle);
    let zone = &seen.zones[0];
    assert_eq!((zone.metered.counter, zone.wraps), (Millijoules::new(50_000), 1));
    assert_eq!(zone.power, Some(Watts::new(50.000999)));
    machine.zone("intel-rapl:0", "package-0", "what?");
    let seen = machine.after(1.0, &handle);
    let problem = seen.zones[0].problem.as_deref().expect("reported");
    assert!(problem.contains("energy_uj holds \"what?\", not a count of microjoules"), "{problem}");
    assert_eq!((seen.zones[0].power, seen.zones[0].metered.counter), (None, Millijoules::new(50_000)));
    machine.zone("intel-rapl:0", "package-0", RANGE + 1);
    let seen = machine.after(1.0, &handle);
    assert!(seen.zones[0].problem.as_deref().is_some_and(|p| p.contains("beyond its range")), "{seen:?}");
    machine.remove("powercap/intel-rapl:0");
    let seen = machine.after(1.0, &handle);
    assert!(seen.zones[0].problem.is_some());
    // Another zone appears while the first one is missing. Then the first one is back, and the energy of its counter is
    // not lost.
    machine.zone("intel-rapl:1", "package-1", 7);
    let seen = machine.after(30.0, &handle);
    assert!(seen.zones[0].problem.as_deref().is_some_and(|p| p.contains("is missing") || p.contains("beyond")));
    assert_eq!(seen.zones[1].problem, None);
    machine.zone("intel-rapl:0", "package-0", 80_000_149);
    let seen = machine.after(1.0, &handle);
    assert_eq!(seen.zones[0].problem, None);
    assert_eq!(seen.zones[0].metered.total(), Millijoules::new(100_000));
    assert_eq!(seen.zones[0].metered.gap, Millijoules::new(50_000), "30 s without a reading");
}

#[test]
fn missing_zones_are_reported_with_a_remedy() {
    let machine = Machine::new();
    let handle = machine.handle();
    let reported = handle.sample().problems.join(" ");
    assert!(reported.contains("has no CPU package") && reported.contains("cpu.powercap_root"), "{reported}");
    machine.zone("intel-rapl:0", "psys", 1);
    let reported = machine.after(1.0, &handle).problems.join(" ");
    assert!(reported.contains("psys is the whole platform"), "{reported}");
    machine.remove("powercap");
    let reported = machine.after(1.0, &handle).problems.join(" ");
    assert!(reported.contains("powercap does not exist"), "{reported}");
    machine.zone("intel-rapl:0", "package-0", 1);
    machine.write("powercap/intel-rapl:0/max_energy_range_uj", "0");
    let seen = machine.after(1.0, &handle);
    assert!(seen.problems.join(" ").contains("counts as a reset"), "{:?}", seen.problems);
    assert_eq!(zones(&seen), ["cpu:package-0"]);
}

#[test]
fn jobs_are_followed_by_processes_and_by_group() {
    let machine = Machine::new();
    machine.process(100, 1, 50, 1000, 0);
    machine.write("cgroup/train/cpu.stat", "usage_usec 5000000\nuser_usec 1");
    machine.write("cgroup/train/cgroup.procs", "200");
    machine.write("cgroup/train/inner/cgroup.procs", "201\n0");
    machine.write("cgroup/v1/cpu.shares", "1");
    let handle = machine.handle();
    let (a, b) = (job("a"), job("b"));
    let pids = handle.resolve(&ProcessSelector::Pids(vec![100])).expect("there");
    let group = handle.resolve(&ProcessSelector::Cgroup(CgroupPath::new("/train/").expect("right"))).expect("there");
    handle.follow(&a, &pids);
    handle.follow(&b, &group);
    let before = handle.observe();
    machine.stat(700, 100);
    machine.process(100, 1, 50, 1150, 0);
    machine.process(101, 100, 60, 50, 0);
    machine.process(102, 1, 60, 5000, 0);
    machine.write("cgroup/train/cpu.stat", "usage_usec 8000000");
    let seen = machine.after(2.0, &handle);
    let passed = |seen: &Observation, name: &JobId| seen.time.jobs[name];
    assert_eq!(passed(&seen, &a) - passed(&before, &a), 2_000_000);
    assert_eq!(passed(&seen, &b) - passed(&before, &b), 3_000_000);
    assert_eq!(seen.time.busy_us - before.time.busy_us, 7_000_000);
    assert_eq!(seen.time.capacity_us - before.time.capacity_us, 8_000_000);
    let owners: Vec<(u32, &JobId)> = seen.usage.owners.iter().map(|(pid, job)| (*pid, job)).collect();
    assert_eq!(owners, [(100, &a), (101, &a), (200, &b), (201, &b)]);
    // The control group of job b is recreated, and all processes of job a end.
    machine.write("cgroup/train/cpu.stat", "usage_usec 250000");
    machine.remove("proc/100");
    machine.remove("proc/101");
    let seen = machine.after(1.0, &handle);
    assert_eq!((passed(&seen, &a), passed(&seen, &b)), (2_000_000, 3_250_000));
    assert_eq!(seen.usage.jobs[&a].problem.as_deref(), Some("all its processes have ended"));
    machine.remove("cgroup/train");
    let seen = machine.after(1.0, &handle);
    assert!(seen.usage.jobs[&b].problem.as_deref().is_some_and(|p| p.ends_with("train is gone")), "{seen:?}");
    assert_eq!(passed(&seen, &b), 3_250_000);
}

#[test]
fn processes_of_a_slurm_job_are_found_as_they_start() {
    let machine = Machine::new();
    let slurm = |pid: u32, comm: &str, title: &str, group: &str| {
        machine.write(&format!("proc/{pid}/comm"), comm);
        machine.write(&format!("proc/{pid}/cmdline"), title);
        machine.write(&format!("proc/{pid}/cgroup"), group);
    };
    // The owner of this entry is the daemon's user, whose processes are trusted like root's.
    machine.write("proc/self/comm", "wattune");
    machine.process(10, 1, 100, 50, 0);
    slurm(10, "slurmd", "/usr/sbin/slurmd", "0::/system.slice/slurmd.service");
    let handle = machine.handle();
    let found = ProcessSelector::SlurmJob(7);
    let processes = handle.resolve(&found).expect("a Slurm job may have no processes yet");
    assert_eq!(processes, Processes::SlurmJob(7));
    let a = job("a");
    handle.follow(&a, &processes);
    let usage = |seconds| machine.after(seconds, &handle).usage.jobs[&a].clone();
    assert_eq!((usage(1.0).running, usage(1.0).problem), (0, None));
    // A step daemon begins as a child of slurmd and has its title a moment later; its tasks are its children.
    machine.process(20, 10, 200, 1, 0);
    slurm(20, "slurmd", "/usr/sbin/slurmd", "0::/system.slice/slurmd.service");
    assert_eq!(usage(1.0).running, 0);
    slurm(20, "slurmstepd", "slurmstepd: [7.batch]", "0::/system.slice/slurmd.service");
    machine.process(21, 20, 210, 30, 0);
    // Another job's.
    machine.process(30, 10, 220, 999, 0);
    slurm(30, "slurmstepd", "slurmstepd: [8.batch]", "0::/system.slice/slurmd.service");
    let with_step = usage(1.0);
    assert_eq!((with_step.running, with_step.used_us), (2, 310_000), "step daemon and task, from their start");
    // One that is in the job's control group, wherever it came from.
    machine.process(40, 1, 300, 20, 0);
    slurm(40, "sshd", "sshd: user", "0::/system.slice/slurmstepd.scope/job_7/step_extern/user/task_0");
    let with_group = usage(1.0);
    assert_eq!((with_group.running, with_group.used_us), (3, 510_000));
    for gone in ["proc/20", "proc/21", "proc/40"] {
        machine.remove(gone);
    }
    let gone = usage(1.0);
    assert_eq!((gone.running, gone.used_us), (0, 510_000));
    assert_eq!(gone.problem.as_deref(), Some("all its processes have ended"));
}

#[test]
fn invalid_processes_and_groups_are_refused_with_a_hint() {
    let machine = Machine::new();
    let handle = machine.handle();
    let refused = |selector: ProcessSelector| handle.resolve(&selector).expect_err("refused").to_string();
    let group = |path: &str| ProcessSelector::Cgroup(CgroupPath::new(path).expect("right"));
    let reported = refused(ProcessSelector::Pids(vec![4242]));
    assert!(reported.starts_with("pids: names 4242, but there is no such process"), "{reported}");
    assert!(refused(group("/absent")).contains("there is no control group \"/absent\" below"));
    let root = machine.dir.path().join("cgroup");
    let doubled = refused(group(&format!("{}/train", root.display())));
    assert!(doubled.contains("so leave that out"), "{doubled}");
    machine.write("cgroup/v1/cpu.shares", "1");
    assert!(refused(group("/v1")).contains("not a cgroup v2 group"));
    machine.write("cgroup/odd/cpu.stat", "nr_periods 1");
    assert!(refused(group("/odd")).contains("has no usage_usec"));
    machine.write("elsewhere/cpu.stat", "usage_usec 1");
    symlink(machine.dir.path().join("elsewhere"), root.join("way-out")).expect("made");
    assert!(refused(group("/way-out")).contains("leads out of"));
    symlink(Path::new("."), root.join("self")).expect("made");
    assert!(refused(group("/self")).contains("leads out of"));
    std::fs::remove_file(root.join("cgroup.controllers")).expect("removed");
    let reported = refused(group("/train"));
    assert!(reported.contains("not the root of cgroup v2") && reported.contains("cpu.cgroup_root"), "{reported}");
}

#[test]
fn a_reused_process_id_is_not_followed() {
    let machine = Machine::new();
    machine.process(100, 1, 50, 10, 0);
    let handle = machine.handle();
    let found = handle.resolve(&ProcessSelector::Pids(vec![100])).expect("there");
    assert!(matches!(&found, Processes::Pids(list) if list[0].start == 50));
    machine.process(100, 1, 77, 500, 0);
    handle.follow(&job("a"), &found);
    machine.process(100, 1, 77, 900, 0);
    let seen = machine.after(1.0, &handle);
    assert_eq!((seen.time.jobs[&job("a")], seen.usage.jobs[&job("a")].running), (0, 0));
}

#[test]
fn a_simulated_node_follows_its_gpus_and_is_labelled() {
    let clock = Arc::new(ManualClock::at(chrono::DateTime::UNIX_EPOCH));
    let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
    let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
    let (idle, settling) = (Watts::new(25.0), Seconds::ZERO);
    let physics = Physics { range, original_limit: range.max, idle, settling, noise: 0.0, seed: 1 };
    let gpu = SimulatedGpu::new(physics, clock.clone());
    let node = SimulatedNode::new(vec![gpu.clone()], clock.clone());
    let handle = CpuHandle::start(Box::new(node), clock.clone(), Sampling::OnRequest);
    let processes = handle.resolve(&ProcessSelector::Pids(vec![FIRST_PID])).expect("there");
    assert!(handle.resolve(&ProcessSelector::Pids(vec![FIRST_PID + 1])).is_err());
    handle.follow(&job("a"), &processes);
    let power = |handle: &CpuHandle| {
        clock.advance(Seconds::new(5.0));
        handle.sample().zones.iter().map(|zone| zone.power.expect("read")).sum::<Watts>()
    };
    let at_rest = power(&handle);
    gpu.run(LoadCurve::new(vec![CurvePoint {
        limit: Watts::new(300.0),
        throughput: SamplesPerSecond::new(1.0),
        power: Watts::new(300.0),
    }]));
    clock.advance(Seconds::new(1.0));
    handle.sample();
    assert!(power(&handle) > at_rest);
    let seen = handle.observe();
    assert_eq!(handle.source(), CpuSource::Simulated);
    assert!(seen.zones.iter().all(|zone| zone.path.starts_with("simulated:")));
    assert_eq!(zones(&seen), ["cpu:simulated-package-0", "dram:simulated-package-0"]);
    // The job's process fed the GPU with four cores for the last five seconds.
    assert!((20_000_000..=24_000_000).contains(&seen.time.jobs[&job("a")]), "{:?}", seen.time);
    assert!(seen.time.busy_us > seen.time.jobs[&job("a")] && seen.time.capacity_us == 11 * 32_000_000);
}

#[test]
fn ancestors_of_wattune_are_refused() {
    let machine = Machine::new();
    for (pid, parent) in [(40, 1), (50, 40), (60, 50), (70, 40)] {
        machine.process(pid, parent, 5, 0, 0);
    }
    symlink("60", machine.dir.path().join("proc/self")).expect("linked");
    machine.write("cgroup/all/cpu.stat", "usage_usec 5");
    machine.write("cgroup/all/one/cgroup.procs", std::process::id());
    machine.write("cgroup/other/cpu.stat", "usage_usec 5");
    let handle = machine.handle();
    for ours in [40, 50, 60] {
        let error = handle.resolve(&ProcessSelector::Pids(vec![70, ours])).expect_err("refused").to_string();
        assert!(error.contains(&format!("pids: names {ours}, but wattune itself runs below it")), "{error}");
    }
    assert!(handle.resolve(&ProcessSelector::Pids(vec![70])).is_ok());
    let group = |path: &str| handle.resolve(&ProcessSelector::Cgroup(CgroupPath::new(path).expect("a path")));
    let error = group("/all").expect_err("refused").to_string();
    assert!(error.contains("cgroup: \"/all\" contains wattune itself"), "{error}");
    assert!(group("/other").is_ok());
}

#[test]
fn a_zone_that_changes_its_counter_reports_it_until_the_first_is_back() {
    let machine = Machine::new();
    machine.zone("intel-rapl:0", "package-0", 5_000_000_u64);
    machine.zone("intel-rapl-mmio:0", "package-0", 900_000_000_u64);
    let handle = machine.handle();
    handle.sample();
    machine.zone("intel-rapl:0", "package-0", 6_000_000_u64);
    assert_eq!(machine.after(1.0, &handle).zones[0].metered.counter, Millijoules::new(1_000));
    machine.remove("powercap/intel-rapl:0");
    let seen = machine.after(1.0, &handle);
    let zone = &seen.zones[0];
    assert!(zone.path.ends_with("intel-rapl-mmio:0"), "{zone:?}");
    assert_eq!((zone.metered.total(), zone.metered.lost, zone.moves), (Millijoules::new(1_000), 1, 1));
    assert!(zone.concerns()[0].starts_with("cpu:package-0: it is read from another counter"), "{:?}", zone.concerns());
    machine.zone("intel-rapl-mmio:0", "package-0", 902_000_000_u64);
    assert_eq!(machine.after(1.0, &handle).zones[0].metered.counter, Millijoules::new(3_000));
    // The first counter is back, with one joule more than the second one counted: this joule is recorded as energy of a
    // gap, and no energy is counted twice.
    machine.zone("intel-rapl:0", "package-0", 9_000_000_u64);
    let seen = machine.after(1.0, &handle);
    let zone = &seen.zones[0];
    assert_eq!((zone.metered.counter, zone.metered.gap), (Millijoules::new(3_000), Millijoules::new(1_000)));
    assert_eq!((zone.metered.lost, zone.moves, zone.counter_id()), (1, 2, "intel-rapl:0"));
}
