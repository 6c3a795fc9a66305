//! gsiftp:// and ftp:// with Kerberos tickets of a real key distribution centre: our client and our server, and clients of
//! others with our server.
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
fn both_ways_with_our_own_server() {
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
    // Whoever is first at a port could read what is only signed, and break what is encrypted: these have a key, too.
    let (_strict, strict) = site.serve("[data]\nrequire_key = true\n");
    for protection in ["clear", "safe", "private"] {
        let options = ["--data-protection", protection, "--require-data-authentication"];
        site.round(&format!("gsiftp://localhost:{strict}"), &options);
    }
    // In clear before, in clear again: the port and the scheme say nothing of Kerberos.
    let ftp = format!("ftp://localhost:{port}");
    site.round(&ftp, &["--auth", "kerberos", "--data-protection", "private"]);
    let text = site.cp(&[], "source", &format!("{ftp}/x")).failed().unwrap().errors();
    assert!(text.contains("Must perform GSSAPI authentication"), "{text}");
    // Many small files over connections that are used again.
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
fn who_is_not_a_user_and_who_has_no_ticket() {
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
    // A server that is another one.
    let other = ["--server-subject", "ftp/localhost@ROPEWALK.TEST"];
    let text = site.cp(&other, "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("ftp/localhost@ROPEWALK.TEST not found"), "{text}");
    let text =
        site.cp(&["--kerberos-service", "nfs"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("nfs/localhost@ROPEWALK.TEST not found"), "{text}");
    // Between two servers nothing can be wrapped.
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
fn a_client_of_others() {
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
fn a_host_without_kerberos() {
    // The library cannot be loaded where a file of its name is no library.
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

/// AUTH cut out of the way, or answered by somebody else.
#[test]
fn a_server_without_auth_gets_nothing() {
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
        assert!(text.contains("nothing goes on in clear"), "{answer}: {text}");
        let heard = heard.join().unwrap();
        assert!(heard.iter().any(|line| line == "AUTH GSSAPI"), "{heard:?}");
        assert!(heard.iter().all(|line| !line.starts_with("USER") && !line.starts_with("PASS")), "{heard:?}");
    }
}

/// First tokens that are none, and commands in clear beside them.
#[test]
fn what_is_no_ticket() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("[timeouts]\nlogin_failure = 0.05\n");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let begun = Instant::now();
    // Base64 of: nothing of GSSAPI, SPNEGO's name, NTLMSSP, a frame of Kerberos cut short.
    for token in ["AAAA", "YAgGBisGAQUFAg==", "TlRMTVNTUAABAAAA", "YA0GCSqGSIb3EgECAgE="] {
        let mut control = Control::connect(address).unwrap();
        control.expect("AUTH GSSAPI", 334).unwrap();
        control.expect(format!("ADAT {token}"), 530).unwrap();
        assert!([503, 530].contains(&control.command("ADAT AAAA").unwrap().code), "{token}");
        control.expect("USER ada", 530).unwrap();
    }
    // Each costs its sender more than the one before: 0.05, 0.1, 0.2 and 0.4 s.
    assert!(begun.elapsed() >= Duration::from_millis(750));
    let mut control = Control::connect(address).unwrap();
    control.expect("USER ada", 530).unwrap();
    control.expect("AUTH GSSAPI", 334).unwrap();
    control.expect("DELE x", 530).unwrap();
    // Longer than any ticket.
    control.send(format!("ADAT {}", "A".repeat(200 << 10))).unwrap();
    assert!(control.reply().map_or(true, |reply| reply.code >= 400));
}

/// What a client is told, and what the server's own log and audit say, of tickets whose time is not now, or that came before.
#[test]
fn expired_skewed_and_replayed_tickets() {
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
        // The handshake is over, and nobody is logged in.
        control.expect("USER :globus-mapping:", 530).unwrap();
        control.expect("AUTH GSSAPI", 334).unwrap();
    };
    let settings = "[log]\naudit = 'audit'\n";
    {
        let Some(site) = Site::new() else { return };
        let (_server, port) = site.serve(settings);
        // Its own clock is an hour ahead; the key distribution centre has given it a ticket before.
        site.realm.run("kvno", &["host/localhost"]).unwrap().succeeded().unwrap();
        told(&site, port, &site.token(Some("+1h")), "the clocks of client");
        let token = site.token(None);
        let mut first = Control::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        first.expect("AUTH GSSAPI", 334).unwrap();
        first.expect(format!("ADAT {token}"), 235).unwrap();
        told(&site, port, &token, "replay");
    }
    // A ticket of an hour, two hours ago; the client's token is of that time, too.
    let Some(site) = Site::at(Some("-2h")) else { return };
    site.realm.login_at(Some("-2h"), "ada", "cache", &["-l", "1h"]).unwrap();
    let (_server, port) = site.serve(settings);
    let token = site.token(Some("-2h"));
    told(&site, port, &token, "Ticket expired (get a new ticket with kinit)");
    // Our own client says so before it sends anything, and what to do.
    site.content();
    let url = format!("gsiftp://localhost:{port}/x");
    let text = site.cp(&["--auth", "kerberos"], "source", &url).failed().unwrap().errors();
    assert!(text.contains("expired") && text.contains("kinit"), "{text}");
}
