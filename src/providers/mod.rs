//! Sources of carbon intensity.
