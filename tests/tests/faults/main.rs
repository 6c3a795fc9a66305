//! Hostile peers, broken connections and failing disks: nothing crashes, hangs, leaks, or leaves a file that looks whole.

#![allow(clippy::unwrap_used)]

mod changing_files;
mod connections;
mod disk;
mod fixture;
mod lines;
mod parallel_sessions;
mod paths;
mod refusals_in_pipeline;
mod rogue_client;
mod rogue_server;
mod stalls;
