//! Tickets of MIT's key distribution centre: the Ropewalk client, and an independent one, with the
//! Ropewalk server.

use std::fs;
use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::files;
use ropewalk_tests::peers;
use ropewalk_tests::process::Outcome;
use ropewalk_tests::sites::kerberos::Site;

use crate::cells::{self, Cell};
use crate::document::Section;
use crate::rounds::{self, Place};

const SECTION: Section = Section {
    key: "kerberos",
    title: "Log-in with Kerberos",
    text: "AUTH GSSAPI with tickets of MIT's key distribution centre. The client in Python is \
           `tests/tests/kerberos/client.py`, written from the RFCs with `python3-gssapi`; it always \
           protects data. GCT's programs support certificates only.",
    corner: "Task",
};

const OURS: [(&str, &[&str]); 9] = [
    ("PROT C with a data key, stream mode", &["--mode", "stream"]),
    ("PROT C with a data key, 4 streams", &["-p", "4"]),
    ("PROT S, stream mode", &["--mode", "stream", "--data-protection", "safe"]),
    ("PROT S, 4 streams", &["-p", "4", "--data-protection", "safe"]),
    ("PROT P, stream mode", &["--mode", "stream", "--data-protection", "private"]),
    ("PROT P, 4 streams", &["-p", "4", "--data-protection", "private"]),
    ("PROT C, tree", &["-r"]),
    ("PROT P, tree", &["-r", "--data-protection", "private"]),
    ("PROT C with a data key, between the servers", &["-p", "4"]),
];

/// The protection level that the client in Python requests.
const FOREIGN: [(&str, &str); 2] = [("PROT S, stream mode", "S"), ("PROT P, stream mode", "P")];

fn ours(site: &Site, port: u16, name: &str, options: &[&str]) -> Result<()> {
    let tree = name.ends_with("tree");
    let copy = |from: &Place, to: &Place| -> Result<Outcome> {
        Ok(site.cp(options, &from.path(tree), &to.path(tree)))
    };
    let url = format!("gsiftp://localhost:{port}");
    if tree {
        return rounds::tree(&site.path(""), &url, &copy);
    }
    rounds::file(&site.path(""), &url, name.ends_with("to server").then_some(&url), &copy)
}

fn python(site: &Site, port: u16, level: &str) -> Result<()> {
    let number = rounds::number();
    let [source, there, back] = ["source", "there", "back"].map(|name| format!("{name}{number}"));
    files::write_random(&site.path(&source), 3_000_001, number as u64)?;
    site.python(port, &[level, "PUT", &source, &there]).succeeded()?;
    site.python(port, &[level, "GET", &there, &back]).succeeded()?;
    files::ensure_same(&site.path(&source), &site.path(&back))?;
    Ok(fs::remove_file(site.path("root").join(there))?)
}

#[test]
fn kerberos() {
    if !peers::available(&["python3"]) {
        return;
    }
    let Some(site) = Site::new() else { return };
    let (server, port) = site.serve("");
    let yard = Arc::new((site, server));
    let mut cells = Vec::new();
    for (name, options) in OURS {
        let row = yard.clone();
        cells.push(Cell::new(name, "ropewalk with ropewalk server", move || {
            ours(&row.0, port, name, options)
        }));
        for (_, level) in FOREIGN.into_iter().filter(|(row, _)| *row == name) {
            let yard = yard.clone();
            cells.push(Cell::new(name, "Python client with ropewalk server", move || {
                python(&yard.0, port, level)
            }));
        }
    }
    cells::run(&SECTION, cells);
}
