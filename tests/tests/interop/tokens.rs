//! Bearer tokens over TLS: curl, lftp and the Ropewalk client with the Ropewalk server.

use anyhow::{Result, bail, ensure};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, run};
use ropewalk_tests::sites::tokens::{Site, private, token};
use ropewalk_tests::{files, grid};
use serde_json::json;

use crate::cells::{self, Cell};
use crate::document::Section;
use crate::rounds::{self, Place};

const SECTION: Section = Section {
    key: "tokens",
    title: "Log-in with bearer tokens",
    text: "WLCG tokens over AUTH TLS, signed by an issuer that the test made. \"refused\": the \
           program must fail, and neither it nor the server may print the token. GCT's programs do \
           not support tokens.",
    corner: "Task",
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Curl,
    Lftp,
    Ropewalk,
}

type Row = (&'static str, fn(&Site, Client) -> Result<()>);

const ROWS: [Row; 5] = [
    ("get and put", |site, client| round(site, client, json!({"scope": "storage.read:/ storage.create:/"}))),
    ("get and put, SciTokens", |site, client| {
        let claims =
            json!({"scope": "read:/ write:/", "ver": "scitoken:2.0", "wlcg.ver": null, "wlcg.groups": null});
        round(site, client, claims)
    }),
    ("a path beyond the scopes is refused", |site, client| refused(site, client, "/database", json!({}))),
    ("an expired token is refused", |site, client| {
        refused(site, client, "/data/file", json!({"exp": 1_700_000_000}))
    }),
    ("a token for another audience is refused", |site, client| {
        refused(site, client, "/data/file", json!({"aud": "https://other.example"}))
    }),
];

fn copy(site: &Site, client: Client, token: &str, from: &Place, to: &Place) -> Result<Outcome> {
    let number = rounds::number();
    Ok(match (client, from, to) {
        (Client::Ropewalk, ..) => {
            let file = site.path(&format!("token{number}"));
            private(&file, token);
            site.cp(&["--token", &file.display().to_string()], &from.path(false), &to.path(false))
        }
        (Client::Curl, Place::Local(path), Place::Remote(url)) => {
            site.curl(token, &["-T", &path.display().to_string(), &url.replace("ftpes", "ftp")])
        }
        (Client::Curl, Place::Remote(url), Place::Local(path)) => {
            site.curl(token, &["-o", &path.display().to_string(), &url.replace("ftpes", "ftp")])
        }
        (Client::Lftp, ..) => {
            let server = format!("ftp://{}", site.url("/"));
            let inside = |url: &str| url.trim_start_matches(&server.replace("ftp:", "ftpes:")).to_owned();
            let order = match (from, to) {
                (Place::Local(path), Place::Remote(url)) => {
                    format!("put {} -o /{}", path.display(), inside(url))
                }
                (Place::Remote(url), Place::Local(path)) => {
                    format!("get /{} -o {}", inside(url), path.display())
                }
                _ => bail!("lftp copies between here and there"),
            };
            let script = site.path(&format!("script{number}"));
            let text = format!(
                "set ssl:verify-certificate no\nset ftp:ssl-force yes\nset ftp:ssl-protect-data yes\nset net:max-retries 1\n\
                 set cmd:fail-exit yes\nopen -u :token:,{token} {server}\n{order}\n"
            );
            private(&script, &text);
            let mut lftp = process::command("lftp");
            lftp.env("HOME", site.path("client")).arg("--norc").arg("-f").arg(script);
            run(&mut lftp, grid::LIMIT)?
        }
        _ => bail!("curl copies between here and there"),
    })
}

fn round(site: &Site, client: Client, claims: serde_json::Value) -> Result<()> {
    let token = token(claims);
    let url = format!("ftpes://{}", site.url("/up"));
    rounds::file(&site.path(""), &url, None, &|from, to| copy(site, client, &token, from, to))?;
    site.kept_secret(&[&token]);
    Ok(())
}

fn refused(site: &Site, client: Client, path: &str, claims: serde_json::Value) -> Result<()> {
    let (good, token) = (token(json!({})), token(claims));
    let got = site.path(&format!("got{}", rounds::number()));
    let url = format!("ftpes://{}", site.url(path));
    let outcome = copy(site, client, &token, &Place::Remote(&url), &Place::Local(&got))?.failed()?;
    let signature = token.rsplit('.').next().unwrap_or_default();
    ensure!(!(outcome.text() + &outcome.errors()).contains(signature), "the token is shown");
    ensure!(!got.exists(), "something came");
    // The token or the path is wrong.
    let url = format!("ftpes://{}", site.url("/data/file"));
    copy(site, client, &good, &Place::Remote(&url), &Place::Local(&got))?.succeeded()?;
    files::ensure_same(&site.path("root/data/file"), &got)?;
    site.kept_secret(&[&good, &token]);
    Ok(())
}

#[test]
fn tokens() {
    if !peers::available(&["curl", "lftp"]) {
        return;
    }
    let mut cells = Vec::new();
    for (client, name) in [(Client::Ropewalk, "ropewalk"), (Client::Curl, "curl"), (Client::Lftp, "lftp")] {
        for (row, run) in ROWS {
            cells.push(Cell::new(row, format!("{name} with ropewalk server"), move || {
                run(&Site::new(), client)
            }));
        }
    }
    cells::run(&SECTION, cells);
}
