//! The configuration of a server: a TOML file, or values made in code.
//!
//! The types here are plain values. [`Config::check`] looks up whether they make sense on this
//! host; [`crate::settings`] prepares them for use.

mod access;
mod accounts;
mod admin;
mod bandwidth;
mod data;
mod files;
mod gsi;
mod identity;
mod kerberos;
mod limits;
mod log;
mod nodes;
mod paths;
mod problem;
mod profiling;
mod relay;
mod reservations;
mod scitags;
mod space;
mod testing;
mod tls;
mod tokens;
mod units;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use access::Access;
pub(crate) use accounts::expand;
pub use accounts::{AnonymousAccess, User};
pub use admin::Admin;
pub use bandwidth::{BandwidthLimit, Shares, TransferDirection};
pub use data::Data;
pub use files::{Files, Fsync};
pub use gsi::{DelegatedKeys, Gsi};
pub use identity::{Identity, RequiredProtection, RunAs};
pub use kerberos::Kerberos;
pub use limits::{Limits, Timeouts};
pub use log::Log;
pub use nodes::Nodes;
pub(crate) use paths::Paths;
pub use problem::{Problem, Severity};
pub use profiling::Profiling;
pub use relay::{Relay, RelayHop};
pub use reservations::Reservations;
pub use scitags::{SciTagMapping, SciTags};
use serde::{Deserialize, Serialize};
pub use space::{Quota, Space};
pub use testing::Testing;
pub use tls::{SessionReuse, Tls, TlsVersion};
pub use tokens::{TokenIssuer, TokenMapping, Tokens};

/// All settings of a server. Every field may be left out; unknown ones are errors.
///
/// Times are in seconds (whole or with a fraction), sizes in bytes (a number, or a string with the
/// suffix K, M, G or T for powers of 1024).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses and ports on which control connections are accepted. Default `["[::]:2811"]`:
    /// every address of the host, IPv6 and IPv4.
    pub listen: Vec<SocketAddr>,
    /// Directory of the host that sessions see as `/`, unless their account has another one;
    /// `{user}` stands for the user's name. Default: none; each account must then have its own.
    pub root: Option<PathBuf>,
    /// Host name in the greeting and in logs. Default: the system's.
    pub hostname: Option<String>,
    /// Greeting in place of the standard one; it may have several lines. Default: none.
    pub banner: Option<String>,
    /// Lines shown after log-in. Default: none.
    pub login_message: Option<String>,
    /// Path rules for all users, in addition to those of the account (`RW/data,N/data/private`).
    /// Default: none, everything beneath the root.
    pub rules: Option<String>,
    /// Commands that are answered as unknown, for instance `["DELE", "SITE RDEL"]`. Default: none.
    pub disabled_commands: Vec<String>,
    /// Turn all clients away with `422` and this text, for instance during maintenance. Default:
    /// none.
    pub offline: Option<String>,
    /// File of users and password hashes, made with `ropewalk passwd`. Default: none, no log-in by
    /// password.
    pub password_file: Option<PathBuf>,
    /// Access without a password. Default: none, refused.
    pub anonymous: Option<AnonymousAccess>,
    /// Log-in with certificates. Default: none.
    pub gsi: Option<Gsi>,
    /// Log-in with Kerberos tickets. Default: none.
    pub kerberos: Option<Kerberos>,
    /// TLS. Default: none (`ropewalk serve` turns it on by itself).
    pub tls: Option<Tls>,
    /// Log-in with bearer tokens. Default: none.
    pub tokens: Option<Tokens>,
    /// Data nodes. Default: none, the server moves all data itself.
    pub nodes: Option<Nodes>,
    /// Hooks of data connections.
    pub paths: Paths,
    /// Limits on what directories and users may hold. Default: none.
    pub quota: Vec<Quota>,
    /// Settings for each user of the password file or the gridmap that `users` does not override.
    pub defaults: User,
    /// Single users of the password file or the gridmap, by name.
    pub users: BTreeMap<String, User>,
    /// The rights with which the server works on files.
    pub identity: Identity,
    /// The addresses from which clients may connect.
    pub access: Access,
    /// Data connections.
    pub data: Data,
    /// How files are written.
    pub files: Files,
    /// Limits on the rate of data. Default: none.
    pub bandwidth: Vec<BandwidthLimit>,
    /// How users divide the rate of data.
    pub shares: Shares,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub log: Log,
    pub profiling: Profiling,
    pub scitags: SciTags,
    pub space: Space,
    pub reservations: Reservations,
    pub relay: Relay,
    pub admin: Admin,
    pub testing: Testing,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([0u16; 8], 2811))],
            root: None,
            hostname: None,
            banner: None,
            login_message: None,
            rules: None,
            disabled_commands: Vec::new(),
            offline: None,
            password_file: None,
            anonymous: None,
            gsi: None,
            kerberos: None,
            tls: None,
            tokens: None,
            nodes: None,
            paths: Paths::default(),
            quota: Vec::new(),
            defaults: User::default(),
            users: BTreeMap::new(),
            identity: Identity::default(),
            access: Access::default(),
            data: Data::default(),
            files: Files::default(),
            bandwidth: Vec::new(),
            shares: Shares::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            log: Log::default(),
            profiling: Profiling::default(),
            scitags: SciTags::default(),
            space: Space::default(),
            reservations: Reservations::default(),
            relay: Relay::default(),
            admin: Admin::default(),
            testing: Testing::default(),
        }
    }
}

/// A configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: {source}")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
}

/// Settings that are permission bits.
const MODES: [(&str, &str); 3] =
    [("files", "create_mode"), ("files", "directory_mode"), ("identity", "umask")];

/// See [`Config::fixed`].
pub(crate) type Fixed = [(&'static str, String); 16];

impl Config {
    /// Whether a mechanism of log-in lets users be root.
    pub(crate) fn permits_root(&self) -> bool {
        self.identity.allow_root
            || self.gsi.as_ref().is_some_and(|gsi| gsi.allow_root)
            || self.kerberos.as_ref().is_some_and(|kerberos| kerberos.allow_root)
    }

    /// Reads a TOML file. Relative paths in it count from the file's directory.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has a setting that does not exist or has a wrong
    /// value. [`Config::check`] finds settings that do not make sense together.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config = Self::parse(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        let base = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some(directory) = base.parent() {
            config.resolve(directory);
        }
        Ok(config)
    }

    /// Reads the text of a TOML file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let config = toml::from_str(text)?;
        match units::decimal_mode(text, &MODES) {
            Some(wrong) => Err(serde::de::Error::custom(wrong)),
            None => Ok(config),
        }
    }

    /// The settings as TOML, defaults included.
    ///
    /// # Errors
    /// A value that TOML cannot express, such as a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// The settings for a start without a file: one address, one directory, and anonymous access if
    /// it is wanted. Without it, set `password_file` before starting.
    pub fn quick(listen: SocketAddr, anonymous: Option<AnonymousAccess>, root: impl Into<PathBuf>) -> Self {
        Self { listen: vec![listen], anonymous, root: Some(root.into()), ..Self::default() }
    }

    /// The settings of TLS, unless it is switched off.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref().filter(|tls| tls.enabled)
    }

    /// TLS was not requested, and no password needs it.
    pub(crate) fn may_do_without_tls(&self) -> bool {
        self.password_file.is_none() && self.tls().is_none_or(|tls| tls.optional)
    }

    /// The message if TLS is not available and the server does not start without it.
    pub(crate) fn without_tls(&self, error: String) -> String {
        if self.password_file.is_none() {
            return error;
        }
        format!(
            "{error}; passwords would travel in clear: name a tls.state_directory that the server may write to, or a \
             tls.certificate, or switch TLS off (--no-tls, tls.enabled = false)"
        )
    }

    /// Settings that cannot change while the server runs, and their values.
    pub(crate) fn fixed(&self) -> Fixed {
        let implicit = self.tls.as_ref().map(|tls| &tls.implicit);
        [
            ("listen", format!("{:?}", self.listen)),
            ("tls.implicit", format!("{implicit:?}")),
            ("data.buffer_memory", self.data.buffer_memory.to_string()),
            ("data.quic_port", format!("{:?}", self.data.quic_port)),
            ("data.max_streams", self.data.max_streams.to_string()),
            ("limits.active", self.limits.active.to_string()),
            ("limits.password_checks", self.limits.password_checks.to_string()),
            ("identity.mapped", self.identity.mapped.to_string()),
            ("identity.umask", format!("{:?}", self.identity.umask)),
            ("nodes", format!("{:?}", self.nodes)),
            ("paths", format!("{:?}", self.paths)),
            ("quota", format!("{:?}", self.quota)),
            ("space", format!("{:?}", self.space)),
            ("reservations.state_file", format!("{:?}", self.reservations.state_file)),
            ("relay", format!("{:?}", self.relay)),
            ("admin", format!("{:?}", self.admin)),
        ]
    }

    /// The operations that are refused on a clear connection. This holds even if TLS is switched
    /// off: there are other ways to protect connections.
    pub(crate) fn required_protection(&self) -> RequiredProtection {
        self.tls.as_ref().map(|tls| tls.required).unwrap_or_default()
    }

    /// The addresses with implicit TLS.
    pub(crate) fn tls_implicit(&self) -> &[SocketAddr] {
        self.tls().map_or(&[], |tls| &tls.implicit)
    }

    fn resolve(&mut self, directory: &Path) {
        let paths = [&mut self.root, &mut self.password_file, &mut self.defaults.root]
            .into_iter()
            .chain(self.anonymous.as_mut().map(|a| &mut a.root))
            .chain(self.users.values_mut().map(|u| &mut u.root))
            .chain(self.gsi.iter_mut().flat_map(|gsi| {
                let Gsi { certificate, key, authorities, gridmap, pool_directory, .. } = gsi;
                [certificate, key, authorities, gridmap, pool_directory]
            }))
            .chain([&mut self.scitags.registry])
            .chain(self.tokens.iter_mut().flat_map(Tokens::paths))
            .chain(self.tls.iter_mut().flat_map(|tls| {
                let Tls { certificate, key, state_directory, client_authorities, client_revocations, .. } =
                    tls;
                [certificate, key, state_directory, client_authorities, client_revocations]
            }))
            .chain(self.nodes.iter_mut().flat_map(|nodes| [&mut nodes.join_token_file, &mut nodes.root]))
            .chain(self.kerberos.iter_mut().flat_map(|kerberos| [&mut kerberos.keytab, &mut kerberos.map]))
            .chain([
                &mut self.admin.socket,
                &mut self.space.state_directory,
                &mut self.reservations.state_file,
                &mut self.log.transfer_log,
                &mut self.log.transfer_log_json,
                &mut self.log.audit,
            ]);
        for path in paths.flatten() {
            // Home directories are absolute.
            if path.is_relative() && !path.starts_with("{home}") {
                *path = directory.join(&*path);
            }
        }
        for quota in &mut self.quota {
            quota.tree = directory.join(&quota.tree);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn default_config_survives_round_trip() {
        let config = Config::default();
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
        assert_eq!(Config::parse("").unwrap(), config);
    }

    #[test]
    fn mode_is_read_and_printed_as_octal() {
        let text = "[files]\ncreate_mode = 0o640\ndirectory_mode = \"2770\"\n[identity]\numask = \"0o027\"\n";
        let config = Config::parse(text).unwrap();
        assert_eq!((config.files.create_mode, config.files.directory_mode), (0o640, 0o2770));
        assert_eq!(config.identity.umask, Some(0o027));
        let printed = config.to_toml().unwrap();
        for line in ["create_mode = \"0o640\"", "directory_mode = \"0o2770\"", "umask = \"0o027\""] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        assert_eq!(Config::parse(&printed).unwrap(), config);
        assert!(Config::parse("[identity]\numask = 0\n").is_ok());
        for wrong in [
            "create_mode = \"rw\"",
            "create_mode = -1",
            "create_mode = \"9\"",
            // In decimal, other users could write to the files.
            "create_mode = 640",
            "create_mode = 640 # bits",
            "directory_mode = 7640",
            "create_mode = 1_640",
        ] {
            let error = Config::parse(&format!("[files]\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("640"), "{error}");
        }
    }

    #[test]
    fn unknown_setting_is_an_error() {
        let error = Config::parse("[limits]\nsessionz = 3\n").unwrap_err().to_string();
        assert!(error.contains("sessionz"), "{error}");
    }

    #[test]
    fn ports_setting_without_two_ports_is_refused() {
        for (wrong, told) in [
            ("[50000]", "first and last"),
            ("[1, 2, 3]", "first and last"),
            ("\"50000\"", "first and last"),
            ("[0, 70000]", "70000 is no port"),
            ("[-1, 5]", "-1 is no port"),
        ] {
            let error = Config::parse(&format!("[data]\nports = {wrong}\n")).unwrap_err().to_string();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn full_file_is_parsed() {
        let config = Config::parse(
            r#"
            listen = ["127.0.0.1:2811", "[::1]:2811"]
            root = "/srv/data"
            password_file = "users"

            [anonymous]
            rules = "R/pub"

            [defaults]
            home = "/home/{user}"

            [users.alice]
            read_only = true
            third_party = false

            [access]
            allow = ["10.0.0.0/8", "192.168.1."]

            [data]
            ports = [50000, 51000]
            buffer_memory = "128M"

            [files]
            create_mode = 0o640
            fsync = "at_end"

            [timeouts]
            idle = 0.5
            "#,
        )
        .unwrap();
        assert_eq!(config.listen.len(), 2);
        assert_eq!(config.data.buffer_memory, 128 << 20);
        assert_eq!(config.files.fsync, Fsync::AtEnd);
        assert_eq!(config.timeouts.idle, Duration::from_millis(500));
        assert_eq!(config.users["alice"].read_only, Some(true));
    }

    #[test]
    fn home_directory_in_file_stays_as_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ropewalk.toml");
        std::fs::write(&file, "[defaults]\nroot = \"{home}\"\n[users.ada]\nroot = \"{home}/data\"\n")
            .unwrap();
        let config = Config::load(&file).unwrap();
        assert_eq!(config.defaults.root.unwrap(), Path::new("{home}"));
        assert_eq!(config.users["ada"].root.as_deref(), Some(Path::new("{home}/data")));
    }

    #[test]
    fn relative_path_in_file_counts_from_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ropewalk.toml");
        std::fs::write(&file, "root = 'data'\npassword_file = '/etc/users'\n").unwrap();
        let config = Config::load(&file).unwrap();
        assert_eq!(config.root.unwrap(), directory.path().canonicalize().unwrap().join("data"));
        assert_eq!(config.password_file.unwrap(), Path::new("/etc/users"));
    }
}
