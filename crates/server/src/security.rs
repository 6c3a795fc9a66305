//! How clients prove who they are, and how their connections are protected.
//!
//! Each mechanism (GSI, Kerberos, TLS, bearer tokens) has an authority, which is made from the
//! configuration and shared by all sessions, and a client, which belongs to one session.

pub(crate) mod client;
pub(crate) mod codec;
pub(crate) mod gsi;
pub(crate) mod kerberos;
pub(crate) mod tls;
pub(crate) mod tokens;
