//! The place of a process among the processes of its training, by the variables of the program that started them. The
//! Python client follows the same rules (`clients/python/src/wattune/_ranks.py`).

/// Launchers' variables: the number of a process on its node (first), and the number of processes on the node (second).
///
/// torchrun comes first, because it may itself run under MPI or Slurm, one per node. Then come Open MPI, MVAPICH, and
/// the MPIs with the Hydra launcher.
const LAUNCHERS: [(&str, &str); 4] = [
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
];

/// Place of a process among the processes of its training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    /// Number of the process on its node, from 0.
    pub(super) local_rank: u32,
    /// Number of processes on the node; `None` if the launcher does not report it.
    pub(super) local_world: Option<u32>,
    /// True if each process was given GPUs of its own, which may be several.
    pub(super) has_own_gpus: bool,
}

impl Default for Ranks {
    /// Returns the place of a process that trains alone.
    fn default() -> Self {
        Self { local_rank: 0, local_world: Some(1), has_own_gpus: false }
    }
}

impl Ranks {
    /// Determines the place by the variables of torchrun, MPI or Slurm. Slurm's variables count only within a job step:
    /// in a batch script one process runs, however many tasks the script asked for.
    pub(super) fn detect(get: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| get(name).and_then(|text| digits(text.trim()));
        for (rank, world) in LAUNCHERS {
            if let Some(local_rank) = number(rank) {
                return Self { local_rank, local_world: number(world), has_own_gpus: false };
            }
        }
        let (Some(local_rank), Some(tasks)) = (number("SLURM_LOCALID"), number("SLURM_STEP_NUM_TASKS")) else {
            return Self::default();
        };
        let local_world = match get("SLURM_STEP_TASKS_PER_NODE").filter(|counts| !counts.is_empty()) {
            Some(counts) => number("SLURM_NODEID").and_then(|node| tasks_of(node, &counts)),
            None => (number("SLURM_STEP_NUM_NODES") == Some(1)).then_some(tasks),
        };
        let per_task = get("SLURM_GPUS_PER_TASK").unwrap_or_default();
        Self { local_rank, local_world, has_own_gpus: !matches!(per_task.trim(), "" | "0") }
    }
}

/// Returns the number of tasks on a node from a list such as `2(x3),1`, which means 2, 2, 2 and 1.
fn tasks_of(node: u32, counts: &str) -> Option<u32> {
    let mut first = 0_u32;
    for part in counts.split(',') {
        let (count, nodes) = match part.trim().split_once("(x") {
            Some((count, nodes)) => (count, digits(nodes.strip_suffix(')')?)?),
            None => (part.trim(), 1),
        };
        let count = digits(count)?;
        first = first.saturating_add(nodes);
        if node < first {
            return Some(count);
        }
    }
    None
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_number_their_processes() {
        let ranks = |local_rank, local_world| Ranks { local_rank, local_world, ..Ranks::default() };
        let nodes = ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1");
        let step = ("SLURM_STEP_NUM_TASKS", "5");
        let table: [(&[(&str, &str)], Ranks); 14] = [
            (&[], Ranks::default()),
            (&[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4"), ("SLURM_LOCALID", "0"), step], ranks(1, Some(4))),
            (&[("LOCAL_RANK", "0")], ranks(0, None)),
            (&[("LOCAL_RANK", "first")], Ranks::default()),
            (&[("LOCAL_RANK", "+1")], Ranks::default()),
            (&[("OMPI_COMM_WORLD_LOCAL_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")], ranks(2, Some(4))),
            (&[("MV2_COMM_WORLD_LOCAL_RANK", "1"), ("MV2_COMM_WORLD_LOCAL_SIZE", "2")], ranks(1, Some(2))),
            (&[("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2"), ("PMI_SIZE", "4")], ranks(1, Some(2))),
            // A batch script's own process is one, whatever the script asks for.
            (&[("SLURM_LOCALID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_TASKS_PER_NODE", "4")], Ranks::default()),
            (&[("SLURM_LOCALID", "1"), step, nodes, ("SLURM_NODEID", "1")], ranks(1, Some(2))),
            (&[("SLURM_LOCALID", "0"), step, nodes, ("SLURM_NODEID", "2")], ranks(0, Some(1))),
            (&[("SLURM_LOCALID", "0"), step, ("SLURM_STEP_NUM_NODES", "1")], ranks(0, Some(5))),
            (&[("SLURM_LOCALID", "3"), step], ranks(3, None)),
            (
                &[("SLURM_LOCALID", "1"), step, ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_GPUS_PER_TASK", "a100:2")],
                Ranks { has_own_gpus: true, ..ranks(1, Some(5)) },
            ),
        ];
        for (variables, expected) in table {
            let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(Ranks::detect(get), expected, "{variables:?}");
        }
    }
}
