//! Files with traces. This module is the only one of this crate that opens files.

use std::path::{Path, PathBuf};

/// Reason why a trace cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The trace file is not valid CSV.
    #[error("cannot read {}", path.display())]
    NotCsv {
        path: PathBuf,
        #[source]
        source: csv::Error,
    },
    /// A value of the trace is not valid.
    #[error("{}, line {line}, column {column}: {why}", path.display())]
    Broken {
        path: PathBuf,
        /// Line of the value, from 1.
        line: u64,
        column: &'static str,
        why: String,
    },
    /// The content of the trace cannot be used; for example, a column or the requested workload is missing.
    #[error("{}: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
}

/// A trace file's path and content.
#[derive(Clone, Debug)]
pub struct TraceFile {
    /// Path of the file, from which messages and the GPU's name are made.
    pub path: PathBuf,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

impl TraceFile {
    /// Reads a trace file; refuses one that is compressed with gzip.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let path = path.to_owned();
        match std::fs::read(&path) {
            Ok(bytes) if bytes.starts_with(&[0x1f, 0x8b]) => {
                let why = "it is compressed with gzip; unpack it first, with gunzip --keep".to_owned();
                Err(TraceError::Unusable { path, why })
            }
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(TraceError::Unreadable { path, source }),
        }
    }

    /// Returns the name of the GPU whose power trace this file is: the file name without `summary_power_` and
    /// extension, so that `summary_power_a40.csv` gives `a40`.
    pub fn gpu(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        stem.strip_prefix("summary_power_").unwrap_or(&stem).to_owned()
    }

    pub(crate) fn unusable(&self, why: String) -> TraceError {
        TraceError::Unusable { path: self.path.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_by_its_file() {
        let gpu = |path: &str| TraceFile { path: path.into(), bytes: Vec::new() }.gpu();
        assert_eq!(gpu("x/summary_power_rtx6000.csv"), "rtx6000");
        assert_eq!(gpu("h100.csv"), "h100");
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let error = TraceFile::read(Path::new("/nowhere.csv")).expect_err("not there");
        assert_eq!(error.to_string(), "cannot read /nowhere.csv");
    }
}
