//! Data connections bound by one-time keys, with each way to log in.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::process::{Outcome, Program};
use ropewalk_tests::sites::data_keys::REQUIRED;
use ropewalk_tests::sites::{data_keys, kerberos, ssh};

use crate::cells::{self, Cell};
use crate::document::Section;
use crate::rounds::{self, Place};

const SECTION: Section = Section {
    key: "data-keys",
    title: "Data keys",
    text: "Clear data over connections that a one-time key binds to their session. The Ropewalk \
           client and server both require it (`--require-data-authentication`, `data.require_key`). \
           Other programs do not know the extension; transfers with them use no key, as in the rows \
           DCAU N and PROT C above.",
    corner: "Task",
};

const ROWS: [(&str, &[&str]); 5] = [
    ("stream mode", &["--mode", "stream"]),
    ("MODE E, 1 stream", &["--mode", "extended", "-p", "1"]),
    ("MODE E, 4 streams", &["--mode", "extended", "-p", "4"]),
    ("tree", &["-r"]),
    ("between the servers, 4 streams", &["-p", "4"]),
];

/// Options, source, destination.
type Run = dyn Fn(&[&str], &str, &str) -> Outcome + Send + Sync;

/// One way to log in.
struct Way {
    name: &'static str,
    directory: PathBuf,
    urls: [String; 2],
    copy: Box<Run>,
    _servers: Vec<Program>,
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for name in ["gsiftp://, DCAU N", "ftpes://, PROT C"] {
        let site = data_keys::Site::new();
        let tls = name.starts_with("ftpes");
        let start = |root| if tls { site.serve_tls(root) } else { site.serve(root, REQUIRED) };
        let ((one, first), (other, second)) = (start("one"), start("other"));
        let more: &[&str] = if tls { &["--accept-new", "--data-protection", "clear"] } else { &[] };
        ways.push(Way {
            name,
            directory: site.path(""),
            urls: [first, second],
            copy: Box::new(move |options, from, to| site.cp(&[more, options].concat(), from, to)),
            _servers: vec![one, other],
        });
    }
    if let Some(site) = ssh::Site::new(&[]) {
        std::fs::write(site.path("server.toml"), REQUIRED).unwrap();
        site.install(&["--config", site.path("server.toml").to_str().unwrap()]);
        let url = site.url("").trim_end_matches('/').to_owned();
        ways.push(Way {
            name: "sshftp://",
            directory: site.path(""),
            urls: [url.clone(), url],
            copy: Box::new(move |options, from, to| site.cp(options, from, to)),
            _servers: Vec::new(),
        });
    }
    if let Some(site) = kerberos::Site::new() {
        let (server, port) = site.serve(&format!("{REQUIRED}\n"));
        let url = format!("gsiftp://localhost:{port}");
        ways.push(Way {
            name: "Kerberos, PROT C",
            directory: site.path(""),
            urls: [url.clone(), url],
            copy: Box::new(move |options, from, to| site.cp(options, from, to)),
            _servers: vec![server],
        });
    }
    ways
}

fn cell(way: &Way, row: &str, options: &[&str]) -> Result<()> {
    let tree = row == "tree";
    let copy = |from: &Place, to: &Place| -> Result<Outcome> {
        let options = [options, &["--require-data-authentication"]].concat();
        Ok((way.copy)(&options, &from.path(tree), &to.path(tree)))
    };
    let [first, second] = &way.urls;
    if tree {
        return rounds::tree(&way.directory, first, &copy);
    }
    rounds::file(&way.directory, first, row.starts_with("from server").then_some(second), &copy)
}

#[test]
fn data_keys() {
    let ways: Vec<_> = ways().into_iter().map(Arc::new).collect();
    // Missing peers have been reported, and an incomplete table is not written.
    if ways.len() < 4 {
        return;
    }
    let mut cells = Vec::new();
    for (row, options) in ROWS {
        for way in &ways {
            let run = Arc::clone(way);
            cells.push(Cell::new(row, way.name, move || cell(&run, row, options)));
        }
    }
    cells::run(&SECTION, cells);
}
