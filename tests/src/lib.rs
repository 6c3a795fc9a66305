//! The harness of the end-to-end tests: it starts the real programs, cuts and slows their connections, and compares bytes.
//!
//! Everything runs on loopback, on ports that the kernel chooses, in temporary directories and in process groups that are
//! gone when their guard is dropped. `ROPEWALK_BIN` names the program under test; without it, it is the one beside the
//! test's own target directory.

#![forbid(unsafe_code)]
// A test that meets one fails with it.
#![allow(clippy::missing_errors_doc)]

pub mod client;
pub mod control;
pub mod fake_server;
pub mod files;
pub mod grid;
pub mod imports;
pub mod json_schema;
pub mod mode_e;
pub mod peers;
pub mod plain_server;
pub mod process;
pub mod proxy;
pub mod queue_server;
pub mod random;
pub mod realm;
pub mod scratch;
pub mod server;
pub mod sites;
pub mod sshd;
pub mod terminal;
pub mod tree;
