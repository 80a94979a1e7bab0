//! What can be said about intensities to come (pure).
