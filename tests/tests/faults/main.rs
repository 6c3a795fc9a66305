//! Hostile peers, broken connections and failing disks: nothing crashes, hangs, leaks, or leaves a file that looks whole.

#![allow(clippy::unwrap_used)]

mod changed;
mod connections;
mod disk;
mod fixture;
mod lines;
mod lying_client;
mod lying_server;
mod neighbours;
mod paths;
mod side_by_side;
mod stalls;
