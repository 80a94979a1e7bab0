//! Integration tests: the real daemon as a process, and the rules that the sources keep.

mod crash;
mod disk;
mod faults;
mod nvml;
mod support;
