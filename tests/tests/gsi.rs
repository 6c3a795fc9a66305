//! gsiftp:// with certificates of an authority made by `ropewalk ca`: Ropewalk's client with
//! globus-gridftp-server and with Ropewalk's server.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};

use ropewalk_tests::grid::Site;
use ropewalk_tests::peers;

/// Uploads and downloads a file with these options.
fn round(site: &Site, url: &str, options: &[&str]) {
    let content = site.content().unwrap();
    site.cp(options, "source", &format!("{url}/there")).unwrap().succeeded().unwrap();
    assert!(fs::read(site.path("root/there")).unwrap() == content, "{url} {options:?}");
    let got = site.cp(options, &format!("{url}/there"), "back").unwrap().succeeded().unwrap().errors();
    // The client did not fall back to another method either.
    assert!(!got.contains("warning"), "{url} {options:?}: {got}");
    assert!(fs::read(site.path("back")).unwrap() == content, "{url} {options:?}");
    fs::remove_file(site.path("root/there")).unwrap();
    fs::remove_file(site.path("back")).unwrap();
}

fn rounds(site: &Site, url: &str) {
    round(site, url, &[]);
    round(site, url, &["-p", "4"]);
    round(site, url, &["-p", "4", "--data-protection", "private"]);
    round(site, url, &["--mode", "stream"]);
    round(site, url, &["--mode", "stream", "--data-protection", "safe"]);
    round(site, url, &["--no-dcau"]);
    // Many small files over reused connections.
    for n in 0..40 {
        fs::create_dir_all(site.path("tree/below")).unwrap();
        fs::write(site.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
    }
    for options in [&["-r"][..], &["-r", "--data-protection", "private"]] {
        site.cp(options, "tree/", &format!("{url}/tree/")).unwrap().succeeded().unwrap();
        let got = site.cp(options, &format!("{url}/tree/"), "again/").unwrap().succeeded().unwrap().errors();
        assert!(!got.contains("warning"), "{url} {options:?}: {got}");
        for n in 0..40u8 {
            let got = fs::read(site.path(&format!("again/below/{n}"))).unwrap();
            assert_eq!(got, vec![n; usize::from(n) * 321]);
        }
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn client_with_ropewalk_server_transfers() {
    let site = Site::new().unwrap();
    let server = site.serve("", &[]).unwrap();
    let url = &server.url;
    rounds(&site, url);
    // A server with another identity than the expected one.
    let text = site
        .cp(&["--retries", "0", "--server-subject", "/O=Grid/CN=Other"], &format!("{url}/x"), "y")
        .unwrap()
        .failed()
        .unwrap()
        .errors();
    assert!(text.contains("not /O=Grid/CN=Other"), "{text}");
}

#[test]
fn client_with_gct_server_transfers() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new().unwrap();
    let server = site.gct(&[]).unwrap();
    rounds(&site, &server.url);
}

#[test]
fn third_party_transfers_between_both_servers() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new().unwrap();
    let (ours, gct) = (site.serve("", &[]).unwrap(), site.gct(&[]).unwrap());
    let (ours, gct) = (&ours.url, &gct.url);
    let content = site.content().unwrap();
    fs::write(site.path("root/a"), &content).unwrap();
    for options in [&[][..], &["-p", "3", "--data-protection", "private"], &["--no-dcau"]] {
        site.cp(options, &format!("{ours}/a"), &format!("{gct}/b")).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/b")).unwrap() == content, "{options:?}");
        site.cp(options, &format!("{gct}/b"), &format!("{ours}/c")).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/c")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("root/b")).unwrap();
        fs::remove_file(site.path("root/c")).unwrap();
    }
}

#[test]
fn client_without_credential_names_remedy() {
    let site = Site::new().unwrap();
    let server = site.serve("", &[]).unwrap();
    let url = &server.url;
    fs::remove_file(site.path("proxy")).unwrap();
    let text = site.cp(&["--retries", "0"], &format!("{url}/x"), "y").unwrap().failed().unwrap().errors();
    assert!(text.contains("ropewalk proxy init"), "{text}");
    let text = site
        .cp(&["--retries", "0", "--insecure"], &format!("{url}/x"), "y")
        .unwrap()
        .failed()
        .unwrap()
        .errors();
    assert!(text.contains("Must perform GSSAPI authentication"), "{text}");
}

#[test]
fn gsi_server_without_auth_gets_no_login() {
    let site = Site::new().unwrap();
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let url = format!("gsiftp://localhost:{}/x", listener.local_addr().unwrap().port());
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 ready.\r\n").unwrap();
        let mut heard = Vec::new();
        for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            heard.push(line);
            if stream.write_all(b"500 Invalid command.\r\n").is_err() {
                break;
            }
        }
        heard
    });
    let text = site.cp(&["--retries", "0"], &url, "y").unwrap().failed().unwrap().errors();
    assert!(text.contains("does not continue in clear"), "{text}");
    let heard = heard.join().unwrap();
    assert!(heard.iter().all(|line| !line.starts_with("USER") && !line.starts_with("PASS")), "{heard:?}");
}
