//! What can be said about intensities to come (pure): a gapless horizon to plan over, how far it is to be believed,
//! and the reference intensity.
//!
//! The order of use: [`Model::fit`] learns from what a source said and what came, [`Model::outlook`] makes contiguous
//! slots of the source's forecast, corrected, mixed with the local forecaster and extended by it, [`Model::skill`] says
//! how well such outlooks did lately, and [`Model::followed`] draws a horizon to its mean by as much as it lacks skill.
//!
//! [`score`] says how good forecasts were, [`score_issued`] picks from all that were issued those that counted, and
//! [`backtest()`] makes the forecasts of the past anew.

mod backtest;
mod bias;
mod blend;
mod difference;
mod horizon;
mod known;
mod local;
mod model;
mod outlook;
mod past;
mod ridge;
mod score;
mod skill;
#[cfg(test)]
mod tests;
mod trail;

pub use backtest::{BacktestRow, Said, backtest};
pub use difference::{ErrorPaths, SlotErrors};
pub use horizon::{Basis, Horizon, HorizonPolicy, HorizonSlot, HorizonSummary};
pub use model::{Expected, Follow, Model, ModelPolicy};
pub use past::ISSUES_LEARNT_FROM;
pub use score::{Pair, Score, over_whole, score, score_issued};
pub use skill::{Skill, SkillPolicy, reference_intensity};
