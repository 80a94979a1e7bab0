//! What can be said about intensities to come (pure): a gapless horizon to plan over, how far a source is to be
//! believed, and the reference intensity.
//!
//! The order of use: [`plan_horizon`] makes contiguous slots out of what is known, [`measure_skill`] says how well
//! the source did lately, [`shrink`] pulls the horizon towards its mean by as much as the source lacks skill.

mod horizon;
mod known;
mod skill;

pub use horizon::{Basis, Horizon, HorizonPolicy, HorizonSlot, HorizonSummary, plan_horizon};
pub use skill::{Skill, SkillPolicy, measure_skill, reference_intensity, shrink};
