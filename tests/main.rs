//! Integration tests: the real daemon as a process, and the rules that the sources keep.

mod architecture;
mod nvml;
mod support;
