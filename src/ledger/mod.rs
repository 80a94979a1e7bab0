//! The books (pure): energy per closed interval, grams as a view of energy × the best intensity known.

mod meter;

pub use meter::{Meter, Metered};
