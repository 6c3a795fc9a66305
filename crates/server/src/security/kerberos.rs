//! Log-in with Kerberos tickets: the server's keys, the mapping of principals to users, and what a
//! session knows of its client.
//!
//! The authority is made from the configuration and shared by all sessions. A client belongs to one
//! session. The map is read at each log-in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_kerberos::{
    Acceptor, AcceptorOptions, Credential, Handle, Protection, Session, Step, encode_token,
};
use ropewalk_layers::{KerberosLayer, Layer};
use ropewalk_protocol::command;
use ropewalk_protocol::server::{ChannelOptions, Failure, Outcome};

use crate::config;
use crate::security::gsi::{LONGEST_MAP, MAPPED};

/// The usual place of a server's keys.
const USUAL_KEYTAB: &str = "/etc/krb5.keytab";

/// The part of the server that all log-ins share.
pub(crate) struct Authority {
    credential: Arc<Credential>,
    services: Vec<String>,
    mapping: Mapping,
}

impl Authority {
    pub(crate) fn load(config: &config::Kerberos) -> Result<Self, String> {
        if config.realms.is_empty() && config.users.is_empty() && config.map.is_none() {
            return Err("no principal is anybody: name realms, users or a map".into());
        }
        private(&keytab(config, std::env::var_os("KRB5_KTNAME"))?)?;
        if let Some(path) = &config.map {
            ropewalk_files::read_map(path, LONGEST_MAP)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let credential = Credential::server(config.keytab.as_deref(), config.principal.as_deref())
            .map_err(|error| error.to_string())?;
        Ok(Self {
            credential: Arc::new(credential),
            services: config.services.clone(),
            mapping: Mapping {
                realms: config.realms.clone(),
                users: config.users.clone(),
                map: config.map.clone(),
                allow_root: config.allow_root,
            },
        })
    }

    /// The local user of an authenticated principal that requested the user `wanted`.
    pub(crate) fn user(&self, principal: &str, wanted: &[u8]) -> Result<String, Failure> {
        self.mapping.user(principal, wanted)
    }
}

/// The mapping of principals to users.
struct Mapping {
    realms: Vec<String>,
    users: BTreeMap<String, String>,
    map: Option<PathBuf>,
    allow_root: bool,
}

impl Mapping {
    fn user(&self, principal: &str, wanted: &[u8]) -> Result<String, Failure> {
        let denied = |text: String| Failure::LoginDenied(text);
        let users = self.users_of(principal)?;
        let Some(first) = users.first() else {
            return Err(denied(format!("The principal {principal} is no user here.")));
        };
        let name = if wanted == MAPPED {
            first
        } else {
            let found = users.iter().find(|name| name.as_bytes() == wanted);
            found.ok_or_else(|| {
                let shown = String::from_utf8_lossy(wanted);
                denied(format!("The principal {principal} may not be the user {shown}."))
            })?
        };
        if !ropewalk_security::valid_user_name(name) {
            return Err(denied(format!("The principal {principal} is mapped to what cannot be a user.")));
        }
        if name == "root" && !self.allow_root {
            return Err(denied("User was mapped as root but root is not allowed.".into()));
        }
        Ok(name.clone())
    }

    fn users_of(&self, principal: &str) -> Result<Vec<String>, Failure> {
        if let Some(name) = self.users.get(principal) {
            return Ok(vec![name.clone()]);
        }
        if let Some(path) = &self.map {
            let text = ropewalk_files::read_map(path, LONGEST_MAP).map_err(|error| {
                tracing::error!(path = %path.display(), %error, "no principal can be mapped to a user");
                Failure::LoginDenied("The server cannot read its map of principals.".into())
            })?;
            if let Some(users) = mapped(&text, principal) {
                return Ok(users);
            }
        }
        // An instance (`ada/admin`) is another principal.
        let own = principal.rsplit_once('@').filter(|(name, realm)| {
            self.realms.iter().any(|known| known == realm) && !name.contains(['/', '@', '\\'])
        });
        Ok(own.map(|(name, _)| name.to_owned()).into_iter().collect())
    }
}

/// The users of a principal in the lines of a map; `None` if the map does not contain it. A
/// principal in a line without users cannot log in.
fn mapped(text: &str, principal: &str) -> Option<Vec<String>> {
    text.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        words.next().filter(|name| *name == principal)?;
        let users = words.next().unwrap_or_default();
        Some(users.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    })
}

/// The file of the keytab: the usual one, unless the configuration or the environment names
/// another.
fn keytab(config: &config::Kerberos, environment: Option<OsString>) -> Result<PathBuf, String> {
    let Some(named) = config.keytab.clone().or(environment.map(PathBuf::from)) else {
        return Ok(USUAL_KEYTAB.into());
    };
    // The form is KIND:PLACE, unless a path begins there.
    let kind = named.to_str().filter(|text| !text.starts_with('/')).and_then(|text| text.split_once(':'));
    match kind {
        None => Ok(named),
        Some(("FILE" | "WRFILE" | "SRVTAB", path)) => Ok(path.into()),
        Some((kind, _)) => Err(format!(
            "the keytab {} is of the kind {kind}, of which it cannot be told who may read it: name a file",
            named.display()
        )),
    }
}

/// Fails if other users can read the keytab, since they could act as the server. Its group may be
/// the group of the server.
fn private(path: &Path) -> Result<(), String> {
    // If there is no file, the library looks for the keytab.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if found.mode() & 0o027 == 0 {
        return Ok(());
    }
    let mode = found.mode() & 0o7777;
    Err(format!("{}: others can read or change it (mode {mode:04o}); `chmod 600` mends it", path.display()))
}

/// The state of one client.
pub(crate) struct Client {
    acceptor: Option<Acceptor>,
    /// The session, until the control connection is protected with it.
    established: Option<Box<Session>>,
    principal: Option<String>,
    /// The context for data connections.
    context: Option<Handle>,
}

impl Client {
    pub(crate) fn new(authority: Option<&Authority>) -> Result<Self, Failure> {
        let authority =
            authority.ok_or_else(|| refused("This server takes certificates, not Kerberos tickets."))?;
        let options = AcceptorOptions { services: authority.services.clone() };
        let acceptor = Acceptor::new(Arc::clone(&authority.credential), options);
        let acceptor = acceptor.map_err(|error| refused(error.to_string()))?;
        Ok(Self { acceptor: Some(acceptor), established: None, principal: None, context: None })
    }

    /// `ada@EXAMPLE`, after authentication.
    pub(crate) fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    pub(crate) fn take_established(&mut self) -> Option<Box<Session>> {
        self.established.take()
    }

    /// Processes a decoded token.
    pub(crate) fn token(&mut self, token: &[u8]) -> Result<Outcome, Failure> {
        let Some(mut acceptor) = self.acceptor.take() else {
            return Err(Failure::Refused { code: 503, text: "Send AUTH GSSAPI first.".into() });
        };
        match acceptor.step(token).map_err(|error| refused(error.to_string()))? {
            Step::Continue(out) => {
                self.acceptor = Some(acceptor);
                Ok(Outcome::SecurityToken(encode_token(&out)))
            }
            Step::Done(out, mut session) => {
                // The server does not need the client's tickets.
                drop(session.take_delegated());
                tracing::info!(
                    principal = session.peer(),
                    server = session.server(),
                    "a client has authenticated itself with Kerberos"
                );
                self.principal = Some(session.peer().to_owned());
                self.context = Some(session.handle());
                self.established = Some(session);
                Ok(Outcome::Wrapped((!out.is_empty()).then(|| encode_token(&out))))
            }
        }
    }

    /// The layer that protects data connections of a channel; `None`: they are not protected.
    pub(crate) fn layer(&self, options: &ChannelOptions) -> Option<Arc<dyn Layer>> {
        let protection = match options.protection {
            command::Protection::Clear => return None,
            command::Protection::Safe => Protection::Integrity,
            command::Protection::Private => Protection::Confidential,
        };
        let context = self.context.clone()?;
        Some(Arc::new(KerberosLayer::new(context, protection, options.protection_buffer)))
    }
}

fn refused(text: impl std::fmt::Display) -> Failure {
    Failure::Refused { code: 530, text: format!("GSSAPI authentication failed: {text}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mapping() -> Mapping {
        Mapping {
            realms: vec!["EXAMPLE".into()],
            users: BTreeMap::from([
                ("ada/admin@EXAMPLE".into(), "ada".into()),
                ("boss@EXAMPLE".into(), "root".into()),
                ("odd@EXAMPLE".into(), "../x".into()),
            ]),
            map: None,
            allow_root: false,
        }
    }

    fn is(mapping: &Mapping, principal: &str, wanted: &str) -> Option<String> {
        mapping.user(principal, wanted.as_bytes()).ok()
    }

    #[test]
    fn principal_without_user_is_refused() {
        let map = mapping();
        let usual = |principal: &str| is(&map, principal, ":globus-mapping:");
        assert_eq!(usual("ada@EXAMPLE").as_deref(), Some("ada"));
        assert_eq!(usual("ada/admin@EXAMPLE").as_deref(), Some("ada"));
        assert_eq!(is(&map, "ada@EXAMPLE", "ada").as_deref(), Some("ada"));
        for (principal, wanted) in [("ada@EXAMPLE", "bob"), ("ada@EXAMPLE", ""), ("ada@EXAMPLE", "anonymous")]
        {
            assert_eq!(is(&map, principal, wanted), None, "{wanted}");
        }
        for stranger in [
            "ada@OTHER",
            "ada@example",
            "ada@EXAMPLE.ORG",
            "ada/root@EXAMPLE",
            "ada",
            "@EXAMPLE",
            "",
            "root@EXAMPLE",
            "boss@EXAMPLE",
            "odd@EXAMPLE",
            "ada\\@x@EXAMPLE",
            "x@y@EXAMPLE",
            "../x@EXAMPLE",
            "WELLKNOWN/ANONYMOUS@EXAMPLE",
        ] {
            assert_eq!(usual(stranger), None, "{stranger}");
        }
        let map = Mapping { allow_root: true, ..mapping() };
        assert_eq!(is(&map, "boss@EXAMPLE", ":globus-mapping:").as_deref(), Some("root"));
    }

    #[test]
    fn principal_map_is_read_at_each_log_in() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let map = Mapping { map: Some(path.clone()), ..mapping() };
        // A map that does not exist maps no principal, not even by realm.
        assert_eq!(is(&map, "bob@EXAMPLE", ":globus-mapping:"), None);
        std::fs::write(
            &path,
            "# principals\nbob@OTHER bob,project # two\n\nada@EXAMPLE guest\nnobody@EXAMPLE\n",
        )
        .unwrap();
        assert_eq!(is(&map, "bob@OTHER", ":globus-mapping:").as_deref(), Some("bob"));
        assert_eq!(is(&map, "bob@OTHER", "project").as_deref(), Some("project"));
        assert_eq!(is(&map, "bob@OTHER", "guest"), None);
        assert_eq!(is(&map, "ada@EXAMPLE", ":globus-mapping:").as_deref(), Some("guest"));
        assert_eq!(is(&map, "ada@EXAMPLE", "ada"), None);
        assert_eq!(is(&map, "bob@EXAMPLE", "bob").as_deref(), Some("bob"));
        // The line excludes the principal, whatever its realm.
        for wanted in [":globus-mapping:", "nobody"] {
            assert_eq!(is(&map, "nobody@EXAMPLE", wanted), None);
        }
        std::fs::write(&path, "bob@OTHER eve\n").unwrap();
        assert_eq!(is(&map, "bob@OTHER", ":globus-mapping:").as_deref(), Some("eve"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(is(&map, "bob@OTHER", ":globus-mapping:"), None);
    }

    #[test]
    fn keytab_without_file_is_refused() {
        let place = |named: Option<&str>, environment: Option<&str>| {
            let config = config::Kerberos { keytab: named.map(PathBuf::from), ..Default::default() };
            keytab(&config, environment.map(OsString::from)).ok()
        };
        assert_eq!(place(None, None), Some("/etc/krb5.keytab".into()));
        assert_eq!(place(Some("/a"), Some("FILE:/b")), Some("/a".into()));
        assert_eq!(place(Some("/a:b"), None), Some("/a:b".into()));
        for named in ["/b", "FILE:/b", "WRFILE:/b"] {
            assert_eq!(place(None, Some(named)), Some("/b".into()), "{named}");
        }
        for unknown in ["MEMORY:b", "KCM:", "file:/b"] {
            assert_eq!(place(None, Some(unknown)), None, "{unknown}");
        }
    }

    #[test]
    fn keytab_readable_by_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keytab");
        std::fs::write(&path, "").unwrap();
        for (mode, fine) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(private(&path).is_ok(), fine, "{mode:o}");
        }
    }
}
