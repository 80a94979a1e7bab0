//! Traces of submissions of recurring jobs: times at which runs were started, which may overlap.

use super::file::{TraceError, TraceFile};
use super::rows::{Fault, rows};
use wattune_core::units::Seconds;

/// One submission of a recurring job. All submissions of a job form a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Name of the group, which stands for the recurring job that was submitted.
    pub group: String,
    /// Start of the submitted run, in seconds on the clock of the trace.
    pub start: Seconds,
    /// End of the submitted run, in seconds on the clock of the trace.
    pub end: Seconds,
    /// Training that the run repeats: dataset, or dataset/network.
    pub job: String,
    /// Factor on energy, time and cost of the run, relative to the values in the power trace and the train trace.
    pub runtime_ratio: f64,
    /// Line of the submission in the file, from 1.
    pub line: u64,
}

/// Returns the submissions of a trace with the columns `group`, `start` and `end` (both in seconds), `job`, and
/// optionally `runtime_ratio` (1 if empty).
pub fn submissions(file: &TraceFile) -> Result<Vec<Submission>, TraceError> {
    rows(file, &["group", "start", "end", "job"], &["runtime_ratio"], |row| {
        let (start, end) = (row.finite(1)?, row.finite(2)?);
        if end < start {
            let why = format!("{end} is before its start, {start}; give both in seconds, on one clock");
            return Err(Fault { line: row.line(), column: "end", why });
        }
        let runtime_ratio = if row.text(4).is_empty() { 1.0 } else { row.positive(4)? };
        let (start, end) = (Seconds::new(start), Seconds::new(end));
        let (group, job) = (row.word(0)?, row.word(3)?);
        Ok(Submission { group, start, end, job, runtime_ratio, line: row.line() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_traces_that_make_no_sense_are_refused() {
        let error = |text: &str| {
            let file = TraceFile { path: "groups.csv".into(), bytes: text.into() };
            submissions(&file).expect_err("refused").to_string()
        };
        assert!(error("group,start,job\na,1,d\n").contains("it lacks the column end; it has group, start, job"));
        assert!(
            error("group,start,end,job\na,5,4,d\n").contains("line 2, column end: 4 is before its start, 5; give both")
        );
        assert!(error("").contains("it is empty; give a CSV with the columns group, start, end, job"));
        assert!(error("group,start,end,job\na,now,4,d\n").contains("line 2, column start: \"now\" is not a number"));
    }
}
