//! A configuration prepared for use: credentials are loaded, and the access list is compiled.
//!
//! The host replaces its settings at a reload. A session keeps those with which it began.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_layers::Registry;
use ropewalk_protocol::server::{Banner, RequiredProtection, Session, SessionConfig};
use ropewalk_security::{AccessList, PasswordError, PasswordFile};
use ropewalk_storage::ErrorKind;

use crate::config::{self, Config, Problem, Severity};
use crate::error::{Error, Result};
use crate::host::scitags::SciTags;
use crate::host::stores::Stores;
use crate::quic_port::QUIC;
use crate::security::gsi::Authority;
use crate::security::kerberos;
use crate::security::tls;
use crate::security::tokens::TokenAuthority;

/// The longest command line that contains a credential.
const SECURITY_LINE: usize = 128 << 10;
/// `PASS` with a bearer token.
const TOKEN_LINE: usize = ropewalk_tokens::LONGEST_TOKEN + 64;
/// The longest line with a log-in for a server behind a relay: a token, and names.
const HOP_LOGIN_LINE: usize = TOKEN_LINE + 512;

pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) access: AccessList,
    pub(crate) hostname: String,
    sessions: Arc<SessionConfig>,
    passwords: Option<Mutex<Arc<PasswordFile>>>,
    /// Log-in with certificates.
    pub(crate) gsi: Option<Authority>,
    /// Log-in with Kerberos tickets.
    pub(crate) kerberos: Option<kerberos::Authority>,
    pub(crate) tls: Option<tls::Authority>,
    /// Log-in with bearer tokens.
    pub(crate) tokens: Option<TokenAuthority>,
    pub(crate) scitags: SciTags,
}

impl Settings {
    /// `measures`: the program can measure this host.
    pub(crate) fn prepare(mut config: Config, stores: &Stores, measures: bool) -> Result<Self> {
        if config.profiling.enabled && !measures {
            tracing::warn!("this program cannot take profiles: profiling.enabled is ignored");
            config.profiling.enabled = false;
        }
        let problem = |setting: &str, text: String| {
            Error::Config(vec![Problem { severity: Severity::Error, setting: setting.into(), text }])
        };
        let passwords = match &config.password_file {
            None => None,
            Some(path) => {
                let file = PasswordFile::load(path).map_err(|e| problem("password_file", e.to_string()))?;
                Some(Mutex::new(Arc::new(file)))
            }
        };
        let gsi = config
            .gsi
            .as_ref()
            .map(|gsi| Authority::load(gsi, !config.relay.to.is_empty()))
            .transpose()
            .map_err(|e| problem("gsi", e))?;
        let kerberos = config.kerberos.as_ref().map(kerberos::Authority::load).transpose();
        let kerberos = kerberos.map_err(|e| problem("kerberos", e))?;
        let tokens =
            config.tokens.as_ref().map(TokenAuthority::load).transpose().map_err(|e| problem("tokens", e))?;
        let scitags = SciTags::load(&config.scitags).map_err(|(setting, text)| problem(setting, text))?;
        let hostname = config.hostname.clone().unwrap_or_else(system_name);
        let tls = match config.tls() {
            None => None,
            Some(wanted) => match tls::Authority::load(wanted, &tls::host_names(&config, &hostname)) {
                Ok(tls) => Some(tls),
                Err(error) if config.may_do_without_tls() => {
                    tracing::warn!(
                        %error,
                        "AUTH TLS is not offered: name a tls.state_directory that the server may write to, or a tls.certificate"
                    );
                    None
                }
                Err(error) => return Err(problem("tls", config.without_tls(error))),
            },
        };
        let maps = config.identity.mapped && ropewalk_storage::Identity::can_act();
        // Roots that contain a user's name are checked when the user logs in.
        let roots =
            [&config.root, &config.defaults.root, &config.anonymous.as_ref().and_then(|a| a.root.clone())];
        for root in roots.into_iter().flatten().filter(|root| !names_user(root)) {
            match stores.check(root) {
                // The users need access to it, not the server.
                Err(error) if maps && error.kind() == ErrorKind::PermissionDenied => {}
                result => {
                    result.map_err(|e| problem("root", format!("{}: {e}", root.display())))?;
                }
            }
        }
        Ok(Self {
            access: AccessList::new(config.access.allow.clone(), config.access.deny.clone()),
            sessions: Arc::new(session_config(&config, &hostname, tls.is_some())),
            hostname,
            passwords,
            gsi,
            kerberos,
            tls,
            tokens,
            scitags,
            config,
        })
    }

    /// The longest command line in bytes.
    pub(crate) fn longest_line(&self) -> usize {
        self.sessions.max_line
    }

    /// Offers channels over QUIC at a shared port, if there is one and QUIC is allowed.
    pub(crate) fn with_quic_port(mut self, is_open: bool) -> Self {
        let has_quic = self.config.data.drivers.iter().any(|name| name == QUIC);
        Arc::make_mut(&mut self.sessions).quic_port = is_open && has_quic;
        self
    }

    /// A new session with these settings.
    pub(crate) fn session(&self) -> Session {
        Session::new(Arc::clone(&self.sessions))
    }

    /// The password file as it is on disk now; `None` if the settings name none.
    pub(crate) fn passwords(&self) -> std::result::Result<Option<Arc<PasswordFile>>, PasswordError> {
        let Some(passwords) = &self.passwords else {
            return Ok(None);
        };
        let mut passwords = passwords.lock();
        if passwords.changed()? {
            Arc::make_mut(&mut passwords).refresh()?;
            tracing::info!(path = %passwords.path().display(), "password file read again");
        }
        Ok(Some(Arc::clone(&passwords)))
    }
}

fn session_config(config: &Config, hostname: &str, tls: bool) -> SessionConfig {
    let drivers = &config.data.drivers;
    SessionConfig {
        hostname: hostname.to_owned(),
        banner: config.banner.clone().map_or(Banner::Standard, Banner::Text),
        disabled: config.disabled_commands.iter().map(|name| name.to_ascii_uppercase()).collect(),
        faults: config.testing.faults,
        // Tokens and credentials of GSI need long lines.
        max_line: config
            .limits
            .line_length
            .max(if config.gsi.is_some() || config.kerberos.is_some() { SECURITY_LINE } else { 0 })
            .max(if config.tokens.is_some() { TOKEN_LINE } else { 0 })
            .max(if config.relay.to.is_empty() { 0 } else { HOP_LOGIN_LINE }),
        max_queue: config.limits.queue,
        max_streams: config.data.max_streams,
        replaces: config.files.part_files,
        nodes: config.nodes.is_some(),
        congestion: config.data.congestion_choices.iter().filter_map(|name| name.parse().ok()).collect(),
        // Without certificates, a stack with `gsi` is refused.
        drivers: drivers.iter().filter(|name| config.gsi.is_some() || *name != "gsi").cloned().collect(),
        encrypting_drivers: Registry::standard()
            .encrypting()
            .filter(|name| drivers.iter().any(|driver| driver == name))
            .map(str::to_owned)
            .collect(),
        gssapi: config.gsi.is_some() || config.kerberos.is_some(),
        tokens: config.tokens.is_some(),
        flow_in_paths: config.scitags.in_paths,
        profiling: config.profiling.enabled,
        one_port: true,
        hop_logins: !config.relay.to.is_empty(),
        security_required: config.gsi.as_ref().is_some_and(|gsi| gsi.required)
            || config.kerberos.as_ref().is_some_and(|kerberos| kerberos.required),
        tls,
        required: match config.required_protection() {
            config::RequiredProtection::None => RequiredProtection::None,
            config::RequiredProtection::Control => RequiredProtection::Control,
            config::RequiredProtection::Data => RequiredProtection::Data,
        },
        ..SessionConfig::default()
    }
}

fn names_user(root: &Path) -> bool {
    let root = root.to_string_lossy();
    root.contains("{user}") || root.contains("{home}")
}

fn system_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn required_protection_without_tls_holds() {
        for (word, expected) in [("control", RequiredProtection::Control), ("data", RequiredProtection::Data)]
        {
            for enabled in [true, false] {
                let text = format!("[tls]\nenabled = {enabled}\nrequired = \"{word}\"\n");
                let session = session_config(&Config::parse(&text).unwrap(), "data.example", enabled);
                assert_eq!(session.required, expected, "{text}");
            }
        }
    }
}
