//! Just-in-time profiling (pure).
