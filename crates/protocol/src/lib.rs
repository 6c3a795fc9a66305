//! The GridFTP protocol (RFC 959, 2228, 2389, 2428, 3659; GFD.20), without I/O and without a clock.
//!
//! Everything that a peer can send is parsed and judged in this crate: bytes come in, values and
//! actions go out. The callers do the I/O, pass the time in, and carry out the actions.

#![forbid(unsafe_code)]
// Bytes from a peer must never make the program panic.
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
pub mod hop_login;
pub mod host_port;
pub mod line;
pub mod listing;
pub mod marker;
pub mod mode_e;
pub mod one_port;
pub mod opts;
pub mod path;
pub mod profiling;
pub mod queue;
pub mod range;
pub mod reply;
pub mod scitag;
pub mod server;
pub mod site;
pub mod slots;
pub mod space;
pub mod stack;
pub mod streams;
pub mod stripes;
pub mod text;
pub mod upload;
pub mod url;
pub mod usage;
