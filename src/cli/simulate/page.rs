//! Rows as one self-contained page with plots.

use crate::simulate::replay::{Job, RecordedGrid};
use crate::simulate::study::Found;

/// The page.
pub(super) fn page(_jobs: &[Job], _grid: &RecordedGrid, _found: &[Found]) -> String {
    String::new()
}
