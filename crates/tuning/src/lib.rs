//! Models of parallel TCP, tuners of the number of parallel streams, the division of socket
//! buffers, and the choice of relays. Everything here is pure computation: no I/O, no clock, no
//! threads.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod model;
pub mod route;
pub mod tuner;
