//! A requester of the Connection Service of NSI, version 2.1 (OGF GFD.237): reserves paths through
//! networks that offer it.
//!
//! [`Nsi`] is a provider of `ropewalk-paths`. Requests go to the provider as SOAP over HTTP or
//! HTTPS; results come back to a listener of its own. A result is also queried if it is late, so
//! that a listener which cannot be reached costs time only. [`message`] has the texts, and parses
//! what other programs send: without DTDs and entities, and bounded.
//!
//! [`NsiRest`] reserves paths through the NSI Aggregator Proxy, which hides the service behind JSON
//! over HTTP; [`rest`] has its messages. Both have the same file of settings, and share the HTTP
//! client and the listener. With a [`topology`], the file can name the ends of a path by short
//! names.

#![forbid(unsafe_code)]

mod callback;
mod http;
mod listener;
pub mod message;
mod provider;
mod requester;
pub mod rest;
mod settings;
mod time;
mod tls;
pub mod topology;

pub use provider::Nsi;
pub use requester::SetupError;
pub use rest::NsiRest;
pub use settings::{Settings, SettingsError};
pub use time::{parse as parse_time, show as show_time};
