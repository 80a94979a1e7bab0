//! The fleet's solver against two oracles, and against what must hold for every answer.

mod answers;
mod instances;
mod optimum;
mod oracles;
mod solvers;
