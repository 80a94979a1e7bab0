//! Just-in-time profiling (pure).

mod curve;

pub(crate) use curve::concave_envelope;
pub use curve::{Curve, HullPoint, Mix};
