//! The settings of a gateway, and those of the server in front that follow from them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ropewalk_remote_store::{InvalidTarget, Targets};
use ropewalk_security::AddressPattern;
use ropewalk_server::{AnonymousAccess, Config, RequiredProtection, RunAs, Tls};
use serde::{Deserialize, Deserializer};

use crate::myproxy::MyProxy;

/// The settings of a gateway: a TOML file, or values of flags. Unknown ones are errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Addresses and ports for clients.
    pub listen: Vec<SocketAddr>,
    /// The file of `ropewalk passwd`. With it, each client needs a password.
    pub password_file: Option<PathBuf>,
    /// The addresses from which clients may connect. Without a file of passwords, they need none.
    pub authorized_hosts: Vec<AddressPattern>,
    /// The servers that clients may name by URL: hosts, addresses, networks, with commas between.
    #[serde(deserialize_with = "targets")]
    pub allow_targets: Targets,
    /// The target of sessions that name none: a URL or the name of a site.
    pub default: Option<String>,
    /// The log-in behind for clients of authorised hosts without passwords.
    pub hosts: FarLogin,
    /// The server at which users prove their passwords and have their credentials, in place of a
    /// file of passwords.
    pub myproxy: Option<MyProxy>,
    /// Targets by name.
    pub sites: BTreeMap<String, Site>,
    /// The certificates of each user, and his log-in behind.
    pub users: BTreeMap<String, User>,
    /// Other settings of the server in front, as in its own file: TLS, limits, time limits.
    pub server: Config,
}

/// A target that the configuration names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// `gsiftp://host:port/`
    pub url: String,
}

/// The credential that a user has behind the gateway.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct FarLogin {
    /// Certificate, key and chain in one file, such as a proxy.
    pub credential: Option<PathBuf>,
    /// A file with a bearer token.
    pub token_file: Option<PathBuf>,
}

/// A user of the gateway.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    /// One-line subjects (`/O=Example/CN=Ada`) of the client certificates with which the user logs
    /// in without a password.
    pub certificates: Vec<String>,
    /// As for [`FarLogin`].
    pub credential: Option<PathBuf>,
    /// As for [`FarLogin`].
    pub token_file: Option<PathBuf>,
}

/// A gateway cannot start with its settings.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error(
        "no client could log in: name a file of passwords (--password-file, made by `ropewalk passwd`), \
         the authorities of client certificates (--client-authorities) with certificates of users \
         (users.NAME.certificates), a MyProxy server (--myproxy), or the clients that need no proof \
         (--authorized-hosts ADDRESS/CIDR,...)"
    )]
    NoLogin,
    #[error(
        "users.{0}: a user who has a credential needs a password, or any client of an authorized host \
         could take it: name a file of passwords (--password-file)"
    )]
    UserWithoutPassword(String),
    #[error(
        "hosts: where users prove who they are, each has a credential of his own (users.NAME, MyProxy), \
         and there is none for hosts"
    )]
    HostsWithPasswords,
    #[error(
        "myproxy: passwords are those of the MyProxy server, so there cannot be a file of passwords, too \
         (--password-file)"
    )]
    TwoPasswords,
    #[error("{setting}: {reason}")]
    MyProxy { setting: &'static str, reason: String },
    #[error("users.{user}.certificates: {reason}")]
    Certificate { user: String, reason: String },
    #[error("{setting}: {reason}")]
    Target { setting: String, reason: String },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
}

impl User {
    pub(crate) fn far(&self) -> FarLogin {
        FarLogin { credential: self.credential.clone(), token_file: self.token_file.clone() }
    }
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([0u16; 8], 2121))],
            password_file: None,
            authorized_hosts: Vec::new(),
            allow_targets: Targets::default(),
            default: None,
            hosts: FarLogin::default(),
            myproxy: None,
            sites: BTreeMap::new(),
            users: BTreeMap::new(),
            server: Config::default(),
        }
    }
}

impl GatewayConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// The file cannot be read, or has an invalid setting.
    pub fn load(path: &Path) -> Result<Self, GatewayError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| GatewayError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| GatewayError::Parse { path: path.to_owned(), source: Box::new(source) })
    }

    /// # Errors
    /// No client could log in, a credential could be used by another client than its user, or a
    /// target is invalid.
    pub(crate) fn check(&self) -> Result<(), GatewayError> {
        self.check_certificates()?;
        if self.myproxy.is_some() && self.password_file.is_some() {
            return Err(GatewayError::TwoPasswords);
        }
        if !self.has_users() {
            if self.authorized_hosts.is_empty() {
                return Err(GatewayError::NoLogin);
            }
            if let Some(user) = self.users.keys().next() {
                return Err(GatewayError::UserWithoutPassword(user.clone()));
            }
        } else if self.hosts != FarLogin::default() {
            return Err(GatewayError::HostsWithPasswords);
        }
        for (name, site) in &self.sites {
            let setting = || format!("sites.{name}");
            let bad_name = name.is_empty() || name.contains([':', '/', ' ']);
            if bad_name {
                let reason = "the name of a site has no colon, slash or space".to_owned();
                return Err(GatewayError::Target { setting: setting(), reason });
            }
            crate::target::parse(&site.url)
                .map_err(|reason| GatewayError::Target { setting: setting(), reason })?;
        }
        if self.default.is_some() {
            let setting = || "default".to_owned();
            self.target(None).map_err(|reason| GatewayError::Target { setting: setting(), reason })?;
        }
        Ok(())
    }

    fn check_certificates(&self) -> Result<(), GatewayError> {
        // Without this, a certificate would seem to be needed, and nothing would ask for it.
        let asked = self.tls().is_some_and(|tls| tls.client_authorities.is_some());
        if asked && !self.has_certificates() {
            return Err(GatewayError::Target {
                setting: "server.tls.client_authorities".to_owned(),
                reason: "no certificate belongs to a user: list their subjects in users.NAME.certificates"
                    .to_owned(),
            });
        }
        let mut owners = self.tls().map(|tls| tls.users.clone()).unwrap_or_default();
        for (name, user) in &self.users {
            let wrong = |reason: String| GatewayError::Certificate { user: name.clone(), reason };
            if !user.certificates.is_empty() && !asked {
                let text = "no client is asked for a certificate: name the authorities \
                            (--client-authorities), and offer TLS";
                return Err(wrong(text.to_owned()));
            }
            for subject in &user.certificates {
                match owners.insert(subject.clone(), name.clone()) {
                    Some(other) if other != *name => {
                        return Err(wrong(format!("{subject:?} belongs to the user {other}, too")));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The settings of TLS, if clients can use it.
    fn tls(&self) -> Option<&Tls> {
        self.server.tls.as_ref().filter(|tls| tls.enabled)
    }

    /// Clients prove who they are, by a password or a certificate.
    fn has_users(&self) -> bool {
        self.password_file.is_some() || self.myproxy.is_some() || self.has_certificates()
    }

    /// Passwords of MyProxy may go over a network without TLS. The server itself warns of others.
    pub(crate) fn has_clear_passwords(&self) -> bool {
        let required = self.tls().map_or(RequiredProtection::None, |tls| tls.required);
        let remote = self.listen.iter().any(|address| !address.ip().is_loopback());
        self.myproxy.is_some() && required == RequiredProtection::None && remote
    }

    /// Some certificate belongs to a user.
    fn has_certificates(&self) -> bool {
        let named = self.users.values().any(|user| !user.certificates.is_empty());
        self.tls().is_some_and(|tls| tls.client_authorities.is_some() && (named || !tls.users.is_empty()))
    }

    /// Sessions see the root of their target, may change files as far as the target lets them, and
    /// have data connections to their client alone.
    pub(crate) fn server_config(&self) -> Config {
        let mut config = self.server.clone();
        config.listen.clone_from(&self.listen);
        config.password_file.clone_from(&self.password_file);
        config.access.allow.clone_from(&self.authorized_hosts);
        config.root = Some("/".into());
        config.identity.mapped = false;
        config.defaults.home = Some("/".into());
        config.defaults.third_party = Some(false);
        if let Some(tls) = &mut config.tls {
            let of_user = |(name, user): (&String, &User)| {
                let certificates = user.certificates.clone().into_iter();
                let name = name.clone();
                certificates.map(move |subject| (subject, name.clone())).collect::<Vec<_>>()
            };
            tls.users.extend(self.users.iter().flat_map(of_user));
        }
        config.anonymous = (!self.has_users()).then(|| AnonymousAccess {
            names: vec!["*".into()],
            write: true,
            run_as: Some(RunAs::Server),
            ..AnonymousAccess::default()
        });
        config
    }
}

fn targets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Targets, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        List(Vec<String>),
    }
    let text = match Form::deserialize(deserializer)? {
        Form::Text(text) => text,
        Form::List(list) => list.join(","),
    };
    text.parse().map_err(|error: InvalidTarget| serde::de::Error::custom(error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(text: &str) -> String {
        let config: GatewayConfig = toml::from_str(text).unwrap();
        config.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn config_without_a_log_in_is_refused() {
        assert!(check("").contains("no client could log in"));
        assert_eq!(check("authorized_hosts = ['127.0.0.1']"), "");
        assert_eq!(check("password_file = '/p'"), "");
    }

    #[test]
    fn credential_that_any_client_could_take_is_refused() {
        let users = "authorized_hosts = ['10.0.0.0/8']\n[users.ada]\ncredential = '/a'";
        assert!(check(users).contains("users.ada"));
        assert_eq!(check(&format!("password_file = '/p'\n{users}")), "");
        let hosts = "[hosts]\ncredential = '/a'";
        assert!(check(&format!("password_file = '/p'\n{hosts}")).contains("hosts"));
        let myproxy = "[myproxy]\nserver = 'h'\n";
        assert!(check(&format!("{hosts}\n{myproxy}")).contains("hosts"));
        assert!(check(&format!("password_file = '/p'\n{myproxy}")).contains("myproxy"));
        assert_eq!(check(myproxy), "");
        let clear = |text: &str| toml::from_str::<GatewayConfig>(text).unwrap().has_clear_passwords();
        assert!(clear(myproxy) && clear(&format!("{myproxy}[server.tls]\n")));
        assert!(!clear(&format!("{myproxy}[server.tls]\nrequired = 'control'\n")));
        assert!(!clear(&format!("listen = ['127.0.0.1:1']\n{myproxy}")));
    }

    #[test]
    fn certificates_are_a_log_in_if_clients_are_asked_for_them() {
        let asked = "[server.tls]\nclient_authorities = '/ca'\n";
        let ada = "[users.ada]\ncertificates = ['/O=E/CN=Ada']\n";
        assert_eq!(check(&format!("{ada}{asked}")), "");
        assert_eq!(check(&format!("{asked}[server.tls.users]\n'/O=E/CN=Ada' = 'ada'\n")), "");
        for without in [asked.to_owned(), format!("authorized_hosts = ['10.0.0.1']\n{asked}")] {
            assert!(check(&without).contains("no certificate belongs to a user"), "{without}");
        }
        for without in [ada.to_owned(), format!("{ada}{asked}enabled = false\n")] {
            assert!(check(&without).contains("users.ada.certificates: no client is asked"), "{without}");
        }
        let bob = "[users.bob]\ncertificates = ['/O=E/CN=Ada']\n";
        assert!(check(&format!("{ada}{bob}{asked}")).contains("belongs to the user ada, too"));
        let config: GatewayConfig = toml::from_str(&format!("{ada}{asked}")).unwrap();
        let server = config.server_config();
        assert_eq!((server.tls.unwrap().users["/O=E/CN=Ada"].as_str(), server.anonymous), ("ada", None));
    }

    #[test]
    fn invalid_targets_of_the_configuration_are_named() {
        let hosts = "authorized_hosts = ['127.0.0.1']";
        assert!(check(&format!("{hosts}\n[sites.a]\nurl = 'http://h/'")).contains("sites.a"));
        assert!(check(&format!("{hosts}\n[sites.'a:b']\nurl = 'gsiftp://h/'")).contains("colon"));
        assert!(check(&format!("default = 'cern'\n{hosts}")).contains("default"));
        assert_eq!(check(&format!("default = 'a'\n{hosts}\n[sites.a]\nurl = 'gsiftp://h/'")), "");
        assert!(toml::from_str::<GatewayConfig>("allow_targets = 'a b'").is_err());
        assert!(toml::from_str::<GatewayConfig>("colour = 1").is_err());
    }

    #[test]
    fn server_has_no_data_connections_to_other_hosts() {
        let config = GatewayConfig { password_file: Some("/p".into()), ..GatewayConfig::default() };
        let server = config.server_config();
        assert_eq!((server.anonymous, server.defaults.third_party), (None, Some(false)));
        let config = GatewayConfig {
            authorized_hosts: vec!["10.0.0.0/8".parse().unwrap()],
            ..GatewayConfig::default()
        };
        let server = config.server_config();
        assert!(!server.anonymous.unwrap().third_party && server.access.allow.len() == 1);
    }
}
