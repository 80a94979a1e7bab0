//! The solvers against each other, against two oracles, and against what must hold for every plan.

mod budget;
mod caution;
mod instances;
mod oracles;
mod pausing;
mod price;
mod receding;
mod solvers;
mod steady;
mod together;
mod wild;
