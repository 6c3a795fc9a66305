//! GSI: the choice of credential, the log-in, and the security of data connections.

use std::sync::Arc;

use ropewalk_gsi::{
    Expected, Initiator, InitiatorOptions, ProxyKind, ProxyTerms, Rights, Step, decode_token, encode_token,
};
use ropewalk_layers::{GsiLayer, Layer, Level};
use ropewalk_protocol::command::{Command, DataAuthentication, Protection};
use ropewalk_protocol::url::Scheme;

use crate::credential::Own;
use crate::place::End;
use crate::session::Session;
use crate::tls;
use crate::{Authentication, DataCredential, DataProtection, Options, RemoteError};

use super::data_trust::DataTrust;
use super::kerberos;

/// The buffer size that GridFTP clients announce; GCT's programs send the same.
const BUFFER: u64 = 1 << 20;
/// Most tokens of a GSS handshake.
const ROUNDS: usize = 16;

/// The security of a session.
#[derive(Clone)]
pub(crate) struct Secured {
    own: Arc<Own>,
    /// Data connections are authenticated.
    authenticates: bool,
}

impl Session {
    /// Whether this session is to log in with a certificate.
    pub(crate) fn wants_security(&self) -> bool {
        self.endpoint.url.scheme == Scheme::Gsiftp && !self.setup.options.login.insecure
    }

    /// AUTH and ADAT: afterwards the control connection is protected. If an attacker removes AUTH,
    /// the session ends.
    pub(crate) fn authenticate(&mut self) -> Result<(), RemoteError> {
        let setup = Arc::clone(&self.setup);
        let options = &setup.options;
        let peer = self.control.peer().to_owned();
        let failed = |reason: String| RemoteError::Security { peer: peer.clone(), reason };
        let end = options.end(self.endpoint.end);
        let own = setup.ours.get(options, end.credential.as_deref()).map_err(failed)?;
        let reply = self.control.call(&Command::Auth("GSSAPI".into()))?;
        if reply.code() != 334 {
            return Err(failed(format!(
                "it does not offer log-in with certificates (AUTH GSSAPI: {}), and gsiftp:// does \
                 not continue in clear; use ftp:// or --insecure if the network can be trusted",
                crate::model::error::text(&reply)
            )));
        }
        let host = self.endpoint.url.host.clone();
        let expected = match &end.server_subject {
            Some(subject) => Expected::Subject(subject.clone()),
            None => Expected::Host { name: host.clone(), compatibility: own.compatibility },
        };
        // Servers use the credential for data connections on our behalf.
        let terms = ProxyTerms { kind: ProxyKind::Rfc3820(Rights::Limited), ..ProxyTerms::default() };
        let handshake = InitiatorOptions {
            expected,
            delegate: options.login.delegate.then_some(terms),
            server_name: Some(host),
            ..secured_options()
        };
        let mut initiator = Initiator::new(&own.identity, handshake).map_err(|e| failed(e.to_string()))?;
        let mut token = Vec::new();
        for _ in 0..ROUNDS {
            let (out, session) = match initiator.step(&token).map_err(|e| failed(e.to_string()))? {
                Step::Continue(out) => (out, None),
                Step::Done(out, session) => (out, Some(session)),
            };
            let reply = self.control.call(&Command::Adat(encode_token(&out).into()))?;
            if let Some(session) = session {
                if reply.code() != 235 {
                    return Err(RemoteError::Login { peer, reply });
                }
                self.control.protect(session)?;
                let authenticates = options.data_security.authentication
                    && (options.login.delegate || options.data_security.credential != DataCredential::Usual);
                self.security = Some(Secured { own, authenticates });
                return Ok(());
            }
            if reply.is_failure() {
                return Err(RemoteError::Login { peer, reply });
            }
            // An early success reply may come from anyone.
            if reply.code() != 335 {
                return Err(failed(format!(
                    "it reported success before the handshake was complete: {}",
                    crate::model::error::text(&reply)
                )));
            }
            let text = String::from_utf8_lossy(reply.text()).into_owned();
            token = decode_token(&text).map_err(|e| failed(e.to_string()))?;
        }
        Err(failed("the handshake does not end".to_owned()))
    }

    /// Sends DCAU and PROT, unless the defaults (authenticated, clear) apply.
    pub(crate) fn protect_data(&mut self) -> Result<(), RemoteError> {
        let Some(security) = &self.security else { return Ok(()) };
        if !security.authenticates {
            self.call(&Command::Dcau(DataAuthentication::None))?;
            return Ok(());
        }
        let level = self.data_protection();
        self.call(&Command::Pbsz(BUFFER))?;
        if level != Protection::Clear {
            self.call(&Command::Prot(level))?;
        }
        self.give_data_credential()
    }

    /// The credential of the log-in, if there is one.
    pub(crate) fn own(&self) -> Option<Arc<Own>> {
        self.security.as_ref().map(|security| Arc::clone(&security.own))
    }

    /// Whether data connections of this session are authenticated by GSI.
    pub(super) fn has_gsi_data(&self) -> bool {
        self.security.as_ref().is_some_and(|security| security.authenticates)
    }

    /// The layer for data connections that GSI authenticates.
    pub(super) fn gsi_layer(&self) -> Option<Arc<dyn Layer>> {
        let security = self.security.as_ref().filter(|security| security.authenticates)?;
        let identity = match &self.data_trust {
            DataTrust::Own(own) => own.identity.clone(),
            DataTrust::Login | DataTrust::Peer(_) => security.own.identity.clone(),
        };
        let expected = Expected::Subject(identity.credential().identity().to_owned());
        let level = match self.data_protection() {
            Protection::Clear => Level::Clear,
            _ => Level::Protected,
        };
        Some(Arc::new(GsiLayer { identity, expected, level }))
    }

    /// The PROT that the options ask for.
    pub(super) fn data_protection(&self) -> Protection {
        match self.setup.options.data_security.protection {
            DataProtection::Auto | DataProtection::Clear => Protection::Clear,
            DataProtection::Safe => Protection::Safe,
            DataProtection::Private => Protection::Private,
        }
    }

    /// Whether data connections of this session are authenticated, which their other end must
    /// support.
    pub(crate) fn authenticates_data(&self) -> bool {
        self.has_private_tls_data() || self.wraps_data() || self.has_gsi_data()
    }
}

/// Refuses options that the session cannot fulfil: a requested protection of data, or a check of
/// the server's certificate, must not be omitted silently.
pub(crate) fn can_protect(options: &Options, end: Option<End>, scheme: Scheme) -> Result<(), String> {
    looks_at_certificate(options, scheme)?;
    if options.end(end).server_subject.is_some() && tls::begin(scheme, options).is_some() {
        return Err("--server-subject requires a subject of the server's certificate, and only \
                    gsiftp:// checks it: with TLS (ftps://, ftpes://, --tls) use --fingerprint"
            .to_owned());
    }
    logs_in_as_asked(options, scheme)?;
    let hindrance = match options.data_security.protection {
        DataProtection::Auto | DataProtection::Clear => return Ok(()),
        _ if tls::begin(scheme, options).is_some() => return Ok(()),
        _ if options.login.authentication == Authentication::Kerberos
            && kerberos::wanted(options, scheme, false) =>
        {
            return Ok(());
        }
        _ if scheme != Scheme::Gsiftp => "only gsiftp:// and TLS (ftps://, ftpes://, --tls) have it",
        _ if options.login.insecure => "--insecure has none",
        _ if !options.data_security.authentication => {
            "data connections that are not authenticated (--no-dcau) cannot have it"
        }
        _ if !options.login.delegate && options.data_security.credential == DataCredential::Usual => {
            "the server needs a delegated proxy for it (--no-delegate)"
        }
        _ => return Ok(()),
    };
    Err(format!("protection of data is required, and {hindrance}"))
}

/// A user who requests a log-in with a certificate or a ticket must not be logged in in another
/// way.
fn logs_in_as_asked(options: &Options, scheme: Scheme) -> Result<(), String> {
    if options.login.insecure && options.login.authentication != Authentication::Auto {
        return Err("--auth requires a protected log-in, and --insecure an unprotected one: omit one \
                    of them"
            .to_owned());
    }
    let tls = tls::begin(scheme, options).is_some();
    if options.login.authentication == Authentication::Kerberos
        && (tls || !kerberos::wanted(options, scheme, false))
    {
        return Err("a log-in with a ticket is required (--auth kerberos), and only gsiftp:// and \
                    ftp:// without TLS have it"
            .to_owned());
    }
    let clear = scheme == Scheme::Ftp && !tls;
    if options.login.authentication == Authentication::Gsi && clear {
        return Err(
            "a log-in with a certificate is required (--auth gsi), and ftp:// has none: use gsiftp://"
                .to_owned(),
        );
    }
    Ok(())
}

/// The user said which certificates to trust, so the server must show one.
fn looks_at_certificate(options: &Options, scheme: Scheme) -> Result<(), String> {
    if tls::begin(scheme, options).is_some() {
        return Ok(());
    }
    if options.trust.revocations.is_some() {
        let instead = match scheme {
            Scheme::Gsiftp => "; gsiftp:// reads those beside its authorities, HASH.r0",
            _ => "",
        };
        return Err(format!(
            "--revocations requires a check for revoked certificates, and only TLS (ftps://, \
             ftpes://, --tls) does that{instead}"
        ));
    }
    // The other schemes have other means to authenticate the server.
    if options.trust.fingerprint.is_some() && scheme == Scheme::Ftp {
        return Err("--fingerprint requires a certificate of the server, and only TLS (ftps://, \
                    ftpes://, --tls) asks for one"
            .to_owned());
    }
    Ok(())
}

/// Options of a control connection.
fn secured_options() -> InitiatorOptions {
    InitiatorOptions {
        expected: Expected::Anybody,
        delegate: None,
        after: ropewalk_gsi::After::Flag,
        server_name: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EndOptions;

    fn can_protect_both(options: &Options, scheme: Scheme) -> Result<(), String> {
        can_protect(options, None, scheme)
    }

    #[test]
    fn protection_that_was_asked_for_is_not_left_out() {
        let private = || Options::default().with(|o| o.data_security.protection = DataProtection::Private);
        assert_eq!(can_protect_both(&private(), Scheme::Gsiftp), Ok(()));
        assert_eq!(can_protect_both(&Options::default(), Scheme::Ftp), Ok(()));
        assert!(can_protect_both(&private(), Scheme::Ftp).is_err());
        for hindered in [
            private().with(|o| o.login.insecure = true),
            private().with(|o| o.data_security.authentication = false),
            private().with(|o| o.login.delegate = false),
            Options::default().with(|o| {
                o.login.delegate = false;
                o.data_security.protection = DataProtection::Safe;
            }),
        ] {
            assert!(can_protect_both(&hindered, Scheme::Gsiftp).is_err(), "{hindered:?}");
        }
    }

    #[test]
    fn a_certificate_that_was_asked_for_is_not_left_out() {
        let gsi = || Options::default().with(|o| o.login.authentication = Authentication::Gsi);
        let error = can_protect_both(&gsi(), Scheme::Ftp).err().unwrap_or_default();
        assert!(error.contains("--auth gsi"), "{error}");
        for scheme in [Scheme::Gsiftp, Scheme::Sshftp, Scheme::Ftps, Scheme::Ftpes] {
            assert_eq!(can_protect_both(&gsi(), scheme), Ok(()), "{scheme:?}");
        }
        assert_eq!(can_protect_both(&gsi().with(|o| o.login.tls = true), Scheme::Ftp), Ok(()));
    }

    #[test]
    fn a_ticket_that_was_asked_for_is_not_left_out() {
        let tickets = || Options::default().with(|o| o.login.authentication = Authentication::Kerberos);
        for scheme in [Scheme::Gsiftp, Scheme::Ftp] {
            assert_eq!(can_protect_both(&tickets(), scheme), Ok(()), "{scheme:?}");
        }
        for (tls, scheme) in
            [(false, Scheme::Ftps), (false, Scheme::Ftpes), (false, Scheme::Sshftp), (true, Scheme::Ftp)]
        {
            let error =
                can_protect_both(&tickets().with(|o| o.login.tls = tls), scheme).err().unwrap_or_default();
            assert!(error.contains("--auth kerberos"), "{scheme:?}: {error}");
        }
    }

    #[test]
    fn a_log_in_that_was_asked_for_is_not_made_insecure() {
        for authentication in [Authentication::Gsi, Authentication::Kerberos] {
            let both = Options::default().with(|o| {
                o.login.authentication = authentication;
                o.login.insecure = true;
            });
            for scheme in [Scheme::Gsiftp, Scheme::Ftp] {
                let error = can_protect_both(&both, scheme).err().unwrap_or_default();
                assert!(error.contains("--auth") && error.contains("--insecure"), "{error}");
            }
        }
    }

    #[test]
    fn certificates_that_were_to_be_looked_at_are_there() {
        let lists = || Options::default().with(|o| o.trust.revocations = Some("lists.pem".into()));
        for scheme in [Scheme::Ftp, Scheme::Gsiftp, Scheme::Sshftp] {
            let error = can_protect_both(&lists(), scheme).err().unwrap_or_default();
            assert!(error.contains("--revocations"), "{scheme:?}: {error}");
            assert_eq!(error.contains("HASH.r0"), scheme == Scheme::Gsiftp, "{error}");
        }
        for (tls, scheme) in [(true, Scheme::Ftp), (false, Scheme::Ftps), (false, Scheme::Ftpes)] {
            assert_eq!(can_protect_both(&lists().with(|o| o.login.tls = tls), scheme), Ok(()), "{scheme:?}");
        }
        let subject = EndOptions { server_subject: Some("/CN=a".into()), ..EndOptions::default() };
        let subject = Options::default().with(|o| o.login.source = subject);
        for scheme in [Scheme::Ftps, Scheme::Ftpes] {
            assert!(can_protect(&subject, Some(End::Source), scheme).is_err(), "{scheme:?}");
            assert_eq!(can_protect(&subject, Some(End::Destination), scheme), Ok(()), "{scheme:?}");
        }
        for scheme in [Scheme::Ftp, Scheme::Gsiftp] {
            assert_eq!(can_protect(&subject, Some(End::Source), scheme), Ok(()));
        }
        let shown = Options::default().with(|o| o.trust.fingerprint = "0".repeat(64).parse().ok());
        assert!(can_protect_both(&shown, Scheme::Ftp).is_err());
        assert_eq!(can_protect_both(&shown, Scheme::Ftps), Ok(()));
    }
}
