//! Hostile peers, broken connections, and failing disks: no fault may crash, hang, leak, or leave a
//! file that looks complete.

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
