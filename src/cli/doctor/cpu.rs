//! Checks if CPU energy is readable here, and if jobs can be followed by their processes.

use std::sync::Arc;

use super::{Finding, Verdict, finding};
use crate::clock::{Clock, SystemClock};
use crate::config::Settings;
use crate::cpu::Node;
use crate::cpu::linux::LinuxNode;

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let mut node = LinuxNode::new(&settings.cpu, clock);
    let what = "CPU energy";
    let mut findings = Vec::new();
    if settings.cpu.enabled {
        let zones = node.zones();
        for zone in &zones.readings {
            let name = format!("{what}, {}", zone.device);
            findings.push(match &zone.counter_uj {
                Ok(_) => finding(name, Verdict::Good, format!("{} can be read", zone.path)),
                Err(problem) => finding(name, Verdict::Limited, problem.clone()),
            });
        }
        findings.extend(zones.problems.into_iter().map(|problem| finding(what, Verdict::Limited, problem)));
    } else {
        findings.push(finding(what, Verdict::Good, "is not recorded (cpu.enabled = false)"));
    }
    findings.push(processes(&mut node, settings));
    findings
}

fn processes(node: &mut LinuxNode, settings: &Settings) -> Finding {
    let what = "processes of jobs";
    let usage = node.usage();
    if let Some(problem) = usage.problem {
        return finding(what, Verdict::Limited, problem);
    }
    let cgroups = &settings.cpu.cgroup_root;
    let version_2 = cgroups.join("cgroup.controllers").exists();
    let groups = if version_2 {
        format!("control groups of version 2 in {}", cgroups.display())
    } else {
        format!(
            "no control groups of version 2 in {}: jobs can name pids; set cpu.cgroup_root if they are elsewhere",
            cgroups.display()
        )
    };
    let cores = usage.cores.unwrap_or_default();
    finding(what, Verdict::Good, format!("{} shows {cores} CPUs; {groups}", settings.cpu.proc_root.display()))
}
