//! What all sessions of a server have in common.

use std::collections::BTreeSet;

use crate::congestion::CongestionName;
use crate::help;
use crate::reply::Reply;
use crate::streams::MAX_STREAMS;

/// Settings of a server's sessions, made once and shared.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// In the banner.
    pub hostname: String,
    /// In the banner and in SITE VERSION: `0.1.0`.
    pub version: String,
    pub banner: Banner,
    /// SITE FAULT, a test aid.
    pub faults: bool,
    /// Commands that do not exist, in upper case: `RETR`, `SITE RDEL`.
    pub disabled: BTreeSet<String>,
    /// Put the address, not only the port, into the reply to EPSV.
    pub epsv_address: bool,
    /// Bytes of a command line. A longer one ends the session.
    pub max_line: usize,
    /// Commands that may wait for the one under way. More end the session.
    pub max_queue: usize,
    /// Bytes of all commands that wait.
    pub max_queue_bytes: usize,
    /// Most streams that SITE STREAMS sets.
    pub max_streams: u32,
    /// Congestion controls that a client may choose for data connections.
    pub congestion: Vec<CongestionName>,
    /// AUTH GSSAPI is offered (RFC 2228).
    pub gssapi: bool,
    /// Nobody may log in without it.
    pub security_required: bool,
    /// AUTH TLS is offered (RFC 4217).
    pub tls: bool,
    /// What has to be protected, whoever by.
    pub required: RequiredProtection,
    /// An upload can take the place of what has its name (our extension, `OPTS STOR Replace=1;`).
    pub replaces: bool,
    /// SITE PROFILE is known (our extension, [`crate::profiling`]).
    pub profiling: bool,
    /// Bearer tokens are taken, as the password of [`TOKEN_USER`], on protected control connections.
    pub tokens: bool,
}

/// The user whose password is a bearer token.
pub const TOKEN_USER: &[u8] = b":token:";

/// What a server does not do in clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequiredProtection {
    #[default]
    None,
    /// Log-ins: names and passwords are refused before they are sent.
    Control,
    /// Log-ins, transfers and listings.
    Data,
}

/// The greeting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Banner {
    #[default]
    Standard,
    /// The code only.
    Terse,
    /// These lines in place of the standard one.
    Text(String),
    /// These lines after the standard one.
    Appended(String),
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            hostname: "localhost".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            banner: Banner::Standard,
            faults: false,
            disabled: BTreeSet::new(),
            epsv_address: false,
            max_line: 16 << 10,
            max_queue: 1000,
            max_queue_bytes: 1 << 20,
            max_streams: MAX_STREAMS,
            congestion: Vec::new(),
            gssapi: false,
            security_required: false,
            tls: false,
            required: RequiredProtection::None,
            replaces: true,
            profiling: false,
            tokens: false,
        }
    }
}

impl SessionConfig {
    /// The greeting of a new connection.
    pub fn banner_reply(&self) -> Reply {
        let standard = format!("{} GridFTP Server {} [Ropewalk] ready.", self.hostname, self.version);
        match &self.banner {
            Banner::Standard => Reply::new(220, standard),
            Banner::Terse => Reply::new(220, ""),
            Banner::Text(text) => Reply::coded(220, text.lines()),
            Banner::Appended(text) => Reply::coded(220, [standard.as_str()].into_iter().chain(text.lines())),
        }
    }

    /// Whether `VERB` or `SITE VERB` is not switched off.
    pub(super) fn allows(&self, name: &str) -> bool {
        let on = match name {
            "SITE FAULT" => self.faults,
            "SITE PROFILE" => self.profiling,
            _ => true,
        };
        on && !self.disabled.contains(name)
    }

    /// Whether sessions know the verb; AUTH is known in order to be refused.
    pub(super) fn knows(&self, verb: &str) -> bool {
        let secure = self.gssapi && matches!(verb, "ADAT" | "DCSC") || self.tls && verb == "CCC";
        (secure || matches!(verb, "ABOR" | "AUTH") || help::knows(verb)) && self.allows(verb)
    }

    /// Whether sessions know the SITE sub-command; SHARING is known in order to be refused.
    pub(super) fn knows_site(&self, verb: &str) -> bool {
        (verb == "SHARING" || help::knows_site(verb)) && self.allows(&format!("SITE {verb}"))
    }
}
