//! Support for tests: a site with an authority, an initiator and an acceptor that talk in memory,
//! and certificates that no correct program would make.

#![allow(clippy::unwrap_used)]

mod control;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::BigNum;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::{X509, X509Builder, X509Name, X509NameBuilder, X509NameRef};

use crate::ca::{self, Ca, CaOptions};
use crate::delegation::extension;
use crate::{
    Acceptor, Credential, HandshakeError, Identity, Initiator, ProxyTerms, Session, Step, Timestamp,
    TlsSettings, Trust, create_proxy, proxy_file,
};

pub use control::{Control, secure};

/// Prefix of all subjects of a [`Site`].
pub const NAMESPACE: &str = "/O=Grid/OU=test";
/// A proxyCertInfo value with all rights.
pub const INHERIT_ALL: &[u8] = &[0x30, 0x0c, 0x30, 0x0a, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1];
/// The extension of RFC 3820.
pub const PROXY_CERT_INFO: &str = "1.3.6.1.5.5.7.1.14";
const HOUR: i64 = 3600;

/// A site with an authority, a host and a user. Its directory has `ca` and `certificates`, and the
/// files that the methods write.
pub struct Site {
    directory: PathBuf,
    pub ca: Ca,
    host: OnceLock<Credential>,
    user: OnceLock<Credential>,
}

impl Site {
    /// Creates a site in an existing empty directory.
    pub fn at(directory: &Path) -> Self {
        Self::named(directory, NAMESPACE)
    }

    /// Like [`Site::at`], with another namespace.
    pub fn named(directory: &Path, namespace: &str) -> Self {
        let options = CaOptions {
            namespace: namespace.into(),
            common_name: "Test CA".into(),
            days: 30,
            bits: 2048,
            passphrase: None,
        };
        let ca = Ca::create(&directory.join("ca"), &options).unwrap();
        ca.install(&directory.join("certificates"), 10).unwrap();
        Self { directory: directory.to_owned(), ca, host: OnceLock::new(), user: OnceLock::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn certificates(&self) -> PathBuf {
        self.path("certificates")
    }

    pub fn trust(&self) -> Trust {
        Trust::directory(self.certificates())
    }

    /// The credential of `localhost` and 127.0.0.1.
    pub fn host(&self) -> &Credential {
        self.host.get_or_init(|| self.ca.issue_host(&["localhost", "127.0.0.1"], 10).unwrap())
    }

    /// The credential of `Test User`.
    pub fn user(&self) -> Credential {
        self.user.get_or_init(|| self.ca.issue_user("Test User", 10).unwrap()).clone()
    }

    pub fn identity(&self, credential: &Credential, settings: &TlsSettings) -> Identity {
        Identity::new(Arc::new(credential.clone()), Arc::new(self.trust()), settings).unwrap()
    }

    /// The authority's own certificate and key.
    pub fn authority(&self) -> Credential {
        let at = |name| self.path("ca").join(name);
        Credential::load_pair(&at("cacert.pem"), &at("cakey.pem"), &mut |_| None).unwrap()
    }

    /// A revocation list of the authority that expired an hour ago.
    pub fn ended_list(&self) -> Vec<u8> {
        let now = Timestamp::now().0;
        self.ca.revocation_list_of(now - 2 * HOUR, now - HOUR).unwrap()
    }

    /// Writes `hostcert.pem`, `hostkey.pem`, a proxy of the user (`proxy`), and a `gridmap` that
    /// maps the user to these accounts.
    pub fn write(&self, accounts: &[&str]) {
        self.write_host(self.host());
        proxy_file::init(&self.user(), &self.path("proxy"), 2048, &ProxyTerms::default()).unwrap();
        let line = ca::gridmap_line(self.user().identity(), accounts);
        std::fs::write(self.path("gridmap"), line + "\n").unwrap();
    }

    /// Writes `hostcert.pem` and `hostkey.pem`.
    pub fn write_host(&self, host: &Credential) {
        ca::write_pair(host, &self.path("hostcert.pem"), &self.path("hostkey.pem")).unwrap();
    }
}

/// A certificate with arbitrary fields.
#[derive(Clone)]
pub struct Forged<'a> {
    pub issuer: &'a X509NameRef,
    pub signer: &'a PKey<Private>,
    /// The beginning of the subject.
    pub base: &'a X509NameRef,
    /// Common names to append to `base`.
    pub more: &'a [&'a str],
    /// Identifier, critical flag, and value in DER.
    pub extensions: &'a [(&'a str, bool, &'a [u8])],
    pub digest: MessageDigest,
    /// Start and end of the validity, in seconds from now.
    pub valid: (i64, i64),
    pub serial: u32,
}

impl<'a> Forged<'a> {
    /// A correct proxy of `issuer`.
    pub fn proxy(issuer: &'a Credential) -> Self {
        let extensions = &[(PROXY_CERT_INFO, true, INHERIT_ALL)];
        Self { more: &["7"], extensions, ..Self::signed_by(issuer, issuer.certificate().subject_name()) }
    }

    /// A certificate for `name`, signed by `issuer` and without extensions.
    pub fn signed_by(issuer: &'a Credential, name: &'a X509NameRef) -> Self {
        Self {
            issuer: issuer.certificate().subject_name(),
            signer: issuer.key(),
            base: name,
            more: &[],
            extensions: &[],
            digest: MessageDigest::sha256(),
            valid: (-HOUR, HOUR),
            serial: 7,
        }
    }

    pub fn make(&self, key: &PKey<Private>) -> X509 {
        let mut name = X509NameBuilder::new().unwrap();
        for entry in self.base.entries() {
            name.append_entry(entry).unwrap();
        }
        for common in self.more {
            name.append_entry_by_text("CN", common).unwrap();
        }
        let now = Timestamp::now().0;
        let mut builder = X509Builder::new().unwrap();
        builder.set_version(2).unwrap();
        let serial = Asn1Integer::from_bn(&BigNum::from_u32(self.serial).unwrap()).unwrap();
        builder.set_serial_number(&serial).unwrap();
        builder.set_issuer_name(self.issuer).unwrap();
        builder.set_subject_name(&name.build()).unwrap();
        builder.set_not_before(&Asn1Time::from_unix(now + self.valid.0).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::from_unix(now + self.valid.1).unwrap()).unwrap();
        builder.set_pubkey(key).unwrap();
        for (oid, critical, value) in self.extensions {
            builder.append_extension(extension(oid, *critical, value).unwrap()).unwrap();
        }
        builder.sign(self.signer, self.digest).unwrap();
        builder.build()
    }

    /// A credential with [`key`] and the chain of `issuer`.
    pub fn below(&self, issuer: &Credential) -> Credential {
        Credential::new(self.make(&key()), chain(issuer), key()).unwrap()
    }

    /// A credential with [`key`] and no chain.
    pub fn alone(&self) -> Credential {
        Credential::new(self.make(&key()), Vec::new(), key()).unwrap()
    }
}

/// Builds a name from its one-line form.
pub fn name(one_line: &str) -> X509Name {
    let mut builder = X509NameBuilder::new().unwrap();
    for part in one_line.split('/').skip(1) {
        let (kind, value) = part.split_once('=').unwrap();
        builder.append_entry_by_text(kind, value).unwrap();
    }
    builder.build()
}

/// Returns the same key each time because keys take long to make.
pub fn key() -> PKey<Private> {
    static KEY: OnceLock<PKey<Private>> = OnceLock::new();
    KEY.get_or_init(|| PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()).clone()
}

/// The certificate of a credential, followed by its chain.
pub fn chain(credential: &Credential) -> Vec<X509> {
    let mut all = vec![credential.certificate().clone()];
    all.extend(credential.chain().iter().cloned());
    all
}

/// A proxy with the default terms.
pub fn proxy(issuer: &Credential) -> Credential {
    create_proxy(issuer, 2048, &ProxyTerms::default(), Timestamp::now()).unwrap()
}

/// Runs the handshake of two sides; tokens are exchanged one for one.
///
/// # Errors
/// The error of the side that fails first.
///
/// # Panics
/// Neither side fails, and the handshake does not end.
pub fn shake(mut initiator: Initiator, mut acceptor: Acceptor) -> Result<(Session, Session), HandshakeError> {
    let (mut one, mut other) = (None, None);
    let mut token = Vec::new();
    // Simulates earlier work on this thread that left errors in OpenSSL's queue.
    let leave_errors = || {
        if let Err(errors) = X509::from_der(b"none") {
            errors.put();
        }
    };
    for _ in 0..8 {
        leave_errors();
        if one.is_none() {
            (token, one) = taken(initiator.step(&token)?);
        }
        leave_errors();
        if other.is_none() {
            (token, other) = taken(acceptor.step(&token)?);
        }
    }
    Ok((*one.unwrap(), *other.unwrap()))
}

fn taken(step: Step) -> (Vec<u8>, Option<Box<Session>>) {
    match step {
        Step::Continue(token) => (token, None),
        Step::Done(token, session) => (token, Some(session)),
    }
}

/// Whether a program is installed.
///
/// # Panics
/// The program is not installed, and `CI` or `ROPEWALK_REQUIRE_PEERS` is in the environment.
pub fn have(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")])
        .any(|directory| directory.join(program).is_file());
    let wanted = std::env::var_os("ROPEWALK_REQUIRE_PEERS").is_some() || std::env::var_os("CI").is_some();
    assert!(found || !wanted, "{program} is not installed");
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

/// Whether the DER readers accept these bytes as a certificate, and as a proxyCertInfo value.
pub fn readable(der: &[u8]) -> (bool, bool) {
    (crate::certificate::parse(der).is_ok(), crate::proxy_info::ProxyPolicy::parse(der).is_ok())
}
