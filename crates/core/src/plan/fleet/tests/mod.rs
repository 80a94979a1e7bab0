//! Compares the solver of joint planning problems with two independent ones (oracles), and checks properties of all its
//! solutions.

mod answers;
mod instances;
mod optimum;
mod oracles;
mod solvers;
