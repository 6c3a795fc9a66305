//! Servers with one authentication method each, and the files of their clients. A failed set-up
//! panics.

pub mod data_keys;
pub mod kerberos;
pub mod ssh;
pub mod tokens;
