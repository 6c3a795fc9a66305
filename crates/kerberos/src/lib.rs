//! Kerberos 5 for FTP's security extensions (RFC 2228 section 8.1, RFC 4121). Tokens are passed in
//! and returned; nothing here reads or writes the client's connection. (The Kerberos library itself
//! requests tickets from the key distribution centre.)
//!
//! The library is MIT's `libgssapi_krb5.so.2`, loaded when it is first needed: a program that is
//! built with this crate starts, and does everything else, on a host without Kerberos.
//!
//! A session is one security context for the control connection and all data connections, as RFC
//! 2228 requires. [`Session`] documents which replayed, reordered or missing messages are detected.

mod control;
mod error;
mod framing;
mod handshake;
mod sequence;
mod session;
#[allow(unsafe_code)]
mod sys;

pub use control::{decode_token, encode_token};
pub use error::{KerberosError, SessionError};
pub use framing::is_gss_token;
pub use handshake::{Acceptor, AcceptorOptions, Initiator, InitiatorOptions, MAX_TOKEN, Step};
pub use session::{Handle, Protection, Session, Stream};
pub use sys::{Credential, GssError, available};
