//! Bearer tokens over TLS: curl, lftp, and Ropewalk's client with `ropewalk serve` and tokens of a
//! test issuer.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};
use ropewalk_tests::sites::tokens::issuer::encode;
use ropewalk_tests::sites::tokens::{Site, content, private, token};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn curl_with_token_transfers_within_scopes() {
    if !peers::available(&["curl"]) {
        return;
    }
    let site = Site::new();
    let good = token(json!({}));
    let (back, source) = (site.path("back"), site.path("source"));
    fs::write(&source, content()).unwrap();
    let (back, source) = (back.to_str().unwrap(), source.to_str().unwrap());
    let url = |path: &str| format!("ftp://{}", site.url(path));
    site.curl(&good, &["-o", back, &url("/data/file")]).succeeded().unwrap();
    assert!(fs::read(back).unwrap() == content());
    site.curl(&good, &["-T", source, &url("/up/new")]).succeeded().unwrap();
    assert!(fs::read(site.path("root/up/new")).unwrap() == content());
    // Not beyond the scopes.
    site.curl(&good, &["-o", back, &url("/database")]).failed().unwrap();
    site.curl(&good, &["-T", source, &url("/up/new")]).failed().unwrap();
    site.curl(&good, &["-T", source, &url("/data/new")]).failed().unwrap();
    // Invalid tokens are refused.
    let expired = token(json!({"exp": 1_700_000_000}));
    let none = format!("{}.{}.", encode(r#"{"alg":"none"}"#), good.split('.').nth(1).unwrap());
    let other = token(json!({"aud": "https://other.example"}));
    for bad in [&expired, &none, &other] {
        let outcome = site.curl(bad, &["-o", back, &url("/data/file")]).failed().unwrap();
        assert!(outcome.errors().contains("67") || outcome.errors().contains("530"), "{}", outcome.errors());
    }
    // In clear the server refuses before the token is sent.
    let mut command = process::command("curl");
    command.args(["--silent", "--show-error", "--netrc-file"]).arg(site.path("netrc")).arg(url("/data/file"));
    run(&mut command, LIMIT).unwrap().failed().unwrap();
    site.kept_secret(&[&good, &expired, &other]);
    assert!(site.server.log().contains("it expired"));
}

#[test]
fn lftp_with_token_transfers_within_scopes() {
    if !peers::available(&["lftp"]) {
        return;
    }
    let site = Site::new();
    let good = token(json!({}));
    let script = site.path("script");
    let lines = format!(
        "set ssl:verify-certificate no\nset ftp:ssl-force yes\nset ftp:ssl-protect-data yes\nset net:max-retries 1\n\
         open -u :token:,{good} ftp://{}\nget /data/file -o {}\n",
        site.url("/"),
        site.path("back").display(),
    );
    private(&script, &lines);
    run(process::command("lftp").env("HOME", site.path("client")).arg("-f").arg(&script), LIMIT)
        .unwrap()
        .succeeded()
        .unwrap();
    assert!(fs::read(site.path("back")).unwrap() == content());
    site.kept_secret(&[&good]);
}

#[test]
fn client_with_token_transfers_within_scopes() {
    let site = Site::new();
    let file = site.token("token", json!({}));
    let file = file.to_str().unwrap();
    let (back, source) = (site.path("back"), site.path("source"));
    let (back, source) = (back.to_str().unwrap(), source.to_str().unwrap());
    fs::write(source, content()).unwrap();
    let url = |path: &str| format!("ftpes://{}", site.url(path));
    for options in [&["-p", "1"][..], &["-p", "4"], &["--mode", "stream"]] {
        let options = [&["--token", file], options].concat();
        site.cp(&options, &url("/data/file"), back).succeeded().unwrap();
        assert!(fs::read(back).unwrap() == content());
        fs::remove_file(back).unwrap();
        site.cp(&options, source, &url("/up/new")).succeeded().unwrap();
        assert!(fs::read(site.path("root/up/new")).unwrap() == content());
        fs::remove_file(site.path("root/up/new")).unwrap();
    }
    // The token comes from the environment.
    let cp = |command: &mut Command| {
        let command = command.args(["cp", "--quiet", "--accept-new", "--retries", "0", "--token", "auto"]);
        run(command.args([&url("/data/file"), back]), LIMIT).unwrap()
    };
    cp(site.ours().env("BEARER_TOKEN", token(json!({})))).succeeded().unwrap();
    cp(site.ours().env("BEARER_TOKEN_FILE", file)).succeeded().unwrap();
    let debug =
        site.cp(&["--token", file, "--debug"], &url("/data/file"), back).succeeded().unwrap().errors();
    assert!(debug.contains("USER :token:") && debug.contains("PASS ***"), "{debug}");
    assert!(!debug.contains(&fs::read_to_string(file).unwrap()[..60]), "{debug}");
    // Paths that the token does not permit.
    let refused = site.cp(&["--token", file], &url("/database"), back).failed().unwrap();
    assert!(!refused.errors().contains(&fs::read_to_string(file).unwrap()[..60]));
    let expired = site.token("expired", json!({"exp": 1_700_000_000}));
    let refused =
        site.cp(&["--token", expired.to_str().unwrap()], &url("/data/file"), back).failed().unwrap();
    assert!(refused.errors().contains("it expired"), "{}", refused.errors());
    site.kept_secret(&[&fs::read_to_string(file).unwrap(), &fs::read_to_string(expired).unwrap()]);
}

/// The client never sends a token in clear.
#[test]
fn token_is_not_sent_in_clear() {
    let site = Site::new();
    let file = site.token("token", json!({}));
    let name = file.to_str().unwrap().to_owned();
    let back = site.path("back");
    let back = back.to_str().unwrap();
    let clear = format!("ftp://{}", site.url("/data/file"));
    let refused = site.cp(&["--token", &name], &clear, back).failed().unwrap();
    assert!(refused.errors().contains("protected control connection"), "{}", refused.errors());
    // A server whose AUTH an attacker has removed.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (&stream).write_all(b"220 ready\r\n").unwrap();
        let mut heard = String::new();
        for line in BufReader::new(&stream).lines() {
            let Ok(line) = line else { break };
            heard += &line;
            let _ = (&stream).write_all(b"500 what?\r\n");
        }
        heard
    });
    site.cp(&["--token", &name], &format!("ftpes://127.0.0.1:{port}/x"), back).failed().unwrap();
    let heard = heard.join().unwrap();
    assert!(heard.contains("AUTH TLS") && !heard.contains("USER") && !heard.contains("eyJ"), "{heard}");
    // Token files that other users may read, and tokens among the arguments.
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let secured = format!("ftpes://{}", site.url("/data/file"));
    let refused = site.cp(&["--token", &name], &secured, back).failed().unwrap();
    assert!(refused.errors().contains("chmod 600"), "{}", refused.errors());
    let text = fs::read_to_string(&file).unwrap();
    let refused = site.cp(&["--token", &text], &secured, back).failed().unwrap();
    assert!(
        refused.errors().contains("other users can see") && !refused.errors().contains(&text[..40]),
        "{}",
        refused.errors()
    );
}
