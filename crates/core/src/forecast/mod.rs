//! Carbon intensity forecasts, without I/O: gapless planning horizons, their skill, and the reference intensity.
//!
//! [`Model::fit`] learns from past forecasts and actual values. [`Model::outlook`] turns a source's forecast into
//! contiguous slots: corrected, blended with the local forecaster, and extended by it beyond the end. [`Model::skill`]
//! measures how well such outlooks did recently; the less skill they had, the further [`Model::shrink_by_skill`] moves
//! the values of a horizon towards their mean.
//!
//! [`score`] rates forecasts against actual values, [`score_issued`] rates the published forecasts that were in use at
//! each time, and [`backtest()`] makes forecasts for past times anew and rates them.

mod backtest;
mod bias;
mod blend;
mod error_paths;
mod gap_filling;
mod horizon;
mod hourly_window;
mod local;
mod model;
mod outlook;
mod past_errors;
mod ridge;
mod score;
mod skill;
#[cfg(test)]
mod tests;
mod weekends;

pub use backtest::{BacktestRow, PublishedForecasts, backtest};
pub use error_paths::{ErrorPaths, SlotErrors};
pub use horizon::{Basis, FALLBACK, Horizon, HorizonSlot, HorizonSummary};
pub use model::{Expected, Forecaster, Model};
pub use past_errors::ISSUE_LOOKBACK;
pub use score::{Pair, Score, mean_if_covered, score, score_issued};
pub use skill::{Skill, reference_intensity};
