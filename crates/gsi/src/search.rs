//! Finds the files of credentials, authorities and maps: from variables of the environment first,
//! then in the usual places of the user and of the host. Most functions return a path without
//! opening the file; some check that it exists.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::credential::{AskPassphrase, Credential, CredentialError};

/// The files of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Certificate, key and chain in one file.
    Proxy(PathBuf),
    Pair {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// A PKCS #12 file.
    Sealed(PathBuf),
}

impl Source {
    /// Reads the files. `ask` is called if a passphrase is needed.
    ///
    /// # Errors
    /// The same errors as [`Credential::load`], [`Credential::load_pair`] or
    /// [`Credential::load_pkcs12`].
    pub fn load(&self, ask: AskPassphrase<'_>) -> Result<Credential, CredentialError> {
        match self {
            Self::Proxy(path) => Credential::load(path, ask),
            Self::Sealed(path) => Credential::load_pkcs12(path, ask),
            Self::Pair { certificate, key } => Credential::load_pair(certificate, key, ask),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Proxy(path) | Self::Sealed(path) => write!(f, "{}", path.display()),
            Self::Pair { certificate, key } => write!(f, "{} and {}", certificate.display(), key.display()),
        }
    }
}

/// The inputs of the search. [`Places::of_process`] takes them from the process.
pub struct Places<'a> {
    /// Returns a variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub uid: u32,
    pub home: Option<PathBuf>,
}

const GRID_SECURITY: &str = "/etc/grid-security";

impl Places<'_> {
    pub fn of_process() -> Places<'static> {
        Places {
            variable: &|name| std::env::var_os(name),
            uid: rustix::process::geteuid().as_raw(),
            home: std::env::var_os("HOME").map(PathBuf::from),
        }
    }

    fn path(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn in_home(&self, name: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(".globus").join(name))
    }

    fn named_pair(&self) -> Option<Source> {
        let (certificate, key) = (self.path("X509_USER_CERT")?, self.path("X509_USER_KEY")?);
        Some(Source::Pair { certificate, key })
    }

    fn pair(directory: &Path, kind: &str) -> Option<Source> {
        let certificate = directory.join(format!("{kind}cert.pem"));
        let key = directory.join(format!("{kind}key.pem"));
        certificate.exists().then_some(Source::Pair { certificate, key })
    }

    /// The path of the user's proxy, whether it exists or not: `X509_USER_PROXY`, else
    /// `/tmp/x509up_u<uid>`.
    pub fn proxy_path(&self) -> PathBuf {
        self.path("X509_USER_PROXY").unwrap_or_else(|| PathBuf::from(format!("/tmp/x509up_u{}", self.uid)))
    }

    /// The long-lived certificate that proxies are made from.
    pub fn certificate(&self) -> Option<Source> {
        let sealed = || self.in_home("usercred.p12").filter(|path| path.exists()).map(Source::Sealed);
        self.named_pair().or_else(|| Self::pair(&self.home.as_ref()?.join(".globus"), "user")).or_else(sealed)
    }

    /// The credential of a client. If `X509_USER_PROXY` names a file that does not exist, that file
    /// is still returned, so that loading it reports the problem.
    pub fn client(&self) -> Option<Source> {
        if let Some(path) = self.path("X509_USER_PROXY") {
            return Some(Source::Proxy(path));
        }
        if let Some(pair) = self.named_pair() {
            return Some(pair);
        }
        let proxy = self.proxy_path();
        if proxy.exists() { Some(Source::Proxy(proxy)) } else { self.certificate() }
    }

    /// The credential of a server: the pair of the environment, the proxy of the environment, the
    /// host's certificate, else the credential of the user.
    pub fn server(&self) -> Option<Source> {
        self.named_pair()
            .or_else(|| self.path("X509_USER_PROXY").map(Source::Proxy))
            .or_else(|| Self::pair(Path::new(GRID_SECURITY), "host").filter(|_| self.uid == 0))
            .or_else(|| Self::pair(&self.home.as_ref()?.join(".globus"), "host"))
            .or_else(|| self.client())
    }

    /// The directory of trusted authorities: `X509_CERT_DIR`, `~/.globus/certificates`,
    /// `/etc/grid-security/certificates`.
    pub fn authorities(&self) -> PathBuf {
        self.path("X509_CERT_DIR")
            .or_else(|| self.in_home("certificates").filter(|path| path.is_dir()))
            .unwrap_or_else(|| Path::new(GRID_SECURITY).join("certificates"))
    }

    /// The grid-mapfile: `GRIDMAP`, else the host's (root) or `~/.gridmap` (other users).
    pub fn gridmap(&self) -> PathBuf {
        self.path("GRIDMAP")
            .or_else(|| self.home.as_ref().filter(|_| self.uid != 0).map(|home| home.join(".gridmap")))
            .unwrap_or_else(|| Path::new(GRID_SECURITY).join("grid-mapfile"))
    }

    /// The directory with the leases of pool accounts.
    pub fn pool_directory(&self) -> Option<PathBuf> {
        self.path("GRIDMAPDIR")
    }

    /// The directory with a subdirectory of credentials for each virtual host:
    /// `X509_VHOST_CRED_DIR`, else the host's if it exists. The directory that the variable names
    /// is returned even if it does not exist.
    pub fn virtual_hosts(&self) -> Option<PathBuf> {
        let usual = || Some(Path::new(GRID_SECURITY).join("vhosts")).filter(|path| path.is_dir());
        self.path("X509_VHOST_CRED_DIR").or_else(usual)
    }

    /// The directory that says which VOMS servers may sign for which virtual organisation:
    /// `X509_VOMS_DIR`, else the host's.
    pub fn voms(&self) -> PathBuf {
        self.path("X509_VOMS_DIR").unwrap_or_else(|| Path::new(GRID_SECURITY).join("vomsdir"))
    }

    /// The configuration of GCT's mapping callouts: `GSI_AUTHZ_CONF`, else the host's if it exists.
    /// Callouts are shared libraries, which Ropewalk does not load.
    pub fn callouts(&self) -> Option<PathBuf> {
        let usual = || Some(Path::new(GRID_SECURITY).join("gsi-authz.conf")).filter(|path| path.is_file());
        self.path("GSI_AUTHZ_CONF").or_else(usual)
    }

    /// More trusted certificates, as PEM text: `GLOBUS_GFS_EXTRA_CA_CERTS`.
    pub fn further_authorities(&self) -> Option<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        (self.variable)("GLOBUS_GFS_EXTRA_CA_CERTS").map(OsString::into_vec).filter(|text| !text.is_empty())
    }

    pub fn gsi_conf(&self) -> PathBuf {
        Path::new(GRID_SECURITY).join("gsi.conf")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_follow_the_order_of_precedence() {
        let home = tempfile::tempdir().unwrap();
        let set = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
            }
        };
        let proxy = set(&[("X509_USER_PROXY", "/p"), ("X509_USER_CERT", "/c"), ("X509_USER_KEY", "/k")]);
        let pair = Source::Pair { certificate: "/c".into(), key: "/k".into() };
        let places = Places { variable: &proxy, uid: 4_000_000, home: Some(home.path().into()) };
        assert_eq!(places.client(), Some(Source::Proxy("/p".into())));
        assert_eq!(places.server(), Some(pair));
        let places = Places { variable: &|_| None, uid: 4_000_000, home: Some(home.path().into()) };
        assert_eq!(places.client(), None);
        assert_eq!(places.proxy_path(), Path::new("/tmp/x509up_u4000000"));
        assert_eq!(places.gridmap(), home.path().join(".gridmap"));
        assert_eq!(places.authorities(), Path::new("/etc/grid-security/certificates"));
        std::fs::create_dir_all(home.path().join(".globus/certificates")).unwrap();
        std::fs::write(home.path().join(".globus/usercert.pem"), "").unwrap();
        assert_eq!(places.authorities(), home.path().join(".globus/certificates"));
        assert!(matches!(places.client(), Some(Source::Pair { .. })));
    }

    /// Each variable of the environment by itself.
    #[test]
    fn each_variable_sets_its_place() {
        let named =
            |wanted: &'static str| move |name: &str| (name == wanted).then(|| OsString::from("/named"));
        let path = Path::new("/named");
        let with = |wanted: &'static str, check: &dyn Fn(&Places<'_>) -> bool| {
            let variable = named(wanted);
            let set = Places { variable: &variable, uid: 4_000_000, home: None };
            let unset = Places { variable: &|_| None, uid: 4_000_000, home: None };
            assert!(check(&set) && !check(&unset), "{wanted}");
        };
        with("X509_USER_PROXY", &|p| {
            p.proxy_path() == path && p.client() == Some(Source::Proxy(path.into()))
        });
        with("X509_CERT_DIR", &|p| p.authorities() == path);
        with("X509_VHOST_CRED_DIR", &|p| p.virtual_hosts().as_deref() == Some(path));
        with("X509_VOMS_DIR", &|p| p.voms() == path);
        with("GRIDMAP", &|p| p.gridmap() == path);
        with("GRIDMAPDIR", &|p| p.pool_directory().as_deref() == Some(path));
        with("GSI_AUTHZ_CONF", &|p| p.callouts().as_deref() == Some(path));
        with("GLOBUS_GFS_EXTRA_CA_CERTS", &|p| p.further_authorities().as_deref() == Some(b"/named"));
        // One half of a pair is ignored.
        let half = named("X509_USER_CERT");
        assert_eq!(Places { variable: &half, uid: 4_000_000, home: None }.client(), None);
    }
}
