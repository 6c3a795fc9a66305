//! Models of parallel TCP, tuners of the number of parallel streams, and the division of socket
//! buffers. Everything here is pure computation: no I/O, no clock, no threads.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod model;
pub mod tuner;
