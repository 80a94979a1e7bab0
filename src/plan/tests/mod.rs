//! The solvers against each other, against two oracles, and against what must hold for every plan.

mod instances;
mod oracles;
mod receding;
mod solvers;
