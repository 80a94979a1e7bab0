//! Integration tests: the real daemon as a process, and the rules that the sources keep.

mod bad_input;
mod nvml;
mod support;
