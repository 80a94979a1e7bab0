//! The job-mapping folder of dcgm-exporter: one file for each GPU, named by its index, with one job id a line.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::regular;

/// Largest file in bytes.
const LARGEST: u64 = 64 << 10;

/// Returns the ids of the jobs on a GPU, without duplicates; empty if there is no file.
pub(super) fn read(folder: &Path, index: u32) -> Vec<String> {
    let text = regular::read_text(&folder.join(index.to_string()), LARGEST).unwrap_or_default();
    let mut ids: Vec<String> =
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the Slurm job of a GPU: the number in the GPU's file, if the file has only this line.
pub(super) fn slurm_job(folder: &Path, index: u32) -> Option<u32> {
    match read(folder, index).as_slice() {
        [one] => one.parse().ok().filter(|number| *number > 0),
        _ => None,
    }
}

/// Writes the files of the job-mapping folder when they change, and removes them at the daemon's end.
#[derive(Debug)]
pub(super) struct MappingWriter {
    folder: PathBuf,
    written: BTreeMap<u32, Vec<String>>,
}

impl MappingWriter {
    /// Takes over files that an earlier daemon left in the folder for GPUs of this node.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, written: BTreeMap::new() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the ids of the jobs on each GPU, by index. A GPU without jobs has no file.
    pub(super) fn write(&mut self, jobs: &BTreeMap<u32, Vec<String>>) -> io::Result<()> {
        for (index, ids) in jobs {
            if self.written.get(index) == Some(ids) {
                continue;
            }
            let path = self.folder.join(index.to_string());
            match ids.as_slice() {
                [] => remove(&path)?,
                ids => {
                    std::fs::create_dir_all(&self.folder)?;
                    // Readers see the old file or the new one. dcgm-exporter takes every file in the folder for a GPU's
                    // unless its name begins with a dot.
                    let next = self.folder.join(format!(".{index}.wattune"));
                    std::fs::write(&next, ids.iter().map(|id| format!("{id}\n")).collect::<String>())?;
                    std::fs::rename(&next, &path)?;
                }
            }
            self.written.insert(*index, ids.clone());
        }
        Ok(())
    }
}

impl Drop for MappingWriter {
    fn drop(&mut self) {
        for index in self.written.keys() {
            if let Err(error) = remove(&self.folder.join(index.to_string())) {
                tracing::warn!("job mapping of GPU {index} could not be removed: {error}");
            }
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_number_is_a_slurm_job() {
        let folder = tempfile::tempdir().expect("a directory");
        for (index, text, job) in [
            (0, "4711\n", Some(4711)),
            (1, "1\n2\n", None),
            (2, "train-0\n", None),
            (3, "\n7\n\n7\n", Some(7)),
            (4, "0", None),
        ] {
            std::fs::write(folder.path().join(index.to_string()), text).expect("written");
            assert_eq!(slurm_job(folder.path(), index), job, "{text:?}");
        }
        assert_eq!(slurm_job(folder.path(), 9), None);
    }

    #[test]
    fn files_follow_the_jobs_and_are_removed_at_the_end() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("jobs");
        std::fs::create_dir(&path).expect("made");
        std::fs::write(path.join("1"), "left by a killed daemon\n").expect("written");
        let jobs = |zero: &[&str], one: &[&str]| {
            let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            BTreeMap::from([(0, ids(zero)), (1, ids(one))])
        };
        let mut writer = MappingWriter::new(path.clone());
        writer.write(&jobs(&["7", "8"], &[])).expect("written");
        let listed = || {
            let mut names: Vec<_> =
                std::fs::read_dir(&path).expect("there").map(|entry| entry.expect("readable").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(
            (std::fs::read_to_string(path.join("0")).expect("there"), listed()),
            ("7\n8\n".to_owned(), vec!["0".into()])
        );
        writer.write(&jobs(&[], &["9"])).expect("written");
        assert_eq!(listed(), ["1"]);
        drop(writer);
        assert_eq!(listed(), Vec::<std::ffi::OsString>::new());
    }
}
