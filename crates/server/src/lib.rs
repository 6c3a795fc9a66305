//! The GridFTP server: a host around the sessions of `ropewalk_protocol::server`.
//!
//! A [`Server`] is bound with a [`Config`] and runs until it is stopped through its
//! [`ServerHandle`] or by a signal. Idle sessions need no thread: they are parked in a reactor, and
//! run on a pool when input arrives.
//!
//! The modules are layers, and imports lead downwards only: `config` and `measurements`;
//! `security`; `settings`; `host`; `accounts`; `session`; `operations`; `scheduling`; `admin`;
//! `server` and the modules that extend it.

#![forbid(unsafe_code)]
// Input of a peer must never end the program.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::panic))]

mod accounts;
pub mod admin;
mod check;
mod config;
mod error;
mod failure;
mod handle;
mod host;
pub mod measurements;
mod node;
mod operations;
mod privileges;
mod quic_port;
mod relay;
mod scheduling;
mod security;
mod server;
mod session;
mod settings;
mod signals;
mod ssh;

pub use config::{
    Access, Admin, AnonymousAccess, BandwidthLimit, Config, ConfigError, Data, DelegatedKeys, Files, Fsync,
    Gsi, Identity, Kerberos, Limits, Log, Nodes, Problem, Profiling, Quota, Relay, RelayHop,
    RequiredProtection, Reservations, RunAs, SciTagMapping, SciTags, SessionReuse, Severity, Shares, Space,
    Testing, Timeouts, Tls, TlsVersion, TokenIssuer, TokenMapping, Tokens, TransferDirection, User,
};
pub use error::{Error, Result};
pub use handle::ServerHandle;
pub use host::stores::{Credential, StoreFactory, StoreLogin};
pub use node::{Node, NodeError, NodeSettings};
pub use privileges::confine_ssh;
pub use ropewalk_tls::Fingerprint;
pub use server::Backends;
pub use server::Server;
pub use ssh::{SshClient, check_ssh};
