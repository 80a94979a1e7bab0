//! Planning of power limits over a forecast (pure).
