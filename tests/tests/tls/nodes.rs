//! Data connections with TLS that are on data nodes.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::certificates::{Authority, Made};
use ropewalk_tests::process::{Outcome, command, run};
use ropewalk_tests::{files, peers};

use crate::site::{LIMIT, Site};

#[test]
fn protected_data_goes_to_nodes() {
    let drivers = "[data]\ndrivers = ['tcp', 'udt', 'quic']";
    let site = Site::start_with_nodes(tempfile::tempdir().unwrap(), "", drivers, 2);
    let root = site.path("root");
    let accepted = ["--accept-new"];
    let mut before = 0;
    for url in [site.explicit_url(), site.implicit_url()] {
        for options in [
            &[][..],
            &["-p", "4"],
            &["--mode", "stream"],
            &["--stripes", "auto", "-p", "2"],
            &["--data-protection", "clear"],
            &["--stack", "udt", "-p", "2"],
            &["--stack", "quic", "-p", "2"],
        ] {
            site.round(&url, &root, &[&accepted, options].concat());
            let channels = site.channels_on_nodes();
            assert!(channels >= before + 2, "{url} {options:?}: {}", site.log());
            before = channels;
        }
    }
    site.tree("tree");
    for (from, to) in [
        ("tree/", &*format!("{}/tree/", site.explicit_url())),
        (&*format!("{}/tree/", site.explicit_url()), "back/"),
    ] {
        site.cp(&["--accept-new", "-r"], from, to).succeeded().unwrap();
    }
    site.ensure_same("tree", "root/tree");
    site.ensure_same("tree", "back");
    // The secrets of the server are in no log.
    let key = fs::read_to_string(site.certificate()).unwrap();
    let line = key.lines().nth(2).unwrap();
    let logs = site.logs();
    assert!(!logs.contains("PRIVATE KEY") && !logs.contains(line), "{logs}");
}

#[test]
fn curl_and_lftp_use_nodes_in_both_versions() {
    if !peers::available(&["curl", "lftp"]) {
        return;
    }
    let site = Site::with_nodes("required = 'data'", 2);
    site.content("source");
    let path = |name: &str| site.path(name).display().to_string();
    let ca = site.certificate().display().to_string();
    let url = format!("ftp://localhost:{}", site.address.port());
    let mut before = 0;
    let mut on_nodes = |text: &str| {
        let channels = site.channels_on_nodes();
        assert!(channels > before, "{text}: {}", site.log());
        before = channels;
    };
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let curl = |arguments: &[&str]| {
            let mut curl = command("curl");
            curl.args(["--silent", "--show-error", "--max-time", "100", "--ssl-reqd", "--cacert", &ca]);
            run(curl.args(version).args(arguments), LIMIT).unwrap().succeeded().unwrap()
        };
        curl(&["-T", &path("source"), &format!("{url}/up")]);
        files::ensure_same(&site.path("root/up"), &site.path("source")).unwrap();
        on_nodes("upload");
        curl(&[&format!("{url}/up"), "-o", &path("got")]);
        files::ensure_same(&site.path("got"), &site.path("source")).unwrap();
        on_nodes("download");
        fs::remove_file(site.path("root/up")).unwrap();
    }
    site.tree("tree");
    let script = format!(
        "set ssl:ca-file {ca}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; \
         set ftp:ssl-protect-data true; set ftp:ssl-protect-list true; set net:max-retries 1; \
         set net:timeout 20; set cmd:fail-exit true; open {url}; mirror -R -P 3 {} /tree; set ftp:passive-mode false; mirror -P 3 /tree {}",
        path("tree"),
        path("back")
    );
    let mut lftp = command("lftp");
    lftp.arg("--norc").args(["-c", &script]).env("HOME", site.path("home"));
    run(&mut lftp, LIMIT).unwrap().succeeded().unwrap();
    site.ensure_same("tree", "root/tree");
    // Active mode: the nodes connect, but still have the server's role in TLS.
    site.ensure_same("tree", "back");
    on_nodes("mirror");
    assert!(!site.logs().contains("not that of the control connection"), "{}", site.logs());
}

/// How often the memory of a process that can be written has `wanted`.
fn in_memory(process: u32, wanted: &[u8]) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        // A part may be unmapped by now.
        if memory.read_exact_at(&mut bytes, start).is_ok() {
            count += bytes.windows(wanted.len()).filter(|found| *found == wanted).count();
        }
    }
    count
}

#[test]
fn node_forgets_the_key_of_the_front_end_with_the_channel() {
    let site = Site::with_nodes("session_reuse = 'prefer'", 1);
    for options in [&["-p", "2"][..], &["--mode", "stream"]] {
        site.round(&site.explicit_url(), &site.path("root"), &[&["--accept-new"], options].concat());
    }
    assert!(site.channels_on_nodes() >= 4, "{}", site.log());
    site.wait_for_log("closed", 4);
    let key = fs::read_to_string(site.certificate()).unwrap();
    let (_, key) = key.split_once("BEGIN PRIVATE KEY").unwrap();
    let line = key.lines().nth(1).unwrap().as_bytes();
    assert_eq!(line.len(), 64, "a whole line of Base64");
    // The node closes its end of a channel when it has read of it.
    let end = Instant::now() + LIMIT;
    while in_memory(site.node(), line) > 0 {
        assert!(Instant::now() < end, "the node remembers the key");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Python's ftplib resumes no session: each data connection has a handshake of its own.
const DOWNLOAD: &str = r#"
import ftplib, ssl, sys
port, authorities, control, data = sys.argv[1:]
def context(certificate):
    made = ssl.create_default_context(cafile=authorities)
    if certificate != "none":
        made.load_cert_chain(certificate)
    return made
ftp = ftplib.FTP_TLS(context=context(control))
ftp.connect("localhost", int(port), timeout=60)
ftp.login("ada", "x")
ftp.prot_p()
ftp.context = context(data)
got = []
ftp.retrbinary("RETR a", got.append)
print(b"".join(got).decode())
ftp.quit()
"#;

#[test]
fn client_certificate_of_the_control_connection_is_a_proof() {
    let authority = Authority::new("Users");
    let directory = tempfile::tempdir().unwrap();
    let ada = authority.host("Ada", Made::default());
    ada.write(&directory.path().join("ada.pem"));
    authority.host("Ada", Made::default()).write(&directory.path().join("second.pem"));
    fs::write(directory.path().join("users.pem"), ada.authority_pem()).unwrap();
    let tls = "client_authorities = 'users.pem'\n[tls.users]\n'/O=Test/CN=Ada' = 'ada'";
    let site = Site::start_with_nodes(directory, tls, "[identity]\nmapped = false", 1);
    fs::write(site.path("root/a"), "content").unwrap();
    let download = |control: &str, data: &str| -> Outcome {
        let mut python = command("python3");
        python.args(["-c", DOWNLOAD, &site.address.port().to_string()]).arg(site.certificate());
        python.args([control, data]).current_dir(site.path("."));
        run(&mut python, LIMIT).unwrap()
    };
    assert_eq!(download("ada.pem", "ada.pem").succeeded().unwrap().text().trim(), "content");
    for data in ["none", "second.pem"] {
        let refused = download("ada.pem", data).failed().unwrap();
        assert!(!refused.text().contains("content"), "{data}: {}", refused.text());
    }
    site.wait_for_data_log("not that of the control connection", 2);
    assert!(site.channels_on_nodes() >= 3, "{}", site.log());
}
