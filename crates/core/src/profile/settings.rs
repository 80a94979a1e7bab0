//! Settings of the profiler.

use serde::{Deserialize, Serialize};

use crate::domain::check_power;
use crate::units::{Seconds, Short, Watts};

/// Upper bound of `step_w`, above any GPU's range of limits; catches steps given in milliwatts.
const MOST_STEP: Watts = Watts::new(1000.0);
/// Upper bounds of `settle_s`, `max_window_s` and `drift_s`, far above useful values; they catch times in milliseconds.
const MOST_SETTLING: Seconds = Seconds::new(300.0);
const MOST_WINDOW: Seconds = Seconds::new(86_400.0);
const MOST_DRIFT: Seconds = Seconds::new(3600.0);

/// Settings of the just-in-time profiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Step between the power limits of a sweep (the profiling run down through the limits).
    pub step_w: Watts,
    /// Lowest power limit to measure; the GPU's minimum if absent.
    pub lowest_w: Option<Watts>,
    /// Step between the locked clocks that a sweep measures if the power limit has no effect on the job.
    pub clock_step_mhz: u32,
    /// Time after a change of the power limit or clock during which nothing is measured, at most 300 s.
    pub settle_s: Seconds,
    /// Minimum duration of a measurement.
    pub window_s: Seconds,
    /// Target relative standard error of the throughput measured at one setting.
    pub standard_error: f64,
    /// Maximum duration of a measurement, at most a day; it then ends even if its standard error is above the target.
    pub max_window_s: Seconds,
    /// Target relative standard error of the throughput at the maximum usable limit, reached by re-measurement, because
    /// this error adds to every slowdown. (Target of re-measurements at other limits: a third of `standard_error`.)
    pub reference_standard_error: f64,
    /// Maximum fraction of a job's time spent on re-measurements.
    pub visit_share: f64,
    /// Relative deviation of throughput or power from the profile that counts as drift.
    pub drift: f64,
    /// Duration of drift before the job is profiled again, at most an hour.
    pub drift_s: Seconds,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            step_w: Watts::new(25.0),
            lowest_w: None,
            clock_step_mhz: 90,
            settle_s: Seconds::new(2.0),
            window_s: Seconds::new(5.0),
            standard_error: 0.003,
            max_window_s: Seconds::new(600.0),
            reference_standard_error: 0.0002,
            visit_share: 0.02,
            drift: 0.05,
            drift_s: Seconds::new(60.0),
        }
    }
}

impl Settings {
    /// Checks the ranges of all values; the error names the key and its valid range.
    pub fn check(&self) -> Result<(), String> {
        let positive = |key: &str, value: f64| {
            if value > 0.0 { Ok(()) } else { Err(format!("{key} = {value} must be more than 0")) }
        };
        let relative = |key: &str, value: f64, most: f64| {
            if value > 0.0 && value < most {
                return Ok(());
            }
            Err(format!("{key} = {value} must be more than 0 and less than {most}; it is relative: 0.05 is 5 %"))
        };
        let at_most = |key: &str, value: Seconds, most: Seconds, usual: f64| {
            if value <= most {
                return Ok(());
            }
            let (given, most, meant) = (Short(value.get()), most.get(), Short(value.get() / 1000.0));
            Err(format!(
                "{key} = {given} must be at most {most} seconds; {given} milliseconds are {meant} seconds; {usual} is \
                 usual"
            ))
        };
        if self.step_w < Watts::new(1.0) {
            return Err(format!("step_w = {} must be at least 1 W; 25 is usual", self.step_w.get()));
        }
        if self.step_w >= MOST_STEP {
            let (given, most, meant) = (self.step_w.get(), MOST_STEP.get(), self.step_w.get() / 1000.0);
            let (given, meant) = (Short(given), Short(meant));
            return Err(format!("step_w = {given} must be below {most} W; in milliwatts: {meant} watts; 25 is usual"));
        }
        if let Some(lowest) = self.lowest_w {
            if lowest < Watts::new(1.0) {
                let meant = if lowest > Watts::ZERO { "; was it given in kilowatts?" } else { "" };
                let given = Short(lowest.get());
                return Err(format!(
                    "lowest_w = {given} must be at least 1 W; if it is left out, the GPU's minimum limit is used{meant}"
                ));
            }
            check_power(lowest, Some(1)).map_err(|why| format!("lowest_w is {why}"))?;
        }
        if !(15..=1000).contains(&self.clock_step_mhz) {
            return Err(format!("clock_step_mhz = {} must be from 15 to 1000; 90 is usual", self.clock_step_mhz));
        }
        if self.window_s < Seconds::new(5.0) {
            return Err(format!(
                "window_s = {} must be at least 5 s: sensors average over up to 1 s",
                self.window_s.get()
            ));
        }
        if self.settle_s < Seconds::ZERO {
            return Err(format!("settle_s = {} must not be negative", self.settle_s.get()));
        }
        at_most("settle_s", self.settle_s, MOST_SETTLING, 2.0)?;
        if self.max_window_s < self.window_s {
            return Err(format!("max_window_s = {} must not be below window_s", self.max_window_s.get()));
        }
        at_most("max_window_s", self.max_window_s, MOST_WINDOW, 600.0)?;
        relative("standard_error", self.standard_error, 0.2)?;
        relative("reference_standard_error", self.reference_standard_error, 0.2)?;
        relative("drift", self.drift, 1.0)?;
        positive("drift_s", self.drift_s.get())?;
        at_most("drift_s", self.drift_s, MOST_DRIFT, 60.0)?;
        if !(0.0..=0.5).contains(&self.visit_share) {
            return Err(format!("visit_share = {} must be from 0 to 0.5", self.visit_share));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_milliseconds_are_refused() {
        let usual = Settings::default;
        for (settings, expected) in [
            (
                Settings { settle_s: Seconds::new(2000.0), ..usual() },
                "settle_s = 2000 must be at most 300 seconds; 2000 milliseconds are 2 seconds; 2 is usual",
            ),
            (Settings { settle_s: Seconds::new(1e9), ..usual() }, "settle_s = "),
            (
                Settings { max_window_s: Seconds::new(600_000.0), ..usual() },
                "max_window_s = 600000 must be at most 86400",
            ),
            (Settings { drift_s: Seconds::new(60_000.0), ..usual() }, "60000 milliseconds are 60 seconds; 60 is usual"),
        ] {
            let why = settings.check().expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
        let largest =
            Settings { settle_s: MOST_SETTLING, max_window_s: MOST_WINDOW, drift_s: MOST_DRIFT, ..Settings::default() };
        assert_eq!((usual().check(), largest.check()), (Ok(()), Ok(())));
    }
}
