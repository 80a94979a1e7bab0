//! Recorded grids: actual intensities, the forecasts published for them, and the part known at a moment of the past.

mod recorded;
mod visible;

pub use recorded::{PublishedForecasts, RecordedGrid};
pub use visible::{Foresight, VisibleGrid};
