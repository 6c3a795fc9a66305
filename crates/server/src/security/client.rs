//! The client of a session, by the mechanism that protects the control connection.

use std::net::IpAddr;
use std::sync::Arc;

use ropewalk_kerberos::is_gss_token;
use ropewalk_layers::Layer;
use ropewalk_nodes::SecurityOrder;
use ropewalk_protocol::server::{ChannelOptions, Failure, Mechanism, Outcome};

use crate::security::codec::{ControlCodec, Sealed, Secured};
use crate::security::{gsi, kerberos, tls};
use crate::settings::Settings;

#[derive(Default)]
pub(crate) enum SecurityContext {
    /// The control connection is clear.
    #[default]
    Clear,
    /// AUTH GSSAPI was received. The first token determines the mechanism.
    Gssapi,
    /// RFC 2228, with certificates.
    Gsi(Box<gsi::Client>),
    /// RFC 2228, with a Kerberos ticket.
    Kerberos(Box<kerberos::Client>),
    /// RFC 4217.
    Tls(Box<tls::Client>),
}

impl SecurityContext {
    /// A client whose connection uses implicit TLS.
    pub(crate) fn within_tls(settings: &Settings, address: IpAddr) -> Result<Self, Failure> {
        Ok(Self::Tls(Box::new(tls::Client::new(settings.tls.as_ref(), address)?)))
    }

    /// AUTH.
    pub(crate) fn begin(
        &mut self,
        mechanism: Mechanism,
        settings: &Settings,
        address: IpAddr,
    ) -> Result<Outcome, Failure> {
        match mechanism {
            Mechanism::Gssapi => *self = Self::Gssapi,
            Mechanism::Tls => *self = Self::within_tls(settings, address)?,
        }
        Ok(Outcome::Done)
    }

    /// ADAT.
    pub(crate) fn token(&mut self, settings: &Settings, token: &[u8]) -> Result<Outcome, Failure> {
        if matches!(self, Self::Gssapi) {
            *self = Self::of_first_token(settings, token)?;
        }
        match self {
            Self::Kerberos(client) => client.token(&decoded(token)?),
            Self::Gsi(client) => client.token(settings.gsi.as_ref(), token),
            _ => Err(Failure::Refused { code: 503, text: "Send AUTH GSSAPI first.".into() }),
        }
    }

    /// A TLS record starts the handshake of GSI. Kerberos has the framing of RFC 2743.
    fn of_first_token(settings: &Settings, token: &[u8]) -> Result<Self, Failure> {
        if is_gss_token(&decoded(token)?) {
            return Ok(Self::Kerberos(Box::new(kerberos::Client::new(settings.kerberos.as_ref())?)));
        }
        let mut client = gsi::Client::default();
        if settings.gsi.is_none() {
            let text = "GSSAPI authentication failed: this server takes Kerberos tickets, not certificates.";
            return Err(Failure::Refused { code: 530, text: text.into() });
        }
        client.begin(settings.gsi.as_ref())?;
        Ok(Self::Gsi(Box::new(client)))
    }

    /// DCSC.
    pub(crate) fn set_own(&mut self, settings: &Settings, blob: Option<&[u8]>) -> Result<Outcome, Failure> {
        match self {
            Self::Gsi(client) => client.set_own(settings.gsi.as_ref(), blob),
            _ => Err(Failure::Refused {
                code: 503,
                text: "DCSC needs a log-in with a certificate (AUTH GSSAPI).".into(),
            }),
        }
    }

    /// The one-line subject of the client's certificate, or its principal, if the client has proved
    /// it.
    pub(crate) fn subject(&self) -> Option<&str> {
        match self {
            Self::Clear | Self::Gssapi => None,
            Self::Gsi(client) => client.subject(),
            Self::Kerberos(client) => client.principal(),
            Self::Tls(client) => client.subject(),
        }
    }

    /// The codec for the lines of the control connection after AUTH or after the last ADAT.
    pub(crate) fn codec(&mut self, longest: usize) -> Option<Box<dyn ControlCodec>> {
        match self {
            Self::Clear | Self::Gssapi => None,
            Self::Kerberos(client) => Some(Box::new(Sealed::new(client.take_established()?, longest))),
            Self::Gsi(client) => Some(Box::new(Sealed::new(client.take_established()?, longest))),
            Self::Tls(client) => client.codec(),
        }
    }

    /// The handshake on the control connection is complete.
    pub(crate) fn established(&mut self, secured: Secured) {
        if let Self::Tls(client) = self {
            client.established(secured);
        }
    }

    /// Whether a node can have the security of the data connections of a channel. With Kerberos
    /// they have the context of the control connection, which is here: two programs with copies of
    /// it would give its sequence numbers twice, and the client would take that for a replay.
    pub(crate) fn suits_node(&self, options: &ChannelOptions) -> Result<bool, Failure> {
        Ok(match self {
            Self::Clear | Self::Gssapi | Self::Gsi(_) | Self::Tls(_) => true,
            Self::Kerberos(_) => self.layer(options)?.is_none(),
        })
    }

    /// The security of the data connections of a channel, for a node; `None`: they have none.
    pub(crate) fn for_node(
        &self,
        settings: &Settings,
        options: &ChannelOptions,
    ) -> Result<Option<SecurityOrder>, Failure> {
        match self {
            Self::Clear | Self::Gssapi => Ok(None),
            Self::Gsi(client) => Ok(client.order(settings.gsi.as_ref(), options)?.map(SecurityOrder::Gsi)),
            Self::Tls(client) => Ok(client.order(options)?.map(SecurityOrder::Tls)),
            Self::Kerberos(_) if self.suits_node(options)? => Ok(None),
            Self::Kerberos(_) => {
                let text = "The data connections are bound to this server: no node can have them.";
                Err(Failure::Refused { code: 500, text: text.into() })
            }
        }
    }

    /// The layer that protects data connections of a channel; `None`: they are not protected.
    pub(crate) fn layer(&self, options: &ChannelOptions) -> Result<Option<Arc<dyn Layer>>, Failure> {
        match self {
            Self::Clear | Self::Gssapi => Ok(None),
            Self::Gsi(client) => client.layer(options),
            Self::Kerberos(client) => Ok(client.layer(options)),
            Self::Tls(client) => Ok(client.layer(options)),
        }
    }
}

/// The decoded argument of ADAT.
fn decoded(token: &[u8]) -> Result<Vec<u8>, Failure> {
    let text = std::str::from_utf8(token).ok();
    text.and_then(|text| ropewalk_kerberos::decode_token(text).ok()).ok_or_else(|| Failure::Refused {
        code: 530,
        text: "GSSAPI authentication failed: the token is not base64".into(),
    })
}
