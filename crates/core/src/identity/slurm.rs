//! Slurm's step daemon, the parent of all processes of a job's step.

/// Returns the number of the Slurm job that a `slurmstepd` process serves, from the bytes of `/proc/<pid>/cmdline`:
/// `slurmstepd: [<job>.<step>]`. `None` for other processes, and before `slurmstepd` has set this title.
pub fn slurmstepd_job(cmdline: &[u8]) -> Option<u32> {
    let title = std::str::from_utf8(cmdline).ok()?;
    let step = title.strip_prefix("slurmstepd: [")?.split(']').next()?;
    step.split(['.', '+']).next()?.parse().ok().filter(|number| *number > 0)
}
