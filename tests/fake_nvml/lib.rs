//! A fake of the driver's `libnvidia-ml.so.1`, which the tests load in its place, so that the real FFI path runs
//! against fake GPUs. The directory named by `FAKE_NVML_DIR` holds the script of the GPUs (`boards.json`), the fake
//! driver's state (`state/`) and a log of every write (`writes.log`); README.md beside this file explains its use from
//! a shell.
//!
//! | module     | holds                                                            |
//! |------------|------------------------------------------------------------------|
//! | `gpu`    | the script: the properties and faults of each GPU                |
//! | `state`    | one GPU's state in the driver, and its energy integral           |
//! | `store`    | the files: change stamps, atomic rewrites, locks, the write log  |
//! | `driver`   | the driver as seen by one process: GPUs, handles, reload         |
//! | `calls`    | the entry and exit of every call, pointers included              |
//! | `codes`    | NVML's return codes                                              |
//! | `system`, `lookup`, `identity`, `power`, `clocks`, `activity` | the exported C functions, by theme |
#![allow(unsafe_code, reason = "a C library: exported symbols, and results written through the caller's pointers")]
#![allow(
    clippy::disallowed_methods,
    reason = "this is the driver's side: its time is the machine's, which all processes share"
)]
#![allow(non_snake_case, reason = "the exported functions bear the names NVML gave them")]

mod codes;

mod driver;
mod gpu;
mod state;
mod store;

#[macro_use]
mod calls;

mod activity;
mod clocks;
mod identity;
mod lookup;
mod power;
mod system;
