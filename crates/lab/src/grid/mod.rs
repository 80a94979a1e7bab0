//! Recorded grids: actual carbon intensities, the forecasts published for them, and the part known at a past time.

mod recorded;
mod visible;

pub use recorded::{PublishedForecasts, RecordedGrid, covered_until};
pub use visible::{Foresight, VisibleGrid};
