//! Environment of a process, as far as it names the process's job: a claim of the process's user.

use std::collections::BTreeMap;

/// Variables that name a job.
const JOB_VARIABLES: [&str; 9] = [
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_USER",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_PARTITION",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
];

/// Maximum length of a value in bytes; longer ones are left out.
const LONGEST: usize = 256;

/// Variables of a process that name its job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<&'static str, String>);

impl Environment {
    /// Parses the bytes of `/proc/<pid>/environ`: texts `NAME=value`, each followed by a zero byte. If a name occurs
    /// twice, the first value counts, as in the C library. Ignores values that are empty, longer than 256 bytes or not
    /// UTF-8.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut found = BTreeMap::new();
        for text in bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok()) {
            let Some((name, value)) = text.split_once('=') else { continue };
            let Some(known) = JOB_VARIABLES.iter().find(|known| **known == name) else { continue };
            if !value.is_empty() && value.len() <= LONGEST {
                found.entry(*known).or_insert_with(|| value.to_owned());
            }
        }
        Self(found)
    }

    /// Returns the value of a variable that names a job.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the number of the Slurm job that the process claims to belong to.
    pub fn slurm_job(&self) -> Option<u32> {
        self.get("SLURM_JOB_ID")?.parse().ok().filter(|number| *number > 0)
    }
}
