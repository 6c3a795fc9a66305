//! Log-ins with certificates that must be refused, each with a reason and the right code, by
//! Ropewalk's server and by its client. The table is in docs/evaluation/security.md.

#![allow(clippy::unwrap_used)]

mod client;
mod data;
mod fixture;
mod lines;
mod server;
