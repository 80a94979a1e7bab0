//! Boards behind the driver's library.
