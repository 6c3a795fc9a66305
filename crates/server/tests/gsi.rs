//! globus-url-copy with certificates against a Ropewalk server.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use ropewalk_gsi::testing::{self, have};
use ropewalk_gsi::{ProxyTerms, proxy_file};
use ropewalk_server::{Config, Gsi, Server, ServerHandle};
use tempfile::TempDir;

struct Site {
    directory: TempDir,
    address: SocketAddr,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let site = testing::Site::at(directory.path());
        site.write(&["grid", "other"]);
        let stranger = site.ca.issue_user("Nobody", 10).unwrap();
        proxy_file::init(&stranger, &at("stranger"), 2048, &ProxyTerms::default()).unwrap();
        std::fs::create_dir(at("root")).unwrap();
        let mut config = Config::quick(SocketAddr::from(([127, 0, 0, 1], 0)), None, at("root"));
        config.gsi = Some(Gsi {
            certificate: Some(at("hostcert.pem")),
            key: Some(at("hostkey.pem")),
            authorities: Some(at("certificates")),
            gridmap: Some(at("gridmap")),
            required: true,
            ..Gsi::default()
        });
        // The users of the gridmap have no local accounts, even if root runs this.
        config.identity.mapped = false;
        config.timeouts.login_failure = Duration::from_millis(1);
        config.data.connect_timeout = Duration::from_secs(10);
        let server = Server::bind(config).unwrap();
        let (address, handle) = (server.local_addrs()[0], server.handle());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self { directory, address, handle, thread: Some(thread) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, options: &[&str], versions: &str, proxy: &str, from: &str, to: &str) -> Output {
        Command::new("timeout")
            .args(["60", "globus-url-copy"])
            .args(options)
            .args([from, to])
            .env("X509_USER_PROXY", self.path(proxy))
            .env("X509_CERT_DIR", self.path("certificates"))
            .env("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", versions)
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY")
            .output()
            .unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("gsiftp://localhost:{}/{path}", self.address.port())
    }

    /// Copies a file to the server and back.
    fn round(&self, options: &[&str], versions: &str) {
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        let (source, back) = (self.path("source"), self.path("back"));
        std::fs::write(&source, &content).unwrap();
        let _ = std::fs::remove_file(&back);
        let local = |path: &Path| format!("file://{}", path.display());
        let shown = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let put = self.copy(options, versions, "proxy", &local(&source), &self.url("there"));
        assert!(put.status.success(), "put {options:?} {versions}: {}", shown(&put));
        assert!(std::fs::read(self.path("root/there")).unwrap() == content, "{options:?} {versions}");
        let get = self.copy(options, versions, "proxy", &self.url("there"), &local(&back));
        assert!(get.status.success(), "get {options:?} {versions}: {}", shown(&get));
        assert!(std::fs::read(&back).unwrap() == content, "{options:?} {versions}");
        std::fs::remove_file(self.path("root/there")).unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.handle.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn globus_url_copy_with_certificate_copies_both_ways() {
    if !have("globus-url-copy") {
        return;
    }
    let site = Site::new();
    for versions in ["TLS1_3_VERSION", "TLS1_2_VERSION"] {
        site.round(&[], versions);
        site.round(&["-p", "4"], versions);
        site.round(&["-p", "4", "-dcpriv"], versions);
    }
    site.round(&["-dcpriv"], "TLS1_3_VERSION");
    site.round(&["-dcsafe", "-p", "2"], "TLS1_3_VERSION");
    site.round(&["-nodcau", "-p", "2"], "TLS1_3_VERSION");
    site.round(&["-data-cred", "auto", "-p", "2"], "TLS1_3_VERSION");
}

#[test]
fn certificate_without_mapping_is_refused_with_reason() {
    if !have("globus-url-copy") {
        return;
    }
    let site = Site::new();
    std::fs::write(site.path("root/file"), "x").unwrap();
    let to = format!("file://{}", site.path("got").display());
    let output = site.copy(&[], "TLS1_3_VERSION", "stranger", &site.url("file"), &to);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("CN=Nobody is not in the gridmap"), "{text}");
    // The same without a certificate.
    let clear = format!("ftp://localhost:{}/file", site.address.port());
    let output = site.copy(&[], "TLS1_3_VERSION", "proxy", &clear, &to);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("GSSAPI"), "{text}");
}
