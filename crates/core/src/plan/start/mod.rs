//! The start time of a job that may wait: the window of the forecast in which it emits least, and whether waiting for it
//! is worth its risk.
//!
//! [`advise_start`] answers a [`StartQuestion`] from a [`StartForecast`] with a [`StartAdvice`]. While a job waits, ask
//! again at [`StartAdvice::decide_at`] and whenever a new forecast arrives; the option to wait remains until the latest
//! start. [`plan_held_starts`] answers the questions of several jobs that share GPUs or a node's power cap.

mod advice;
mod decide;
mod forecast;
mod held_starts;
mod question;
mod spread;
#[cfg(test)]
mod tests;
mod windows;

pub use advice::{StartAdvice, StartReason, StartWindow, WaitingSaving};
pub use decide::advise_start;
pub use forecast::StartForecast;
pub use held_starts::{HeldStart, Reservation, plan_held_starts};
pub use question::{InvalidStart, Latest, StartProfile, StartQuestion};
