//! The engine from outside: two ends over loopback, and ends that meet peers who lie, stall or
//! vanish.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod common;
mod discards;
mod failures;
mod first_failure;
mod gct;
mod lies;
mod moves;
mod peers;
mod resends;
mod resources;
mod streams;
mod stripes;
