//! What must not pass a log-in with certificates, each refused in words and with the right code: by our server, and by our
//! client. The table is in docs/evaluation/security.md.

#![allow(clippy::unwrap_used)]

mod client;
mod data;
mod fixture;
mod lines;
mod server;
