//! Models of parallel TCP, tuners of parallelism, and the division of socket buffers. Pure: no I/O, no clock.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod eval;
pub mod fluid;
pub mod model;
pub mod sim;
pub mod tuner;
