//! Servers with one way to log in each, and what their clients need. A set-up that fails ends the test.

pub mod data_keys;
pub mod kerberos;
pub mod ssh;
pub mod tokens;
