//! gsiftp:// and ftp:// with Kerberos tickets from a real key distribution centre: Ropewalk's
//! client with Ropewalk's server, and an independent client with Ropewalk's server.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::peers;
use ropewalk_tests::process::run;
use ropewalk_tests::sites::kerberos::Site;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn client_with_ropewalk_server_transfers() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("");
    let url = format!("gsiftp://localhost:{port}");
    site.round(&url, &[]);
    site.round(&url, &["--auth", "kerberos"]);
    for protection in ["clear", "safe", "private"] {
        for way in [&["-p", "1"][..], &["-p", "4"], &["--mode", "stream"]] {
            site.round(&url, &[way, &["--data-protection", protection]].concat());
        }
    }
    // Whichever peer connects to a port first could read data that is only signed and disturb data
    // that is encrypted, so these connections are bound by a key as well.
    let (_strict, strict) = site.serve("[data]\nrequire_key = true\n");
    for protection in ["clear", "safe", "private"] {
        let options = ["--data-protection", protection, "--require-data-authentication"];
        site.round(&format!("gsiftp://localhost:{strict}"), &options);
    }
    // In clear first, and in clear again: port and scheme do not imply Kerberos.
    let ftp = format!("ftp://localhost:{port}");
    site.round(&ftp, &["--auth", "kerberos", "--data-protection", "private"]);
    let text = site.cp(&[], "source", &format!("{ftp}/x")).failed().unwrap().errors();
    assert!(text.contains("Must perform GSSAPI authentication"), "{text}");
    // Many small files over reused connections.
    fs::create_dir_all(site.path("tree/below")).unwrap();
    for n in 0..60u8 {
        fs::write(site.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
    }
    for options in
        [&["-r"][..], &["-r", "--data-protection", "private"], &["-r", "--data-protection", "safe"]]
    {
        site.cp(options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        let got = site.cp(options, &format!("{url}/tree/"), "again/").succeeded().unwrap().errors();
        assert!(!got.contains("warning"), "{options:?}: {got}");
        for n in 0..60u8 {
            assert_eq!(
                fs::read(site.path(&format!("again/below/{n}"))).unwrap(),
                vec![n; usize::from(n) * 321]
            );
        }
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn unknown_user_and_missing_ticket_are_refused() {
    let Some(site) = Site::new() else { return };
    let (server, port) = site.serve("services = ['host']\nusers = { 'known/one@ROPEWALK.TEST' = 'ada' }\n");
    let url = format!("gsiftp://localhost:{port}");
    let content = site.content();
    site.realm.login("eve", "cache", &[]).unwrap_err();
    let login = site.realm.run("kinit", &["-k", "-t", "eve.keytab", "-c", "cache", "eve/host"]).unwrap();
    login.succeeded().unwrap();
    let text = site.cp(&[], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("The principal eve/host@ROPEWALK.TEST is no user here"), "{text}");
    site.realm.login("ada", "cache", &[]).unwrap();
    let text = site.cp(&["--user", "root"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("ada@ROPEWALK.TEST may not be the user root"), "{text}");
    // A server with another identity than the expected one.
    let other = ["--server-subject", "ftp/localhost@ROPEWALK.TEST"];
    let text = site.cp(&other, "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("ftp/localhost@ROPEWALK.TEST not found"), "{text}");
    let text =
        site.cp(&["--kerberos-service", "nfs"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("nfs/localhost@ROPEWALK.TEST not found"), "{text}");
    // Data between two servers cannot be wrapped.
    let twice = ["--data-protection", "private"];
    fs::write(site.path("root/a"), &content).unwrap();
    let text = site.cp(&twice, &format!("{url}/a"), &format!("{url}/b")).failed().unwrap().errors();
    assert!(text.contains("between two servers with Kerberos"), "{text}");
    site.cp(&[], &format!("{url}/a"), &format!("{url}/b")).succeeded().unwrap();
    assert!(fs::read(site.path("root/b")).unwrap() == content);
    fs::remove_file(site.realm.path("cache")).unwrap();
    let text = site.cp(&["--auth", "kerberos"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("kinit"), "{text}");
    assert!(!site.path("root/x").exists());
    let log = server.finish();
    assert!(log.contains("eve/host@ROPEWALK.TEST"), "{log}");
}

#[test]
fn independent_client_transfers() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("");
    let content = site.content();
    fs::write(site.path("root/there"), &content).unwrap();
    for level in ["S", "P"] {
        let got = site.python(port, &[level, "GET", "there", "got"]);
        got.succeeded().unwrap();
        assert!(fs::read(site.path("got")).unwrap() == content);
        site.python(port, &[level, "PUT", "source", "put"]).succeeded().unwrap();
        assert!(fs::read(site.path("root/put")).unwrap() == content);
        fs::remove_file(site.path("root/put")).unwrap();
        for (wrong, word) in [
            ("CUT", "without its protected end"),
            ("REORDER", "changed their order"),
            ("TWICE", "a second time"),
            ("BIG", "16777216 bytes"),
            ("STRANGER", "bytes on a data connection"),
        ] {
            let text = site.python(port, &[level, wrong, "source", "bad"]).failed().unwrap();
            let text = text.text() + &text.errors();
            assert!(text.contains(word), "{level} {wrong}: {text}");
            assert!(!site.path("root/bad").exists(), "{level} {wrong}");
        }
    }
}

#[test]
fn host_without_kerberos_library_reports_it() {
    // The library cannot be loaded: a file with its name is no library.
    let Some(site) = Site::new() else { return };
    let fake = site.path("fake");
    fs::create_dir(&fake).unwrap();
    fs::write(fake.join("libgssapi_krb5.so.2"), "nothing").unwrap();
    let ropewalk = |arguments: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        site.environment(&mut command).env("LD_LIBRARY_PATH", &fake);
        run(command.args(arguments), LIMIT).unwrap()
    };
    ropewalk(&["--version"]).succeeded().unwrap();
    site.content();
    ropewalk(&["cp", "--quiet", "source", "copy"]).succeeded().unwrap();
    fs::write(site.path("server.toml"), "root = 'root'\n[kerberos]\nrealms = ['ROPEWALK.TEST']\n").unwrap();
    let text =
        ropewalk(&["serve", "--config", "server.toml", "--listen", "127.0.0.1:0"]).failed().unwrap().errors();
    assert!(text.contains("Kerberos is not installed") && text.contains("libgssapi-krb5-2"), "{text}");
}

/// AUTH is removed by an attacker, or answered by another party.
#[test]
fn kerberos_server_without_auth_gets_no_login() {
    let Some(site) = Site::new() else { return };
    for answer in ["500 What?", "502 Not here.", "534 No.", "234 TLS, then."] {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(b"220 ready.\r\n").unwrap();
            let mut heard = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                heard.push(line);
                if stream.write_all(format!("{answer}\r\n").as_bytes()).is_err() {
                    break;
                }
            }
            heard
        });
        let url = format!("gsiftp://localhost:{port}/x");
        let text = site.cp(&["--auth", "kerberos"], &url, "y").failed().unwrap().errors();
        assert!(text.contains("does not continue in clear"), "{answer}: {text}");
        let heard = heard.join().unwrap();
        assert!(heard.iter().any(|line| line == "AUTH GSSAPI"), "{heard:?}");
        assert!(heard.iter().all(|line| !line.starts_with("USER") && !line.starts_with("PASS")), "{heard:?}");
    }
}

/// Invalid first tokens, and commands in clear between them.
#[test]
fn invalid_tokens_are_refused() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("[timeouts]\nlogin_failure = 0.05\n");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let begun = Instant::now();
    // Base64 of: no GSSAPI token, SPNEGO's OID, NTLMSSP, and a truncated Kerberos frame.
    for token in ["AAAA", "YAgGBisGAQUFAg==", "TlRMTVNTUAABAAAA", "YA0GCSqGSIb3EgECAgE="] {
        let mut control = Control::connect(address).unwrap();
        control.expect("AUTH GSSAPI", 334).unwrap();
        control.expect(format!("ADAT {token}"), 530).unwrap();
        assert!([503, 530].contains(&control.command("ADAT AAAA").unwrap().code), "{token}");
        control.expect("USER ada", 530).unwrap();
    }
    // Each failed attempt delays its sender longer: 0.05, 0.1, 0.2, and 0.4 s.
    assert!(begun.elapsed() >= Duration::from_millis(750));
    let mut control = Control::connect(address).unwrap();
    control.expect("USER ada", 530).unwrap();
    control.expect("AUTH GSSAPI", 334).unwrap();
    control.expect("DELE x", 530).unwrap();
    // Longer than any ticket.
    control.send(format!("ADAT {}", "A".repeat(200 << 10))).unwrap();
    assert!(control.reply().map_or(true, |reply| reply.code >= 400));
}

/// Messages to the client, and entries in the server's log and audit log, for tickets outside their
/// lifetime and for replayed tickets.
#[test]
fn expired_skewed_and_replayed_tickets_are_refused() {
    let told = |site: &Site, port: u16, token: &str, words: &str| {
        let mut control = Control::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        control.expect("AUTH GSSAPI", 334).unwrap();
        let reply = control.expect(format!("ADAT {token}"), 530).unwrap();
        assert!(reply.text.contains(words), "{words}: {reply:?}");
        let audit = fs::read_to_string(site.path("audit")).unwrap();
        let refused = |line: &str| {
            line.contains(r#""decision":"refused""#)
                && line.contains(r#""mechanism":"kerberos""#)
                && line.contains(words)
        };
        assert!(audit.lines().any(refused), "{words}: {audit}");
        // The handshake has ended, and no user is logged in.
        control.expect("USER :globus-mapping:", 530).unwrap();
        control.expect("AUTH GSSAPI", 334).unwrap();
    };
    let settings = "[log]\naudit = 'audit'\n";
    {
        let Some(site) = Site::new() else { return };
        let (_server, port) = site.serve(settings);
        // The client's clock is one hour ahead; it obtained its ticket from the key distribution
        // centre before.
        site.realm.run("kvno", &["host/localhost"]).unwrap().succeeded().unwrap();
        told(&site, port, &site.token(Some("+1h")), "the clocks of client");
        let token = site.token(None);
        let mut first = Control::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        first.expect("AUTH GSSAPI", 334).unwrap();
        first.expect(format!("ADAT {token}"), 235).unwrap();
        told(&site, port, &token, "replay");
    }
    // A ticket with a lifetime of one hour from two hours ago; the client's token has the same
    // time.
    let Some(site) = Site::at(Some("-2h")) else { return };
    site.realm.login_at(Some("-2h"), "ada", "cache", &["-l", "1h"]).unwrap();
    let (_server, port) = site.serve(settings);
    let token = site.token(Some("-2h"));
    told(&site, port, &token, "Ticket expired (get a new ticket with kinit)");
    // Ropewalk's client reports this, with a remedy, before it sends anything.
    site.content();
    let url = format!("gsiftp://localhost:{port}/x");
    let text = site.cp(&["--auth", "kerberos"], "source", &url).failed().unwrap().errors();
    assert!(text.contains("expired") && text.contains("kinit"), "{text}");
}
