//! Rule without any data: the next night at 02:00 UTC, as in many a crontab.

use chrono::{TimeDelta, Utc};

use crate::grid::VisibleGrid;
use crate::waiting::kind::{ChosenStart, StartPolicy, Submission};

pub(super) const POLICY: StartPolicy = StartPolicy {
    name: "two-oclock",
    about: "the next 02:00 UTC, or at once if that is after the latest start",
    choose,
};

fn choose(job: &Submission, _: &VisibleGrid<'_>) -> ChosenStart {
    let midnight = job.at.date_naive().and_time(chrono::NaiveTime::MIN).and_local_timezone(Utc).single();
    let today = midnight.map_or(job.at, |midnight| midnight + TimeDelta::hours(2));
    let next = if today < job.at { today + TimeDelta::days(1) } else { today };
    ChosenStart::at(if next <= job.latest() { next } else { job.at })
}
