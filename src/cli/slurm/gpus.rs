//! The GPUs of a Slurm job: those that Slurm names by device number, or as many as it reports.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::deadline::Deadline;
use super::facts::output;
use super::job_gpus::{self, device_numbers};

/// GPUs of a Slurm job, as far as Slurm reports them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// Slurm reports these device numbers, such as 3 for `/dev/nvidia3`.
    Devices(Vec<u32>),
    /// Slurm reports only the number of GPUs.
    Count(u32),
    /// Slurm gave the job no GPU.
    None,
}

/// Returns the GPUs of a job: those in `SLURM_JOB_GPUS` (`SLURM_STEP_GPUS` is wrong in some cases); without this
/// variable, their number, which Slurm's controller reports.
pub(super) fn given(number: u32, listed: Option<&str>, until: &Deadline) -> anyhow::Result<Given> {
    if let Some(listed) = listed.filter(|listed| !listed.is_empty()) {
        let numbers = device_numbers(listed)
            .with_context(|| format!("{} = {listed:?} is not a list of numbers", job_gpus::VARIABLE))?;
        return Ok(Given::Devices(numbers));
    }
    let mut command = Command::new("scontrol");
    command.args(["show", "job", "--details", &number.to_string()]);
    let text = output(command, until)?;
    Ok(count(&text).map_or(Given::None, Given::Count))
}

/// Returns how many GPUs a job has on each of its nodes, from `scontrol show job --details`; `None` if it has none, or
/// not as many on each.
fn count(text: &str) -> Option<u32> {
    let lines = || text.lines().map(str::trim_start);
    let nodes: u32 =
        lines().find_map(|line| line.strip_prefix("NumNodes=")?.split_whitespace().next()?.parse().ok())?;
    let all = lines().find_map(|line| line.strip_prefix("JOB_GRES="))?;
    let gpus = all.split(',').filter_map(|gres| match gres.split(':').collect::<Vec<_>>()[..] {
        ["gpu", count] | ["gpu", _, count] => count.parse::<u32>().ok(),
        _ => None,
    });
    let gpus: u32 = gpus.fold(0, u32::saturating_add);
    (gpus > 0 && nodes > 0 && gpus.is_multiple_of(nodes)).then(|| gpus / nodes)
}

/// Returns names of devices that the daemon accepts: the UUIDs where the driver lists the device number, otherwise the
/// device numbers.
pub(super) fn names(devices: &[u32], driver: &BTreeMap<u32, String>) -> Vec<Value> {
    devices.iter().map(|number| driver.get(number).map_or(json!(number), |uuid| json!(uuid))).collect()
}

/// Chooses `count` GPUs for a job if Slurm reports only their number: all GPUs of the node, or the first ones that no
/// other Slurm job uses. `gpus` and `jobs` are the daemon's lists.
///
/// # Errors
/// If the node has too few.
pub(super) fn choose(count: u32, gpus: &Value, jobs: &Value) -> anyhow::Result<Vec<Value>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let taken: Vec<Value> = list(jobs)
        .iter()
        .filter(|job| job["processes"]["slurm_job_id"].is_u64())
        .flat_map(|job| list(&job["gpus"]))
        .collect();
    let all: Vec<Value> = list(gpus).iter().map(|gpu| gpu["uuid"].clone()).collect();
    let (free, used): (Vec<Value>, Vec<Value>) = all.into_iter().partition(|uuid| !taken.contains(uuid));
    let count = usize::try_from(count)?;
    if free.len() + used.len() < count {
        bail!("Slurm gave {count} GPUs, and the daemon knows {}", free.len() + used.len());
    }
    Ok(free.into_iter().chain(used).take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_gpus_is_that_of_one_node() {
        let job = |nodes: &str, gres: &str| {
            count(&format!(
                "JobId=7 JobName=a JOB_GRES=gpu:9\n   UserId=a(1)\n   NumNodes={nodes} NumCPUs=1\n   {gres}\n"
            ))
        };
        assert_eq!(job("1", "JOB_GRES=gpu:1"), Some(1));
        assert_eq!(job("2", "JOB_GRES=gpu:a100:4,gpu:h100:4,shard:9"), Some(4));
        assert_eq!(job("2", "JOB_GRES=gpu:3"), None, "not as many on each node");
        assert_eq!(job("1", "JOB_GRES=shard:3"), None);
        assert_eq!(job("1", "Nodes=a"), None);
        assert_eq!(job("1-1", "JOB_GRES=gpu:1"), None);
    }

    #[test]
    fn devices_go_by_their_uuids_where_the_driver_lists_them() {
        let driver = BTreeMap::from([(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())]);
        assert_eq!(names(&[0, 1, 2], &driver), [json!("GPU-a"), json!("GPU-b"), json!(2)]);
    }

    #[test]
    fn gpus_that_slurm_does_not_name_are_the_first_free_ones() {
        let gpus = json!([{"uuid": "a"}, {"uuid": "b"}, {"uuid": "c"}]);
        let jobs = json!([
            {"processes": {"slurm_job_id": 7}, "gpus": ["a"]},
            {"processes": null, "gpus": ["b"]},
        ]);
        assert_eq!(choose(1, &gpus, &jobs).expect("free"), [json!("b")]);
        assert_eq!(choose(3, &gpus, &jobs).expect("all"), [json!("b"), json!("c"), json!("a")]);
        assert!(choose(4, &gpus, &jobs).is_err_and(|e| e.to_string().contains("knows 3")));
    }
}
