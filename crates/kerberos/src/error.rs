//! Errors of this crate.

use crate::sys::GssError;

/// Why the exchange of GSS tokens failed or could not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KerberosError {
    #[error(
        "Kerberos is not installed: {reason}; the package is libgssapi-krb5-2 (Debian, Ubuntu) or krb5-libs (Red Hat)"
    )]
    Unavailable { reason: String },
    #[error(transparent)]
    Gss(#[from] GssError),
    #[error("{text:?} cannot be part of a Kerberos name")]
    Name { text: String },
    #[error("the token is no GSSAPI token: {0}")]
    Framing(&'static str),
    #[error("the token is for {found}; only Kerberos 5 itself (1.2.840.113554.1.2.2) is spoken here")]
    Mechanism { found: String },
    #[error("a token of {found} bytes; {most} are the most")]
    TooLong { found: usize, most: usize },
    #[error("the peer wants no {what}, which is required")]
    Lacks { what: &'static str },
    #[error(
        "the client has a ticket for {found}, which is no service of this server: it has to be one of {wanted}"
    )]
    Service { found: String, wanted: String },
    #[error("the server is {found}, not {wanted}")]
    WrongServer { found: String, wanted: String },
    #[error("no service is named")]
    NoService,
    #[error("the handshake is over")]
    Over,
}

/// Why a message could not be protected, or a received message was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Gss(#[from] GssError),
    #[error(
        "a message of the peer is no token of RFC 4121: the ticket has an outdated encryption type; AES is needed"
    )]
    Outdated,
    #[error("a message of the peer is cut off")]
    Truncated,
    #[error("message {number} of the peer came a second time")]
    Replayed { number: u64 },
    #[error("message {number} of the peer came after {last}: somebody has changed their order")]
    OutOfOrder { number: u64, last: u64 },
    #[error("message {number} of the peer is missing: {found} came")]
    Missing { number: u64, found: u64 },
    #[error("a message of the peer is not encrypted, which is required")]
    NotEncrypted,
    #[error("the message cannot be encrypted by this ticket's encryption type")]
    CannotEncrypt,
    #[error("the reply or command is not protected: {0}")]
    Line(&'static str),
}
