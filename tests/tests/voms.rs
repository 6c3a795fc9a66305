//! VOMS attributes that VOMS's own tools wrote into proxies.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use ropewalk_tests::grid::{LIMIT, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};

const ROLE: &str = "/atlas/Role=production/Capability=NULL";

struct Organisation {
    site: Site,
}

impl Organisation {
    fn new() -> Option<Self> {
        if !peers::available(&["voms-proxy-fake", "voms-proxy-info"]) {
            return None;
        }
        let site = Site::new().unwrap();
        for name in ["voms", "other"] {
            let (cert, key) = (format!("{name}cert.pem"), format!("{name}key.pem"));
            site.ca(&["host", "--cert", &cert, "--key", &key, &format!("{name}.example.org")]).unwrap();
        }
        fs::create_dir_all(site.path("vomsdir/atlas")).unwrap();
        let made = Self { site };
        made.trust("voms");
        Some(made)
    }

    fn list(&self) -> PathBuf {
        self.site.path("vomsdir/atlas/voms.example.org.lsc")
    }

    /// Trusts this site's host as the server of the organisation.
    fn trust(&self, name: &str) {
        let authority = "/O=Grid/OU=site/CN=Ropewalk CA";
        fs::write(self.list(), format!("/O=Grid/OU=site/CN={name}.example.org\n{authority}\n")).unwrap();
    }

    /// Makes a proxy with attributes with VOMS's own tool, as a VOMS server would issue them.
    fn fake(&self, options: &[&str]) {
        let mut fake = process::command("voms-proxy-fake");
        self.site.environment(&mut fake);
        fake.args(["-q", "-cert", "usercert.pem", "-key", "userkey.pem", "-certdir", "certificates"]);
        fake.args(["-hostcert", "vomscert.pem", "-hostkey", "vomskey.pem", "-voms", "atlas", "-rfc"]);
        fake.args(["-newformat", "-uri", "voms.example.org:15001", "-fqan", ROLE, "-fqan", "/atlas"]);
        fake.args(["-out", "attributes.pem"]).args(options);
        run(&mut fake, LIMIT).unwrap().succeeded().unwrap();
    }

    fn info(&self) -> String {
        let mut info = self.site.command().unwrap();
        info.env("X509_VOMS_DIR", self.site.path("vomsdir"));
        info.env("X509_USER_PROXY", self.site.path("attributes.pem")).args(["proxy", "info"]);
        run(&mut info, LIMIT).unwrap().succeeded().unwrap().text()
    }

    /// Returns the output of VOMS's own tool, which does not verify signatures.
    fn theirs(&self) -> String {
        let mut info = process::command("voms-proxy-info");
        self.site.environment(&mut info);
        info.env("X509_VOMS_DIR", self.site.path("vomsdir"));
        run(info.args(["-file", "attributes.pem", "-all"]), LIMIT).unwrap().succeeded().unwrap().text()
    }
}

#[test]
fn attributes_of_voms_tools_are_shown() {
    let Some(organisation) = Organisation::new() else { return };
    organisation.fake(&["-ga", "nickname=ada (atlas)", "-path-length", "5"]);
    let (ours, theirs) = (organisation.info(), organisation.theirs());
    assert!(ours.contains("\nverified  yes, until 2"), "{ours}");
    for said in [ROLE, "/atlas"] {
        assert!(ours.contains(&format!("\nattribute {said}\n")), "{ours}");
        assert!(theirs.contains(&format!("\nattribute : {said}\n")), "{theirs}");
    }
    // A proxy of the proxy has the attributes too, further up the chain.
    let mut again = organisation.site.command().unwrap();
    again.env("X509_USER_PROXY", organisation.site.path("attributes.pem"));
    again.args([
        "proxy",
        "init",
        "--cert",
        "attributes.pem",
        "--key",
        "attributes.pem",
        "--out",
        "below.pem",
    ]);
    run(&mut again, LIMIT).unwrap().succeeded().unwrap();

    // The server reports them at a log-in.
    let vomsdir = organisation.site.path("vomsdir");
    let served = organisation.site.serve("", &[("X509_VOMS_DIR", &vomsdir)]).unwrap();
    fs::write(organisation.site.path("root/file"), "content").unwrap();
    for proxy in ["attributes.pem", "below.pem"] {
        let mut cat = organisation.site.command().unwrap();
        cat.env("X509_USER_PROXY", organisation.site.path(proxy));
        let read = run(cat.args(["cat", &format!("{}/file", served.url)]), LIMIT).unwrap();
        assert_eq!(read.succeeded().unwrap().text(), "content");
    }
    let log = served.program.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("VOMS attributes")).collect();
    assert_eq!(told.len(), 2, "{log}");
    for line in told {
        let attributes = line.contains(&format!("attributes=\"{ROLE} /atlas\""));
        let who = line.contains("atlas://voms.example.org:15001");
        assert!(attributes && who && line.contains("verified=\"yes\""), "{line}");
    }
}

#[test]
fn untrusted_attributes_are_rejected() {
    let Some(organisation) = Organisation::new() else { return };
    let refused = |reason: &str| {
        let ours = organisation.info();
        assert!(ours.contains("\nverified  no: ") && ours.contains(reason), "{reason}: {ours}");
        assert!(ours.contains(&format!("attribute {ROLE}")), "it is shown all the same: {ours}");
    };
    organisation.fake(&[]);
    organisation.trust("other");
    refused("it is signed by /O=Grid/OU=site/CN=voms.example.org of /O=Grid/OU=site/CN=Ropewalk CA, which /");
    fs::remove_file(organisation.list()).unwrap();
    refused("does not know who speaks for the virtual organisation");
    organisation.trust("voms");
    organisation.fake(&["-hostcert", "othercert.pem", "-hostkey", "otherkey.pem"]);
    refused("it is signed by /O=Grid/OU=site/CN=other.example.org");
    // The certificate of one host and the key of the other.
    organisation.fake(&["-hostkey", "otherkey.pem"]);
    refused("its signature is wrong");
    organisation.fake(&["-pastac", "48:00", "-vomslife", "1"]);
    refused("it is valid from 2");
    organisation.fake(&["-target", "elsewhere.example.org"]);
    refused("it is only for hosts that it names");
    // The certificate of the organisation's server may have been revoked since.
    organisation.fake(&[]);
    assert!(organisation.info().contains("\nverified  yes"));
    organisation.site.ca(&["revoke", "vomscert.pem"]).unwrap();
    refused("was revoked by /O=Grid/OU=site/CN=Ropewalk CA");
}
