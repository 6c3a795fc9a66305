//! Simulators and models that no transfer needs: they evaluate the tuners and the equations of
//! `ropewalk-tuning`. Everything here is pure computation: no I/O, no clock, no threads.
//!
//! - [`sim`] simulates tuners on paths in virtual time.
//! - [`fluid`] integrates the windows of groups of streams and the queue of their bottleneck.
//! - [`eval`] evaluates test vectors.
#![forbid(unsafe_code)]

pub mod eval;
pub mod fluid;
pub mod sim;
