//! The GridFTP server: a host around the sessions of `ropewalk_protocol::server`.
//!
//! A [`Server`] is bound with a [`Config`] and runs until it is told to end through its [`ServerHandle`] or by a
//! signal. Idle sessions cost no thread: they are parked in a reactor and run on a pool when their client says
//! something.

#![forbid(unsafe_code)]

mod accounts;
mod admission;
mod checksum_cache;
mod codec;
mod config;
mod connection;
mod context;
mod control;
mod error;
mod gsi;
mod handle;
mod host;
mod limits;
mod names;
mod operations;
mod parts;
mod paths;
mod reactor;
mod routes;
mod runner;
mod server;
mod settings;
mod signals;
mod stores;
mod throttle;
mod transfer_log;
mod turns;

pub use config::{
    Access, AnonymousAccess, Config, ConfigError, Data, Files, Fsync, Gsi, Limits, Log, Problem, Severity,
    Testing, Timeouts, User,
};
pub use error::{Error, Result};
pub use handle::ServerHandle;
pub use server::Server;
pub use stores::StoreFactory;
