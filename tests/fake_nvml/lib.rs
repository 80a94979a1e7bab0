//! A stand-in for the driver's `libnvidia-ml.so.1`, loaded by the tests in its place so that the real FFI path
//! runs against boards that do not exist. The directory named by `FAKE_NVML_DIR` holds the script of the boards
//! (`boards.json`), what the imagined driver remembers (`state/`) and a log of every write (`writes.log`);
//! README.md beside this file is the guide for a person at a shell.
//!
//! | module     | holds                                                            |
//! |------------|------------------------------------------------------------------|
//! | `board`    | the script: what each board is and how it misbehaves             |
//! | `state`    | one board's memory in the driver, and its energy integral        |
//! | `store`    | the files: change stamps, atomic rewrites, locks, the write log  |
//! | `driver`   | the whole driver as one process sees it: boards, handles, reload |
//! | `calls`    | the way into a call and out of it again, pointers included       |
//! | `codes`    | NVML's return codes                                              |
//! | `system`, `lookup`, `identity`, `power`, `clocks`, `activity` | the exported C functions, by theme |
#![allow(unsafe_code, reason = "a C library: exported symbols, and results written through the caller's pointers")]
#![allow(
    clippy::disallowed_methods,
    reason = "this is the driver's side: its time is the machine's, which all processes share"
)]
#![allow(non_snake_case, reason = "the exported functions bear the names NVML gave them")]

mod codes;

mod board;
mod driver;
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
