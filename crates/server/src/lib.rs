//! The GridFTP server: a host around the sessions of `ropewalk_protocol::server`.
//!
//! A [`Server`] is bound with a [`Config`] and runs until it is told to end through its [`ServerHandle`] or by a
//! signal. Idle sessions cost no thread: they are parked in a reactor and run on a pool when their client says
//! something.

#![forbid(unsafe_code)]
// What a peer sends must never end the program.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic))]

mod accounts;
mod admission;
mod audit;
mod check;
mod checksum_cache;
mod client;
mod codec;
mod config;
mod connection;
mod context;
mod control;
mod data_channel;
mod error;
mod failure;
mod fair_queue;
mod gsi;
mod handle;
mod host;
mod identity;
mod job;
mod kerberos;
mod limits;
mod listeners;
mod login;
mod login_audit;
mod logins;
mod memory;
mod names;
mod operations;
mod parking;
mod parts;
mod paths;
mod permit;
mod privileges;
mod profiling;
mod reactor;
mod routes;
mod runner;
mod scheduler;
mod scope;
mod semaphore;
mod server;
mod settings;
mod signals;
mod socket_memory;
mod ssh;
mod stores;
mod throttle;
mod tls;
mod tokens;
mod transfer_log;
mod writers;

pub use config::{
    Access, AnonymousAccess, Config, ConfigError, Data, DelegatedKeys, Files, Fsync, Gsi, Identity, Kerberos,
    Limits, Log, Problem, Profiling, RequiredProtection, RunAs, SessionReuse, Severity, Testing, Timeouts,
    Tls, TlsVersion, TokenIssuer, TokenMapping, Tokens, User,
};
pub use error::{Error, Result};
pub use handle::ServerHandle;
pub use privileges::confine_ssh;
pub use ropewalk_tls::Fingerprint;
pub use server::Server;
pub use ssh::{SshClient, check_ssh};
pub use stores::StoreFactory;
