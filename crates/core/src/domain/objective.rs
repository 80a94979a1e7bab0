//! Objective of a job: the weights of carbon, time and price, the constraints, and permission to pause.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{InvalidJob, Promise};
use crate::units::{GramsCo2e, Seconds, Short, Watts};

/// Upper bound of the idle power of a job's GPUs together.
const MOST_IDLE: Watts = Watts::new(1e5);

/// Objective and constraints of a job. All constraints apply together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Weight η of carbon against time: 1 minimises emissions only, 0 time only. (Zeus weighs energy against time with
    /// the same number.)
    pub eta: f64,
    /// Maximum increase of the job's time over running at the maximum usable limit: 0.03 is 3 %.
    pub max_slowdown: Option<f64>,
    /// Time by which the job must be done.
    pub deadline: Option<DateTime<Utc>>,
    /// Maximum emissions of the whole job.
    #[serde(default)]
    pub carbon_budget: Option<GramsCo2e>,
    /// Weight of the electricity price against carbon: 0 is carbon only, 1 is price only.
    #[serde(default)]
    pub price_weight: f64,
    /// Permission to pause, with its constraints and costs; absent if the job must not be paused.
    #[serde(default)]
    pub pausable: Option<Pausing>,
}

/// Constraints and costs of pausing a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pausing {
    /// Power of all GPUs of the job together during a pause.
    pub idle_power: Watts,
    /// Minimum time of training between two pauses.
    pub min_run: Seconds,
    /// Minimum duration of a pause.
    pub min_pause: Seconds,
    /// Time that each pause costs for saving and loading a training checkpoint: training power without progress.
    pub checkpoint: Seconds,
}

impl Pausing {
    /// Returns the default for a job on a number of GPUs: 50 W per GPU, at least half an hour of training between two
    /// pauses, at least half an hour per pause, two minutes per checkpoint.
    pub fn default_for(gpus: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a node has few GPUs")]
        let idle_power = Watts::new(50.0) * gpus as f64;
        let half_an_hour = Seconds::new(1800.0);
        Self { idle_power, min_run: half_an_hour, min_pause: half_an_hour, checkpoint: Seconds::new(120.0) }
    }
}

/// State of a job and the time at which that state began; the minimum durations in [`Pausing`] count from then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// The job has trained since this time.
    RunningSince(DateTime<Utc>),
    /// The daemon has paused the job since this time.
    PausedSince(DateTime<Utc>),
}

impl Objective {
    /// Objective that minimises emissions without constraints.
    pub const UNBOUND: Self =
        Self { eta: 1.0, max_slowdown: None, deadline: None, carbon_budget: None, price_weight: 0.0, pausable: None };

    /// Objective of a request that states none: minimises emissions, at most 3 % slower.
    pub const DEFAULT: Self = Self { max_slowdown: Some(0.03), ..Self::UNBOUND };

    /// Returns the objective of a request, in which `eta` may be absent. If `eta` is absent and the request has no
    /// constraint, the maximum slowdown of [`Self::DEFAULT`] applies. If `eta` is absent and a carbon budget is the
    /// only constraint, time is minimised.
    ///
    /// # Errors
    /// Returns the first field that is out of range or contradicts another.
    pub fn new(eta: Option<f64>, requested: Self) -> Result<Self, InvalidJob> {
        let mut objective = requested;
        let has_promises = requested.promises().next().is_some();
        let budget_alone = has_promises && !requested.bounds_time();
        objective.eta = eta.unwrap_or(if budget_alone { 0.0 } else { 1.0 });
        if eta.is_none() && !has_promises {
            objective.max_slowdown = Self::DEFAULT.max_slowdown;
        }
        objective.check()
    }

    /// Returns the promises (constraints) of the objective.
    pub fn promises(&self) -> impl Iterator<Item = Promise> + use<> {
        let Self { deadline, max_slowdown, carbon_budget, .. } = *self;
        let promises = [
            deadline.map(Promise::Deadline),
            max_slowdown.map(Promise::Slowdown),
            carbon_budget.map(Promise::CarbonBudget),
        ];
        promises.into_iter().flatten()
    }

    /// Returns true if any promise bounds the job's time.
    pub fn bounds_time(&self) -> bool {
        self.promises().any(Promise::bounds_time)
    }

    /// Returns an objective that minimises emissions with a maximum slowdown.
    ///
    /// # Errors
    /// Returns an error if the slowdown is not in 0 ≤ s < 1.
    pub fn slower_by(max_slowdown: f64) -> Result<Self, InvalidJob> {
        Self { max_slowdown: Some(max_slowdown), ..Self::UNBOUND }.check()
    }

    fn check(self) -> Result<Self, InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        let Self { eta, price_weight, .. } = self;
        if !(0.0..=1.0).contains(&eta) {
            let why =
                format!("{} is not from 0 to 1; 1 is carbon alone, 0 is time alone{}", Short(eta), as_fraction(eta));
            return invalid("objective.eta", why);
        }
        self.promises().try_for_each(Promise::check)?;
        if !(0.0..=1.0).contains(&price_weight) {
            let why = format!(
                "{} is not from 0 to 1; 0 is carbon alone, 1 is the price alone{}",
                Short(price_weight),
                as_fraction(price_weight)
            );
            return invalid("objective.price_weight", why);
        }
        if price_weight > 0.0 && eta == 0.0 {
            let why =
                "with eta 0, or a carbon budget alone, only time counts and a price changes nothing; give eta more \
                       than 0, or leave the price_weight out"
                    .into();
            return invalid("objective.price_weight", why);
        }
        self.check_pausing()?;
        Ok(self)
    }

    fn check_pausing(&self) -> Result<(), InvalidJob> {
        let Some(Pausing { idle_power, min_run, min_pause, checkpoint }) = self.pausable else { return Ok(()) };
        let invalid = |field, why| Err(InvalidJob { field, why });
        if !(Watts::ZERO..=MOST_IDLE).contains(&idle_power) {
            let why = format!("is {}; it must be from 0 to {} watts", Short(idle_power.get()), MOST_IDLE.get());
            return invalid("objective.pausable.idle_power_w", why);
        }
        for (field, length) in [
            ("objective.pausable.min_run_s", min_run),
            ("objective.pausable.min_pause_s", min_pause),
            ("objective.pausable.checkpoint_s", checkpoint),
        ] {
            if !(0.0..=86_400.0).contains(&length.get()) {
                return invalid(field, format!("is {}; it must be from 0 to 86400 seconds", Short(length.get())));
            }
        }
        if !self.bounds_time() {
            let why = "needs max_slowdown or a deadline: without one a job could wait for ever".into();
            return invalid("objective.pausable", why);
        }
        Ok(())
    }
}

/// Number from which on an invalid weight was probably meant in percent. A smaller number, such as 2, may be another
/// mistake.
const LEAST_PERCENT: f64 = 10.0;

/// Returns a hint for the error message if a weight was probably given in percent; otherwise an empty text.
fn as_fraction(weight: f64) -> String {
    match weight {
        percent if (LEAST_PERCENT..=100.0).contains(&percent) => {
            format!("; for {} % write {}", Short(percent), Short(percent / 100.0))
        }
        _ => String::new(),
    }
}
