//! A site, its server, and clients that violate the protocol.

use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_gsi::testing::{self, Control};
use ropewalk_gsi::{
    After, Credential, Expected, Identity, Initiator, InitiatorOptions, ProxyTerms, TlsSettings, Trust,
};
use ropewalk_tests::grid::{self, Served};
use tempfile::TempDir;

pub(crate) struct Yard {
    pub(crate) directory: TempDir,
    pub(crate) site: testing::Site,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = testing::Site::at(directory.path());
        site.write(&[&grid::account().unwrap()]);
        std::fs::create_dir(directory.path().join("root")).unwrap();
        std::fs::write(directory.path().join("root/file"), "precious").unwrap();
        Self { directory, site }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn serve(&self) -> Served {
        grid::serve(self.directory.path(), "[timeouts]\nlogin_failure = 0.001\n[log]\naudit = 'audit'\n", &[])
            .unwrap()
    }

    /// Returns a control connection that is logged in.
    pub(crate) fn logged_in(&self, served: &Served, credential: &Credential) -> Control {
        let mut control = Control::connect(served.address);
        control.authenticate(initiator(&self.identity(credential))).unwrap();
        control.log_in();
        control
    }

    /// Returns an identity that accepts weak digests, independently of the directory of
    /// authorities.
    pub(crate) fn identity(&self, credential: &Credential) -> Identity {
        let settings = TlsSettings { security_level: 0, ..TlsSettings::default() };
        let trust = Trust::anchors(vec![self.site.ca.certificate().clone()]);
        Identity::new(Arc::new(credential.clone()), Arc::new(trust), &settings).unwrap()
    }

    /// Returns the server's reply to a log-in with this credential.
    pub(crate) fn refusal(&self, served: &Served, credential: &Credential) -> String {
        let mut control = Control::connect(served.address);
        let answer = control.authenticate(initiator(&self.identity(credential)));
        answer.expect_err("the server believes it")
    }
}

/// Returns an initiator for a control connection.
pub(crate) fn initiator(identity: &Identity) -> Initiator {
    let options = InitiatorOptions {
        expected: Expected::host("localhost"),
        delegate: Some(ProxyTerms::default()),
        after: After::Flag,
        server_name: Some("localhost".into()),
    };
    Initiator::new(identity, options).unwrap()
}
