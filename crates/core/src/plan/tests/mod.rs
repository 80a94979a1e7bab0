//! Compares the planning solvers with each other and with two independent ones (oracles), and checks properties of all
//! plans.

mod budget;
mod hysteresis;
pub(in crate::plan) mod instances;
mod joint_planning;
mod linear;
mod oracles;
mod pausing;
mod price;
mod receding;
mod solvers;
mod suspension;
mod uncertainty;
mod wild;
