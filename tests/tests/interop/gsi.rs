//! Certificates: both clients with both servers, and between them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use ropewalk_tests::grid::{LIMIT, Served, Site};
use ropewalk_tests::process::{self, run};
use ropewalk_tests::{files, peers};

use crate::cells::{self, Cell};
use crate::document::Section;

const SECTION: Section = Section {
    key: "gsi",
    title: "Log-in with certificates",
    text: "gsiftp:// with proxies, on an authority that `ropewalk ca` made. The server always gets a delegated proxy, without which \
           DCAU A does not work. DCSC: data connections have a credential that the client made for them. Transfers between \
           servers to which the client logs in as different people are tested by `tests/tests/gsi_identities.rs`.",
    corner: "Task",
};

const SIZE: u64 = 3_000_001;

/// Name of the row, options of our client, options of GCT's.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const ROWS: [Row; 7] = [
    ("DCAU A, stream mode", &["--mode", "stream"], &[]),
    ("DCAU A, 4 streams", &["-p", "4"], &["-p", "4"]),
    ("PROT S, stream mode", &["--mode", "stream", "--data-protection", "safe"], &["-dcsafe"]),
    ("PROT P, 4 streams", &["-p", "4", "--data-protection", "private"], &["-p", "4", "-dcpriv"]),
    ("DCSC, 2 streams", &["-p", "2", "--data-credential", "auto"], &["-p", "2", "-data-cred", "auto"]),
    (
        "DCSC and PROT P, stream mode",
        &["--mode", "stream", "--data-credential", "auto", "--data-protection", "private"],
        &["-data-cred", "auto", "-dcpriv"],
    ),
    ("DCAU N, 2 streams", &["-p", "2", "--no-dcau"], &["-p", "2", "-nodcau"]),
];

struct Yard {
    site: Site,
    ours: Served,
    gct: Served,
    next: AtomicUsize,
}

impl Yard {
    fn copy(&self, guc: bool, options: &[&str], from: &str, to: &str) -> Result<()> {
        let mut command = if guc {
            let mut command = process::command("globus-url-copy");
            self.site.environment(&mut command);
            command
        } else {
            let mut command = self.site.command()?;
            command.args(["cp", "--quiet", "--retries", "0"]);
            command
        };
        run(command.args(options).args([from, to]), LIMIT)?.succeeded().map(drop)
    }

    /// There and back, with one server; or over to the other one, too.
    fn round(&self, guc: bool, options: &[&str], first: &Served, second: Option<&Served>) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [there, over, source, back] =
            ["there", "over", "source", "back"].map(|name| format!("{name}{number}"));
        let local = |name: &str| format!("file://{}", self.site.path(name).display());
        let made = self.site.path(&source);
        files::write_random(&made, SIZE, number as u64)?;
        self.copy(guc, options, &local(&source), &format!("{}/{there}", first.url))?;
        let (server, name) = match second {
            Some(second) => {
                let (from, to) = (format!("{}/{there}", first.url), format!("{}/{over}", second.url));
                self.copy(guc, options, &from, &to)?;
                (second, &over)
            }
            None => (first, &there),
        };
        self.copy(guc, options, &format!("{}/{name}", server.url), &local(&back))?;
        files::ensure_same(&made, &self.site.path(&back))?;
        for name in [&there, &over] {
            let _ = fs::remove_file(self.site.path("root").join(name));
        }
        ensure!(fs::remove_file(made).is_ok(), "the source is gone");
        fs::remove_file(self.site.path(&back)).context("what came back")
    }
}

#[test]
fn gsi() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let site = Site::new().unwrap();
    let (ours, gct) = (site.serve("", &[]).unwrap(), site.gct(&[]).unwrap());
    let yard = Arc::new(Yard { site, ours, gct, next: AtomicUsize::new(1) });
    let mut cells = Vec::new();
    for third in [false, true] {
        for (name, our_options, gct_options) in ROWS {
            for guc in [false, true] {
                for at_gct in [false, true] {
                    let client = if guc { "globus-url-copy" } else { "ropewalk" };
                    let server = if at_gct { "GCT" } else { "ropewalk" };
                    let options = if guc { gct_options } else { our_options };
                    let row = if third { format!("{name}, on to the other server") } else { name.to_owned() };
                    let yard = Arc::clone(&yard);
                    cells.push(Cell::new(row, format!("{client} with {server} server"), move || {
                        let (first, second) =
                            if at_gct { (&yard.gct, &yard.ours) } else { (&yard.ours, &yard.gct) };
                        yard.round(guc, options, first, third.then_some(second))
                    }));
                }
            }
        }
    }
    cells::run(&SECTION, cells);
}
