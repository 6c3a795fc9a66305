//! A site with an authority, and two machines that talk in memory.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ropewalk_gsi::ca::{Ca, CaOptions};
use ropewalk_gsi::{
    Acceptor, Credential, HandshakeError, Identity, Initiator, Session, Step, TlsSettings, Trust,
};
use tempfile::TempDir;

pub struct Site {
    pub directory: TempDir,
    pub ca: Ca,
    host: OnceLock<Credential>,
    user: OnceLock<Credential>,
}

impl Site {
    pub fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let options = CaOptions {
            namespace: "/O=Grid/OU=test".into(),
            common_name: "Test CA".into(),
            days: 30,
            bits: 2048,
            passphrase: None,
        };
        let ca = Ca::create(&directory.path().join("ca"), &options).unwrap();
        ca.install(&directory.path().join("certificates"), 10).unwrap();
        Self { directory, ca, host: OnceLock::new(), user: OnceLock::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn certificates(&self) -> PathBuf {
        self.path("certificates")
    }

    pub fn trust(&self) -> Trust {
        Trust::directory(self.certificates())
    }

    pub fn host(&self) -> &Credential {
        self.host.get_or_init(|| self.ca.issue_host(&["localhost", "127.0.0.1"], 10).unwrap())
    }

    pub fn user(&self) -> Credential {
        self.user.get_or_init(|| self.ca.issue_user("Test User", 10).unwrap()).clone()
    }

    pub fn identity(&self, credential: &Credential, settings: &TlsSettings) -> Identity {
        Identity::new(Arc::new(credential.clone()), Arc::new(self.trust()), settings).unwrap()
    }
}

/// Brings two machines together; tokens are exchanged one for one.
pub fn shake(mut initiator: Initiator, mut acceptor: Acceptor) -> Result<(Session, Session), HandshakeError> {
    let (mut one, mut other) = (None, None);
    let mut token = Vec::new();
    for _ in 0..8 {
        if one.is_none() {
            token = match initiator.step(&token)? {
                Step::Continue(token) => token,
                Step::Done(token, session) => {
                    one = Some(session);
                    token
                }
            };
        }
        if other.is_none() {
            token = match acceptor.step(&token)? {
                Step::Continue(token) => token,
                Step::Done(token, session) => {
                    other = Some(session);
                    token
                }
            };
        }
        if let (Some(one), Some(other)) = (&mut one, &mut other) {
            let _ = (one, other);
            break;
        }
    }
    Ok((*one.expect("the initiator is done"), *other.expect("the acceptor is done")))
}

pub fn have(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")])
        .any(|directory| directory.join(program).is_file());
    assert!(
        found || std::env::var_os("ROPEWALK_REQUIRE_PEERS").is_none() && std::env::var_os("CI").is_none(),
        "{program} is not installed"
    );
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

pub fn write_all(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
