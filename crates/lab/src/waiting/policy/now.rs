//! Reference of all policies: each job starts when it is submitted.

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};

pub(super) const POLICY: StartPolicy =
    StartPolicy { name: "now", about: "each job starts when it is submitted", choose };

fn choose(job: &Submission, _: &VisibleGrid<'_>) -> ChosenStart {
    ChosenStart::at(job.at)
}
