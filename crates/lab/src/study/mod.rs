//! Replays of jobs × starts × budgets of extra time × policies, compared with one another: the rows of
//! `wattune simulate carbon`.

mod figures;
mod frontier;
mod means;
mod row;
mod run;

pub use figures::Figures;
pub use frontier::Frontier;
pub use means::{Mean, means};
pub(crate) use row::rfc3339;
pub use row::{CaseResult, Row};
pub use run::{Study, StudyError};
