//! Settings of the profiler.

use serde::{Deserialize, Serialize};

use crate::domain::check_power;
use crate::units::{Seconds, Short, Watts};

/// Upper bound of `step_w`, above any GPU's range of limits; catches steps given in milliwatts.
const MOST_STEP: Watts = Watts::new(1000.0);

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
    /// Time after a change of the power limit or clock during which nothing is measured.
    pub settle_s: Seconds,
    /// Minimum duration of a measurement.
    pub window_s: Seconds,
    /// Target relative standard error of the throughput measured at one setting.
    pub standard_error: f64,
    /// Maximum duration of a measurement, which then ends even if its standard error is above the target.
    pub max_window_s: Seconds,
    /// Target relative standard error of the throughput at the maximum usable limit, reached by re-measurement, because
    /// this error adds to every slowdown. (Target of re-measurements at other limits: a third of `standard_error`.)
    pub reference_standard_error: f64,
    /// Maximum fraction of a job's time spent on re-measurements.
    pub visit_share: f64,
    /// Relative deviation of throughput or power from the profile that counts as drift.
    pub drift: f64,
    /// Duration of drift before the job is profiled again.
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
        if self.max_window_s < self.window_s {
            return Err(format!("max_window_s = {} must not be below window_s", self.max_window_s.get()));
        }
        relative("standard_error", self.standard_error, 0.2)?;
        relative("reference_standard_error", self.reference_standard_error, 0.2)?;
        relative("drift", self.drift, 1.0)?;
        positive("drift_s", self.drift_s.get())?;
        if !(0.0..=0.5).contains(&self.visit_share) {
            return Err(format!("visit_share = {} must be from 0 to 0.5", self.visit_share));
        }
        Ok(())
    }
}
