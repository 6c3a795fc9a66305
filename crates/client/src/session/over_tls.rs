//! TLS of a session: the handshake, and data connections that resume its TLS session.

use std::sync::Arc;

use ropewalk_layers::{Layer, TlsLayer};
use ropewalk_protocol::command::{Command, Protection};
use ropewalk_tls::{Ticket, X509};

use super::Session;
use crate::tls::{Begin, begin};
use crate::{DataProtection, RemoteError};

/// A session over TLS.
pub(crate) struct OverTls {
    /// The server's certificate, which data connections must show as well.
    certificate: X509,
    /// The ticket with which data connections resume (PROT P), unless there is a newer one. `None`:
    /// data is clear.
    private: Option<Ticket>,
}

impl Session {
    /// How this session starts TLS.
    pub(crate) fn wants_tls(&self) -> Option<Begin> {
        begin(self.endpoint.url.scheme, &self.setup.options)
    }

    /// Runs the handshake, with [`Begin::Asked`] after AUTH TLS. If an attacker removes that
    /// command, the session ends.
    pub(crate) fn begin_tls(&mut self, begin: Begin) -> Result<(), RemoteError> {
        let setup = Arc::clone(&self.setup);
        let peer = self.control.peer().to_owned();
        let failed = |reason: String| RemoteError::Security { peer: peer.clone(), reason };
        let client = setup.tls.client(&setup.options, self.endpoint.end).map_err(failed)?;
        if begin == Begin::Asked {
            let reply = self.control.call(&Command::Auth("TLS".into()))?;
            if reply.code() != 234 {
                return Err(failed(format!(
                    "it does not offer TLS (AUTH TLS: {}), and TLS is required: the session does \
                     not continue in clear",
                    crate::model::error::text(&reply)
                )));
            }
        }
        let host = self.endpoint.url.host.split('%').next().unwrap_or_default().to_owned();
        let handshake = client.connect(&host).map_err(|e| failed(e.to_string()))?;
        let established = self.control.shake(handshake, begin == Begin::AtOnce)?;
        let certificate = setup.tls.believe(&established, &host, &peer, &setup.options).map_err(failed)?;
        tracing::debug!(
            peer,
            version = established.records.version(),
            cipher = established.records.cipher(),
            "TLS"
        );
        self.control.protect_with_tls(established)?;
        self.tls = Some(OverTls { certificate, private: None });
        Ok(())
    }

    /// PBSZ and PROT (RFC 4217 section 9).
    pub(crate) fn protect_tls_data(&mut self) -> Result<(), RemoteError> {
        let private = self.setup.options.data_security.protection != DataProtection::Clear;
        self.call(&Command::Pbsz(0))?;
        self.call(&Command::Prot(if private { Protection::Private } else { Protection::Clear }))?;
        let ticket = self.control.ticket().filter(|_| private);
        if private && ticket.is_none() {
            // Never continue in clear.
            return Err(RemoteError::Security {
                peer: self.control.peer().to_owned(),
                reason: "its TLS session cannot be resumed, which protected data connections need".to_owned(),
            });
        }
        if let Some(tls) = &mut self.tls {
            tls.private = ticket;
        }
        Ok(())
    }

    /// Whether data connections use TLS.
    pub(crate) fn has_private_tls_data(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.private.is_some())
    }

    /// The TLS state that secures the data connections of this session, if TLS does.
    pub(crate) fn tls_layer(&self) -> Option<Arc<dyn Layer>> {
        let tls = self.tls.as_ref()?;
        let first = tls.private.as_ref()?;
        let ticket = self.control.ticket().unwrap_or_else(|| first.clone());
        Some(Arc::new(TlsLayer::Client { ticket, certificate: tls.certificate.clone() }))
    }
}
