//! Settings that all sessions of a server share.

use std::collections::BTreeSet;

use crate::congestion::CongestionName;
use crate::help;
use crate::reply::Reply;
use crate::streams::MAX_STREAMS;

/// Settings of a server's sessions, which are created once and shared.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Host name in the banner.
    pub hostname: String,
    /// Version in the banner and in SITE VERSION: `0.1.0`.
    pub version: String,
    pub banner: Banner,
    /// Whether to enable SITE FAULT, a test aid.
    pub faults: bool,
    /// Disabled commands, in upper case: `RETR`, `SITE RDEL`.
    pub disabled: BTreeSet<String>,
    /// Whether the reply to EPSV contains the address in addition to the port.
    pub epsv_address: bool,
    /// Longest command line in bytes. A longer line ends the session.
    pub max_line: usize,
    /// Most commands that may wait for the running operation. More commands end the session.
    pub max_queue: usize,
    /// Most bytes in all waiting commands.
    pub max_queue_bytes: usize,
    /// Highest number of streams that SITE STREAMS can set.
    pub max_streams: u32,
    /// Congestion control algorithms that a client may choose for data connections.
    pub congestion: Vec<CongestionName>,
    /// The drivers that FEAT lists for SITE SETNETSTACK (Ropewalk extension); empty: it lists none.
    pub drivers: Vec<String>,
    /// Those of `drivers` that encrypt. Their data is protected if the channel has a data key.
    pub encrypting_drivers: Vec<String>,
    /// Whether AUTH GSSAPI is offered (RFC 2228).
    pub gssapi: bool,
    /// Whether every log-in requires AUTH GSSAPI.
    pub security_required: bool,
    /// Whether AUTH TLS is offered (RFC 4217).
    pub tls: bool,
    /// The protection that is required, by any mechanism.
    pub required: RequiredProtection,
    /// Whether an upload can replace an existing file (Ropewalk extension, `OPTS STOR Replace=1;`).
    pub replaces: bool,
    /// Whether the server has data nodes, and reports that some have joined (Ropewalk extension,
    /// `OPTS RETR Nodes=`).
    pub nodes: bool,
    /// Whether `?scitag.flow=147` at the end of a path is a SciTag and not part of the name.
    pub flow_in_paths: bool,
    /// Whether SITE PROFILE is enabled (Ropewalk extension, [`crate::profiling`]).
    pub profiling: bool,
    /// Whether data connections can go to the control port (Ropewalk extension,
    /// [`crate::one_port`]).
    pub one_port: bool,
    /// SITE ONEPORT also makes channels over QUIC.
    pub quic_port: bool,
    /// Whether this is a relay that takes log-ins for servers behind it (Ropewalk extension,
    /// [`crate::hop_login`]).
    pub hop_logins: bool,
    /// Whether bearer tokens are accepted, as the password of [`TOKEN_USER`], on protected control
    /// connections.
    pub tokens: bool,
}

/// The user name whose password is a bearer token.
pub const TOKEN_USER: &[u8] = b":token:";

/// The protection without which a server refuses log-ins or transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequiredProtection {
    #[default]
    None,
    /// Protection is required for log-ins. A client is refused before it sends a password.
    Control,
    /// Protection is required for log-ins, transfers and listings.
    Data,
}

/// The greeting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Banner {
    #[default]
    Standard,
    /// The code only.
    Terse,
    /// These lines replace the standard line.
    Text(String),
    /// These lines follow the standard line.
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
            drivers: Vec::new(),
            encrypting_drivers: Vec::new(),
            gssapi: false,
            security_required: false,
            tls: false,
            required: RequiredProtection::None,
            replaces: true,
            nodes: false,
            flow_in_paths: false,
            profiling: false,
            one_port: false,
            quic_port: false,
            hop_logins: false,
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

    /// Whether `VERB` or `SITE VERB` is enabled.
    pub(super) fn allows(&self, name: &str) -> bool {
        let on = match name {
            "SITE FAULT" => self.faults,
            "SITE PROFILE" => self.profiling,
            "SITE ONEPORT" => self.one_port,
            _ => true,
        };
        on && !self.disabled.contains(name)
    }

    /// Whether sessions recognize the verb. AUTH is always recognized, so that it can be refused.
    pub(super) fn knows(&self, verb: &str) -> bool {
        let secure = self.gssapi && matches!(verb, "ADAT" | "DCSC") || self.tls && verb == "CCC";
        (secure || matches!(verb, "ABOR" | "AUTH") || help::knows(verb)) && self.allows(verb)
    }

    /// Whether sessions recognize the SITE sub-command. SHARING is recognized so that it can be
    /// refused.
    pub(super) fn knows_site(&self, verb: &str) -> bool {
        (verb == "SHARING" || help::knows_site(verb)) && self.allows(&format!("SITE {verb}"))
    }
}
