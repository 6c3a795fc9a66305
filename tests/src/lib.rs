//! The harness of the end-to-end tests. It starts the real programs, slows and cuts their
//! connections, and compares bytes.
//!
//! Programs run on loopback, on ports that the kernel chooses, in temporary directories and in
//! their own process groups; dropping a guard removes its directory and kills its group.
//! `ROPEWALK_BIN` names the program under test. The default is the binary in the target directory
//! that the test was built in.

#![forbid(unsafe_code)]
// A test that gets one of these errors fails with it.
#![allow(clippy::missing_errors_doc)]

pub mod aggregator_proxy;
pub mod certificates;
pub mod client;
pub mod control;
pub mod fake_server;
pub mod files;
pub mod filezilla;
pub mod gateway;
pub mod grid;
pub mod imports;
pub mod json_schema;
pub mod mode_e;
pub mod nodes;
pub mod nsi_provider;
pub mod nsi_schemas;
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
pub mod small_disk;
pub mod sshd;
pub mod taken_port;
pub mod tcp_relay;
pub mod terminal;
pub mod trap;
pub mod tree;
pub mod wrap;
