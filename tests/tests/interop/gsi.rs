//! Certificates: both clients with both servers, and between the servers.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use ropewalk_tests::grid::{LIMIT, Served, Site, offset_was_used_twice};
use ropewalk_tests::process::{self, run};
use ropewalk_tests::{files, peers};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;

const SECTION: Section = Section {
    key: "gsi",
    title: "Log-in with certificates",
    text: "gsiftp:// with proxies, issued by an authority that `ropewalk ca` made. The server always \
           gets a delegated proxy, because DCAU A requires one. DCSC: data connections use a \
           credential that the client made for them. `tests/tests/gsi_identities.rs` tests transfers \
           between servers at which the client is logged in as different users.",
    corner: "Task",
};

const SIZE: u64 = 3_000_001;

/// Name of the row, options of our client, options of GCT's client.
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

const STACKS: Section = Section {
    key: "gsi-stacks",
    title: "Stripes and driver stacks",
    text: "As above, with these options of globus-url-copy. Each server has one address.",
    corner: "Options",
};

const STACK_ROWS: [(&str, Option<&str>); 4] = [
    ("-stripe", None),
    ("-stripe -dcsafe", None),
    ("-dcstack tcp -fsstack file -p 2", None),
    ("-dcstack gsi,tcp -fsstack file -dcpriv", Some("GCT's programs open no stack that begins with gsi")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Ours,
    Guc,
    /// Our client, with the options of globus-url-copy.
    Alias,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ropewalk",
            Self::Guc => "globus-url-copy",
            Self::Alias => "ropewalk globus-url-copy",
        }
    }
}

pub(crate) struct Yard {
    site: Site,
    pub(crate) ours: Served,
    pub(crate) gct: Served,
    next: AtomicUsize,
}

impl Yard {
    /// Starts both servers, ours with these settings and GCT's with these arguments.
    pub(crate) fn open(settings: &str, arguments: &[&str]) -> Result<Self> {
        let site = Site::new()?;
        let (ours, gct) = (site.serve(settings, &[])?, site.gct(arguments)?);
        Ok(Self { site, ours, gct, next: AtomicUsize::new(1) })
    }

    fn copy(&self, client: Client, options: &[&str], from: &str, to: &str) -> Result<()> {
        let mut command = match client {
            Client::Guc => {
                let mut command = process::command("globus-url-copy");
                self.site.environment(&mut command);
                if has_threads(options) {
                    // With one thread it hangs when it accepts connections over UDT.
                    command.env("GLOBUS_THREAD_MODEL", "pthread");
                }
                command
            }
            Client::Ours => {
                let mut command = self.site.command()?;
                command.args(["cp", "--quiet", "--retries", "0"]);
                command
            }
            Client::Alias => {
                let mut command = self.site.command()?;
                command.arg("globus-url-copy");
                command
            }
        };
        run(command.args(options).args([from, to]), LIMIT)?.succeeded().map(drop)
    }

    /// The file that a server stored as `name`. Both servers have the same root.
    fn at_server(&self, name: &str) -> PathBuf {
        self.site.path("root").join(name)
    }

    /// Upload and download with one server, or also a copy to the other one.
    pub(crate) fn round(
        &self,
        client: Client,
        options: &[&str],
        first: &Served,
        second: Option<&Served>,
    ) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [there, over, source, back] =
            ["there", "over", "source", "back"].map(|name| format!("{name}{number}"));
        let local = |name: &str| format!("file://{}", self.site.path(name).display());
        let made = self.site.path(&source);
        files::write_random(&made, SIZE, number as u64)?;
        let upload = || self.copy(client, options, &local(&source), &format!("{}/{there}", first.url));
        upload()?;
        if client == Client::Guc && has_threads(options) {
            for _ in 0..2 {
                if !offset_was_used_twice(&made, &self.at_server(&there))? {
                    break;
                }
                upload()?;
            }
        }
        files::ensure_same(&made, &self.at_server(&there)).context("after the upload")?;
        let (server, name) = match second {
            Some(second) => {
                let (from, to) = (format!("{}/{there}", first.url), format!("{}/{over}", second.url));
                self.copy(client, options, &from, &to)?;
                files::ensure_same(&made, &self.at_server(&over))
                    .context("after the copy between servers")?;
                (second, &over)
            }
            None => (first, &there),
        };
        self.copy(client, options, &format!("{}/{name}", server.url), &local(&back))?;
        files::ensure_same(&made, &self.site.path(&back)).context("after the download")?;
        for name in [&there, &over] {
            let _ = fs::remove_file(self.site.path("root").join(name));
        }
        ensure!(fs::remove_file(made).is_ok(), "the source is gone");
        fs::remove_file(self.site.path(&back)).context("what came back")
    }
}

/// Whether globus-url-copy runs with several threads.
fn has_threads(options: &[&str]) -> bool {
    options.contains(&"-udt")
}

#[test]
fn gsi() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let yard = Arc::new(Yard::open("", &[]).unwrap());
    let mut cells = Vec::new();
    for third in [false, true] {
        for (name, our_options, gct_options) in ROWS {
            for client in [Client::Ours, Client::Guc] {
                for at_gct in [false, true] {
                    let server = if at_gct { "GCT" } else { "ropewalk" };
                    let options = if client == Client::Guc { gct_options } else { our_options };
                    let row =
                        if third { format!("{name}, then to the other server") } else { name.to_owned() };
                    let yard = Arc::clone(&yard);
                    cells.push(Cell::new(
                        row,
                        format!("{} with {server} server", client.name()),
                        move || {
                            let (first, second) =
                                if at_gct { (&yard.gct, &yard.ours) } else { (&yard.ours, &yard.gct) };
                            yard.round(client, options, first, third.then_some(second))
                        },
                    ));
                }
            }
        }
    }
    cells::run(&SECTION, cells);
}

#[test]
fn stripes_and_stacks() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let yard = Arc::new(Yard::open("", &[]).unwrap());
    let mut cells = Vec::new();
    for third in [false, true] {
        for (options, guc_cannot) in STACK_ROWS {
            for client in [Client::Guc, Client::Alias] {
                for at_gct in [false, true] {
                    let server = if at_gct { "GCT" } else { "ropewalk" };
                    let row = if third {
                        format!("{options}, between two such servers")
                    } else {
                        options.to_owned()
                    };
                    let yard = Arc::clone(&yard);
                    let cell = Cell::new(row, format!("{} with {server} server", client.name()), move || {
                        let server = if at_gct { &yard.gct } else { &yard.ours };
                        let options: Vec<&str> = options.split(' ').collect();
                        yard.round(client, &options, server, third.then_some(server))
                    });
                    cells.push(match guc_cannot {
                        // Our program sends no stack.
                        Some(why) if client == Client::Guc => cell.expected(Expected::PeerCannot(why)),
                        _ => cell,
                    });
                }
            }
        }
    }
    cells::run(&STACKS, cells);
}
