//! The language of GridFTP (RFC 959, 2228, 2389, 2428, 3659; GFD.20), without I/O and without a clock.
//!
//! Everything that a peer can send is decided here: bytes come in, values and actions go out.

#![forbid(unsafe_code)]
// What a peer sends must never end the program.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic))]

pub mod ascii;
pub mod client;
pub mod command;
pub mod congestion;
pub mod data_key;
pub mod date;
pub mod error_class;
pub mod facts;
pub mod feature;
pub mod help;
pub mod host_port;
pub mod line;
pub mod listing;
pub mod marker;
pub mod mode_e;
pub mod opts;
pub mod path;
pub mod profiling;
pub mod range;
pub mod reply;
pub mod server;
pub mod site;
pub mod streams;
pub mod text;
pub mod url;
