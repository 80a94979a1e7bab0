//! Metrics of the best starts of jobs that may wait.

use super::family::{Families, Metric, unix_time};
use crate::controller::view::WindowAhead;

pub(super) fn describe(ahead: &[WindowAhead], families: &mut Families) {
    families.each(Families::gauge, &GAUGES, ahead, |window| [("duration_h", window.duration_h.to_string())]);
}

const GAUGES: [Metric<WindowAhead>; 3] = [
    (
        "when_start_time",
        "seconds",
        "Best start within 24 h for a job of this duration, in seconds since the Unix epoch; now if it should not wait",
        |w| Some(unix_time(w.start)),
    ),
    (
        "when_expected_saving",
        "ratio",
        "Expected reduction of emissions by the best start within 24 h; 0 if a job should not wait",
        |w| Some(w.saving),
    ),
    (
        "when_loss_probability",
        "ratio",
        "Probability that the best start within 24 h emits more than starting now",
        |w| w.loss_probability,
    ),
];
