//! Upper bound of what waiting can save: the best window of the actual future values.

use super::when::POWER;
use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};
use wattune_core::plan::{Latest, StartQuestion, advise_start};

pub(super) const POLICY: StartPolicy =
    StartPolicy { name: "clairvoyant", about: "the bound: the best window of the actual values", choose };

fn choose(job: &Submission, grid: &VisibleGrid<'_>) -> ChosenStart {
    let question = StartQuestion {
        min_gain: 0.0,
        max_loss_probability: 1.0,
        ..StartQuestion::new(job.at, job.duration, POWER, Latest::Start(job.latest()))
    };
    let advice = advise_start(&question, &grid.actual_horizon(job.at));
    ChosenStart::at(advice.map_or(job.at, |advice| advice.start))
}
