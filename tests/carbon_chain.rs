//! What is left when sources fail.
