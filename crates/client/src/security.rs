//! GSI: which credential, the log-in, and the security of data connections.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use ropewalk_gsi::{
    Expected, GsiConf, Identity, Initiator, InitiatorOptions, NameCompatibility, Places, ProxyKind,
    ProxyTerms, Rights, Source, Step, TlsSettings, Trust, decode_token, encode_token,
};
use ropewalk_layers::{GsiLayer, Level, SecureDriver};
use ropewalk_protocol::command::{Command, DataAuthentication, Protection};
use ropewalk_protocol::url::Scheme;
use ropewalk_transport::Driver;

use crate::session::Session;
use crate::{DataProtection, Options, RemoteError};

/// What GridFTP clients announce; GCT's programs send the same.
const BUFFER: u64 = 1 << 20;
/// Tokens of a handshake, more than any has.
const ROUNDS: usize = 16;

/// Our identity, found when it is first needed.
#[derive(Default)]
pub(crate) struct Ours(OnceLock<Result<Arc<Own>, String>>);

struct Own {
    identity: Identity,
    compatibility: NameCompatibility,
}

/// How a session is secured.
#[derive(Clone)]
pub(crate) struct Secured {
    own: Arc<Own>,
    /// Data connections are authenticated.
    authenticates: bool,
}

impl Ours {
    fn get(&self, options: &Options) -> Result<Arc<Own>, String> {
        self.0.get_or_init(|| load(options).map(Arc::new)).clone()
    }
}

fn load(options: &Options) -> Result<Own, String> {
    let places = Places::of_process();
    let source = match &options.credential {
        Some(path) => Source::Proxy(path.clone()),
        None => places.client().ok_or_else(|| nothing_found(&places.proxy_path()))?,
    };
    let credential = source.load(&mut |_| None).map_err(|error| {
        format!(
            "gsiftp:// needs a credential: {error}; `ropewalk proxy init` or grid-proxy-init makes a proxy"
        )
    })?;
    let conf = std::fs::read_to_string(places.gsi_conf()).unwrap_or_default();
    let conf = GsiConf::parse(&conf, |name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let directory = options.authorities.clone().unwrap_or_else(|| places.authorities());
    if !directory.is_dir() {
        return Err(format!(
            "gsiftp:// needs trusted authorities, and there is no directory {}; X509_CERT_DIR or --authorities names \
             another one",
            directory.display()
        ));
    }
    let trust = Arc::new(Trust::directory(directory));
    let identity = Identity::new(Arc::new(credential), trust, &TlsSettings::from(&conf));
    let identity = identity.map_err(|e| e.to_string())?;
    Ok(Own { identity, compatibility: conf.name_compatibility.unwrap_or_default() })
}

fn nothing_found(proxy: &Path) -> String {
    format!(
        "gsiftp:// needs a credential, and there is none: no proxy in {} and no certificate in ~/.globus. Make a proxy \
         with `ropewalk proxy init` or grid-proxy-init; or go without any security with ftp:// or --insecure",
        proxy.display()
    )
}

impl<'e> Session<'e> {
    /// Whether this session is to log in with a certificate.
    pub(crate) fn wants_security(&self) -> bool {
        self.endpoint.url.scheme == Scheme::Gsiftp && !self.setup.options.insecure
    }

    /// AUTH and ADAT: afterwards the control connection is protected. Whoever cuts AUTH out of the way gets no further.
    pub(crate) fn authenticate(&mut self) -> Result<(), RemoteError> {
        let setup = Arc::clone(&self.setup);
        let options = &setup.options;
        let peer = self.control.peer().to_owned();
        let failed = |reason: String| RemoteError::Security { peer: peer.clone(), reason };
        let own = setup.ours.get(options).map_err(failed)?;
        let reply = self.control.call(&Command::Auth("GSSAPI".into()))?;
        if reply.code() != 334 {
            return Err(failed(format!(
                "it does not offer log-in with certificates (AUTH GSSAPI: {}), and gsiftp:// does not go on in clear; \
                 use ftp:// or --insecure where the network can be trusted",
                crate::error::text(&reply)
            )));
        }
        let host = self.endpoint.url.host.clone();
        let expected = match &options.server_subject {
            Some(subject) => Expected::Subject(subject.clone()),
            None => Expected::Host { name: host.clone(), compatibility: own.compatibility },
        };
        // Servers take part in data connections in our name.
        let terms = ProxyTerms { kind: ProxyKind::Rfc3820(Rights::Limited), ..ProxyTerms::default() };
        let handshake = InitiatorOptions {
            expected,
            delegate: options.delegate.then_some(terms),
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
                let authenticates = options.data_authentication && options.delegate;
                self.security = Some(Secured { own, authenticates });
                return Ok(());
            }
            if reply.code() != 335 {
                return Err(RemoteError::Login { peer, reply });
            }
            let text = String::from_utf8_lossy(reply.text()).into_owned();
            token = decode_token(&text).map_err(|e| failed(e.to_string()))?;
        }
        Err(failed("the handshake does not come to an end".to_owned()))
    }

    /// DCAU and PROT, where what is usual (authenticated, clear) is not wanted.
    pub(crate) fn protect_data(&mut self) -> Result<(), RemoteError> {
        let Some(security) = &self.security else { return Ok(()) };
        if !security.authenticates {
            self.call(&Command::Dcau(DataAuthentication::None))?;
            return Ok(());
        }
        let level = match self.setup.options.data_protection {
            DataProtection::Clear => Protection::Clear,
            DataProtection::Safe => Protection::Safe,
            DataProtection::Private => Protection::Private,
        };
        self.call(&Command::Pbsz(BUFFER))?;
        if level != Protection::Clear {
            self.call(&Command::Prot(level))?;
        }
        Ok(())
    }

    /// What makes and accepts the data connections of this session.
    pub(crate) fn data_driver(&self) -> Arc<dyn Driver> {
        let plain = Arc::clone(&self.setup.driver);
        match &self.security {
            Some(security) if security.authenticates => {
                let identity = security.own.identity.clone();
                let expected = Expected::Subject(identity.credential().identity().to_owned());
                let level = match self.setup.options.data_protection {
                    DataProtection::Clear => Level::Clear,
                    DataProtection::Safe | DataProtection::Private => Level::Protected,
                };
                Arc::new(SecureDriver::new(plain, Arc::new(GsiLayer { identity, expected, level })))
            }
            _ => plain,
        }
    }

    /// Data connections of this session are authenticated, and so have to be at their other end.
    pub(crate) fn authenticates_data(&self) -> bool {
        self.security.as_ref().is_some_and(|security| security.authenticates)
    }
}

/// Protection of data that was asked for is given, or nothing is done: it must not be left out in silence.
pub(crate) fn can_protect(options: &Options, scheme: Scheme) -> Result<(), String> {
    let hindrance = match options.data_protection {
        DataProtection::Clear => return Ok(()),
        _ if scheme != Scheme::Gsiftp => "only gsiftp:// has it",
        _ if options.insecure => "--insecure has none",
        _ if !options.data_authentication => {
            "data connections that are not authenticated (--no-dcau) cannot have it"
        }
        _ if !options.delegate => "the server needs a delegated proxy for it (--no-delegate)",
        _ => return Ok(()),
    };
    Err(format!("protection of data was asked for, and {hindrance}"))
}

/// Those of a control connection.
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

    #[test]
    fn protection_that_was_asked_for_is_not_left_out() {
        let private = || Options { data_protection: DataProtection::Private, ..Options::default() };
        assert_eq!(can_protect(&private(), Scheme::Gsiftp), Ok(()));
        assert_eq!(can_protect(&Options::default(), Scheme::Ftp), Ok(()));
        assert!(can_protect(&private(), Scheme::Ftp).is_err());
        for hindered in [
            Options { insecure: true, ..private() },
            Options { data_authentication: false, ..private() },
            Options { delegate: false, ..private() },
            Options { delegate: false, data_protection: DataProtection::Safe, ..Options::default() },
        ] {
            assert!(can_protect(&hindered, Scheme::Gsiftp).is_err(), "{hindered:?}");
        }
    }
}
