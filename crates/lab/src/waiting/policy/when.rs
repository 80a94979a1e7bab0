//! wattune itself: the daemon's advice from the forecasts that the daemon would have, asked again at each new forecast and
//! each hour until the job starts.

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, StatedRisk, Submission};
use wattune_core::plan::{Latest, StartQuestion, advise_start};
use wattune_core::units::Watts;

pub(super) const POLICY: StartPolicy = StartPolicy {
    name: "when",
    about: "the daemon's advice, asked again at each new forecast and each hour of waiting",
    choose,
};

/// Power of a job. Reductions relative to starting at once do not depend on it.
pub(super) const POWER: Watts = Watts::new(300.0);

fn choose(job: &Submission, grid: &VisibleGrid<'_>) -> ChosenStart {
    let mut question = StartQuestion::new(job.at, job.duration, POWER, Latest::Start(job.latest()));
    let mut stated = None;
    loop {
        let Ok(advice) = advise_start(&question, &grid.start_forecast(question.now)) else {
            return ChosenStart::at(job.at);
        };
        if question.waiting_since.is_none() && advice.best.start > advice.now.start {
            stated = Some(StatedRisk { start: advice.best.start, loss_probability: advice.loss_probability });
        }
        if advice.starts_at_once() || advice.decide_at <= question.now {
            return ChosenStart { start: advice.start, stated };
        }
        question.waiting_since = Some(job.at);
        question.now = advice.decide_at;
    }
}
