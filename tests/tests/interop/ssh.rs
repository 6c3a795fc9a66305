//! sshftp://: both clients with both servers, through OpenSSH.

use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::peers;
use ropewalk_tests::process::Outcome;
use ropewalk_tests::sites::ssh::Site;

use crate::cells::{self, Cell};
use crate::document::Section;
use crate::rounds::{self, Place};

const SECTION: Section = Section {
    key: "ssh",
    title: "Log-in with ssh",
    text: "sshftp:// through OpenSSH's client and server. The script that \
           `globus-gridftp-server-enable-sshftp` writes starts GCT's server; that of `ropewalk serve \
           --install-ssh` starts Ropewalk's. `tests/tests/ssh.rs` tests transfers between a Ropewalk \
           server and a GCT server.",
    corner: "Task",
};

struct Row {
    name: &'static str,
    ours: &'static [&'static str],
    gcts: &'static [&'static str],
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    File,
    Tree,
    Over,
}

const ROWS: [Row; 5] = [
    Row { name: "stream mode", ours: &["--mode", "stream"], gcts: &[], what: What::File },
    Row { name: "4 streams", ours: &["-p", "4"], gcts: &["-p", "4"], what: What::File },
    Row { name: "tree", ours: &["-r"], gcts: &["-r", "-cd"], what: What::Tree },
    Row {
        name: "tree, 4 control connections",
        ours: &["-r", "--files", "4"],
        gcts: &["-r", "-cd", "-cc", "4"],
        what: What::Tree,
    },
    Row { name: "4 streams, between the servers", ours: &["-p", "4"], gcts: &["-p", "4"], what: What::Over },
];

fn cell(site: &Site, guc: bool, row: &Row) -> Result<()> {
    let directory = row.what == What::Tree;
    let copy = |from: &Place, to: &Place| -> Result<Outcome> {
        Ok(if guc {
            let (from, to) = (from.url(directory), to.url(directory));
            site.globus_url_copy(&[row.gcts, &[&from, &to]].concat())
        } else {
            site.cp(row.ours, &from.path(directory), &to.path(directory))
        })
    };
    let url = site.url("");
    let url = url.trim_end_matches('/');
    match row.what {
        What::File => rounds::file(&site.path(""), url, None, &copy),
        What::Over => rounds::file(&site.path(""), url, Some(url), &copy),
        What::Tree => rounds::tree(&site.path(""), url, &copy),
    }
}

#[test]
fn ssh() {
    if !peers::available(&["globus-url-copy", "unshare"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        peers::skip("only root can put another script into the place of that of GCT's client");
        return;
    }
    let (Some(ours), Some(gct)) = (Site::with_ours(), Site::with_gcts()) else { return };
    let sites = [("ropewalk", Arc::new(ours)), ("GCT", Arc::new(gct))];
    let mut cells = Vec::new();
    for row in &ROWS {
        for guc in [false, true] {
            for (server, site) in &sites {
                let client = if guc { "globus-url-copy" } else { "ropewalk" };
                let site = Arc::clone(site);
                cells.push(Cell::new(row.name, format!("{client} with {server} server"), move || {
                    cell(&site, guc, row)
                }));
            }
        }
    }
    cells::run(&SECTION, cells);
}
