//! Kerberos: the choice between tickets and certificates, the log-in, and data connections
//! protected by its context.

use std::sync::Arc;

use ropewalk_gsi::{Places, Source};
use ropewalk_kerberos::{
    Credential, Handle, Initiator, InitiatorOptions, Protection, Step, decode_token, encode_token,
};
use ropewalk_layers::{KerberosLayer, Layer};
use ropewalk_protocol::command::{self, Command};
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::url::Scheme;

use crate::session::Session;
use crate::{Authentication, DataProtection, Options, RemoteError};

/// The buffer size that FTP clients with Kerberos announce (PBSZ), in bytes.
const BUFFER: u32 = 1 << 20;
/// Most tokens of a GSS handshake.
const ROUNDS: usize = 16;

/// The security of a session that was authenticated by a ticket.
pub(crate) struct Secured {
    context: Handle,
    /// PROT and PBSZ of data connections; `None`: they are clear.
    data: Option<(Protection, u32)>,
}

/// Whether sessions of this scheme log in with tickets. Without an explicit choice, a certificate
/// takes precedence.
pub(crate) fn wanted(options: &Options, scheme: Scheme, certificate: bool) -> bool {
    match options.login.authentication {
        Authentication::Gsi => false,
        Authentication::Kerberos => !options.login.insecure && matches!(scheme, Scheme::Gsiftp | Scheme::Ftp),
        Authentication::Auto => {
            !options.login.insecure
                && scheme == Scheme::Gsiftp
                && !certificate
                && !has_certificate()
                && Credential::client(None).is_ok_and(|credential| credential.inquire().is_ok())
        }
    }
}

/// Whether a certificate is in one of the places where GCT's programs look for it.
fn has_certificate() -> bool {
    match Places::of_process().client() {
        // The environment may name a missing file.
        Some(Source::Proxy(path) | Source::Sealed(path)) => path.exists(),
        Some(Source::Pair { certificate, .. }) => certificate.exists(),
        None => false,
    }
}

impl Session {
    pub(crate) fn wants_kerberos(&self) -> bool {
        let options = &self.setup.options;
        let certificate = options.end(self.endpoint.end).credential.is_some();
        wanted(options, self.endpoint.url.scheme, certificate)
    }

    /// AUTH and ADAT with a ticket: afterwards the control connection is protected.
    pub(crate) fn authenticate_by_ticket(&mut self) -> Result<(), RemoteError> {
        let setup = Arc::clone(&self.setup);
        let options = &setup.options;
        let peer = self.control.peer().to_owned();
        let failed = |reason: String| RemoteError::Security { peer: peer.clone(), reason };
        let credential = Credential::client(None).map_err(|e| failed(e.to_string()))?;
        let mut handshake = InitiatorOptions::new(self.endpoint.url.host.to_string());
        if !options.login.kerberos_services.is_empty() {
            handshake.services.clone_from(&options.login.kerberos_services);
        }
        handshake.principal = options.end(self.endpoint.end).server_subject;
        if let Some(subject) = handshake.principal.as_ref().filter(|name| name.starts_with('/')) {
            return Err(failed(format!(
                "{subject} is a certificate's subject; with Kerberos servers are principals, such as host/dtn.example.org@EXAMPLE.ORG"
            )));
        }
        let mut initiator = Initiator::new(Arc::new(credential), handshake);
        // Gets the ticket first: without one no command need be sent.
        let Step::Continue(mut out) = initiator.step(&[]).map_err(|e| failed(e.to_string()))? else {
            return Err(failed("Kerberos made a session without the server".to_owned()));
        };
        let reply = self.control.call(&Command::Auth("GSSAPI".into()))?;
        if reply.code() != 334 {
            return Err(failed(format!(
                "it does not offer log-in with tickets (AUTH GSSAPI: {}), and Kerberos is required: \
                 the session does not continue in clear",
                crate::model::error::text(&reply)
            )));
        }
        for _ in 0..ROUNDS {
            let reply = self.control.call(&Command::Adat(encode_token(&out).into()))?;
            if reply.code() != 335 && reply.code() != 235 {
                return Err(RemoteError::Login { peer, reply });
            }
            let done = reply.code() == 235;
            let Some(token) = token(&reply) else {
                return Err(failed(format!(
                    "it was not authenticated: {} has no Kerberos token",
                    crate::model::error::text(&reply)
                )));
            };
            let token = decode_token(&token).map_err(|e| failed(e.to_string()))?;
            match initiator.step(&token).map_err(|e| failed(e.to_string()))? {
                Step::Continue(_) if done => {
                    return Err(failed("it ended the log-in before Kerberos did".to_owned()));
                }
                Step::Continue(next) => out = next,
                Step::Done(last, session) => {
                    if !last.is_empty() || !done {
                        return Err(failed("it expects more tokens than Kerberos has".to_owned()));
                    }
                    tracing::debug!(peer, server = session.peer(), "authenticated with Kerberos");
                    self.kerberos = Some(Secured { context: session.handle(), data: None });
                    return self.control.protect(session);
                }
            }
        }
        Err(failed("the handshake does not end".to_owned()))
    }

    /// PBSZ and PROT. Without an explicit choice, data is protected if nothing else binds data
    /// connections to the session.
    pub(crate) fn protect_kerberos_data(&mut self) -> Result<(), RemoteError> {
        let (level, protection) = match self.setup.options.data_security.protection {
            DataProtection::Auto if self.can.data_keys => return Ok(()),
            DataProtection::Clear => return Ok(()),
            DataProtection::Safe => (command::Protection::Safe, Protection::Integrity),
            DataProtection::Auto | DataProtection::Private => {
                (command::Protection::Private, Protection::Confidential)
            }
        };
        let reply = self.call(&Command::Pbsz(BUFFER.into()))?;
        self.call(&Command::Prot(level))?;
        if let Some(secured) = &mut self.kerberos {
            secured.data = Some((protection, buffer(&reply)));
        }
        Ok(())
    }

    /// Whether the context protects data connections.
    pub(crate) fn wraps_data(&self) -> bool {
        self.kerberos.as_ref().is_some_and(|secured| secured.data.is_some())
    }

    pub(crate) fn kerberos_layer(&self) -> Option<Arc<dyn Layer>> {
        let secured = self.kerberos.as_ref()?;
        let (protection, buffer) = secured.data?;
        Some(Arc::new(KerberosLayer::new(secured.context.clone(), protection, buffer)))
    }
}

/// The text after `ADAT=` in a reply.
fn token(reply: &Reply) -> Option<String> {
    let text = String::from_utf8_lossy(reply.text()).into_owned();
    text.split_once("ADAT=").map(|(_, token)| token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// The buffer size that a server has agreed to: ours, or a smaller one that it named (RFC 2228
/// section 3, PBSZ).
fn buffer(reply: &Reply) -> u32 {
    let text = String::from_utf8_lossy(reply.text()).into_owned();
    let named = text.split_once("PBSZ=").and_then(|(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    named.map_or(BUFFER, |named: u32| named.min(BUFFER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say() {
        assert_eq!(buffer(&Reply::new(200, "PBSZ=65536")), 65536);
        assert_eq!(buffer(&Reply::new(200, "Accepted, PBSZ=4294967295.")), BUFFER);
        assert_eq!(buffer(&Reply::new(200, "PBSZ command successful.")), BUFFER);
        assert_eq!(token(&Reply::new(235, "ADAT=YWJj")), Some("YWJj".to_owned()));
        assert_eq!(
            token(&Reply::new(235, "GSSAPI Authentication succeeded, ADAT=YWJj ")),
            Some("YWJj".to_owned())
        );
        assert_eq!(token(&Reply::new(235, "GSSAPI Authentication successful.")), None);
        assert_eq!(token(&Reply::new(335, "ADAT=")), None);
    }

    #[test]
    fn when_tickets_are_wanted() {
        let with = |authentication| Options::default().with(|o| o.login.authentication = authentication);
        assert!(wanted(&with(Authentication::Kerberos), Scheme::Ftp, true));
        assert!(wanted(&with(Authentication::Kerberos), Scheme::Gsiftp, true));
        assert!(!wanted(&with(Authentication::Kerberos), Scheme::Sshftp, false));
        assert!(!wanted(&with(Authentication::Gsi), Scheme::Gsiftp, false));
        assert!(!wanted(&with(Authentication::Auto), Scheme::Gsiftp, true));
        assert!(!wanted(&with(Authentication::Auto), Scheme::Ftp, false));
    }
}
