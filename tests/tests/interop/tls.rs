//! TLS: curl, lftp and the Ropewalk client, each with the Ropewalk server and with vsftpd.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ropewalk_tests::grid::{LIMIT, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, Program, run};
use ropewalk_tests::server::{Kind, Server, Setup};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::rounds::{self, Place};

const SECTION: Section = Section {
    key: "tls",
    title: "TLS",
    text: "The certificate is issued by an authority that `ropewalk ca` made, and that the clients \
           trust. Both servers require that data connections resume the TLS session of the control \
           connection. An empty cell was not run: curl copies no trees, vsftpd has no MODE E, and \
           the Ropewalk client accepts each version of TLS. GCT's programs do not support TLS as in \
           RFC 4217. `tests/tests/tls/filezilla.rs` tests FileZilla (log-in and listings).",
    corner: "Task",
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Ropewalk,
    Curl,
    Lftp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    File,
    Tree,
    /// Through the client to the other server.
    Over,
}

/// Options of each client; a client without options does not run the row.
struct Row {
    name: &'static str,
    implicit: bool,
    what: What,
    ours: Option<&'static [&'static str]>,
    curl: Option<&'static [&'static str]>,
    lftp: Option<&'static str>,
    curl_cannot: Option<&'static str>,
    vsftpd: bool,
}

/// With TLS 1.3, lftp closes data connections before it has read vsftpd's session tickets. That
/// resets the connection, and vsftpd then loses the end of an upload.
const LFTP_WITH_VSFTPD: &str = "set ssl:priority NORMAL:-VERS-TLS1.3";

const ROW: Row = Row {
    name: "AUTH TLS, get and put",
    implicit: false,
    what: What::File,
    ours: Some(&["--mode", "stream"]),
    curl: Some(&[]),
    lftp: Some(""),
    curl_cannot: None,
    vsftpd: true,
};

const ROWS: [Row; 9] = [
    ROW,
    Row {
        name: "AUTH TLS, version 1.2",
        ours: None,
        curl: Some(&["--tls-max", "1.2"]),
        lftp: Some("set ssl:priority NORMAL:-VERS-TLS1.3"),
        ..ROW
    },
    Row { name: "implicit TLS, get and put", implicit: true, ..ROW },
    Row {
        name: "AUTH TLS, PORT",
        ours: None,
        curl: Some(&["-P", "-"]),
        curl_cannot: Some(
            "curl 7.88 cannot let the server connect within TLS: \"sa_addr inet_ntop() failed\"",
        ),
        lftp: Some("set ftp:passive-mode false"),
        ..ROW
    },
    Row {
        name: "AUTH TLS, PROT C",
        ours: Some(&["--mode", "stream", "--data-protection", "clear"]),
        curl: Some(&["--ftp-ssl-control"]),
        lftp: Some("set ftp:ssl-protect-data false"),
        ..ROW
    },
    Row {
        name: "AUTH TLS, MODE E, 4 streams",
        ours: Some(&["--mode", "extended", "-p", "4"]),
        curl: None,
        lftp: None,
        vsftpd: false,
        ..ROW
    },
    Row { name: "AUTH TLS, tree", what: What::Tree, ours: Some(&["-r"]), curl: None, ..ROW },
    Row {
        name: "implicit TLS, tree",
        implicit: true,
        what: What::Tree,
        ours: Some(&["-r"]),
        curl: None,
        ..ROW
    },
    Row {
        name: "AUTH TLS, then to the other server (--through-here)",
        what: What::Over,
        ours: Some(&["--through-here"]),
        curl: None,
        lftp: None,
        ..ROW
    },
];

/// A server on two ports: with AUTH TLS, and with implicit TLS.
struct Offer {
    ports: [u16; 2],
    root: String,
}

impl Offer {
    /// `scheme` is followed by `s` for implicit TLS.
    fn url(&self, scheme: &str, implicit: bool) -> String {
        let scheme = if implicit { "ftps" } else { scheme };
        format!("{scheme}://localhost:{}{}", self.ports[usize::from(implicit)], self.root)
    }
}

struct Yard {
    site: Site,
    authority: PathBuf,
    ours: Offer,
    vsftpd: Offer,
    _running: (Program, [Server; 2]),
}

impl Yard {
    fn open() -> Result<Self> {
        let site = Site::new()?;
        let authority = fs::read_dir(site.path("certificates"))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "0"))
            .context("no authority")?;
        let text = "root = 'root'\nlisten = ['127.0.0.1:0']\n[anonymous]\nwrite = true\nthird_party = true\n[identity]\nmapped = false\n\
                    [tls]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nimplicit = ['127.0.0.1:0']\n";
        fs::write(site.path("server.toml"), text)?;
        let program = Program::start(site.command()?.args(["serve", "--config", "server.toml"]))?;
        let port = || {
            program.wait_for_line(LIMIT, |line| {
                line.strip_prefix("Server listening at 127.0.0.1:")?.parse().ok()
            })
        };
        let ours = Offer { ports: [port()?, port()?], root: String::new() };
        let root = site.path("root");
        let vsftpd = |implicit| {
            let setup = Setup::new(Kind::Vsftpd, &root);
            setup.vsftpd_tls(&site.path("hostcert.pem"), &site.path("hostkey.pem"), implicit).start()
        };
        let servers = [vsftpd(false)?, vsftpd(true)?];
        let ports = [servers[0].address().port(), servers[1].address().port()];
        let vsftpd = Offer { ports, root: root.display().to_string() };
        Ok(Self { site, authority, ours, vsftpd, _running: (program, servers) })
    }

    fn cell(&self, row: &Row, client: Client, at_vsftpd: bool) -> Result<()> {
        let (first, other) = if at_vsftpd { (&self.vsftpd, &self.ours) } else { (&self.ours, &self.vsftpd) };
        let scheme = if client == Client::Ropewalk { "ftpes" } else { "ftp" };
        let (url, over) = (first.url(scheme, row.implicit), other.url(scheme, row.implicit));
        let directory = self.site.path("");
        let copy = |from: &Place, to: &Place| match client {
            Client::Ropewalk => self.ropewalk(row, from, to),
            Client::Curl => self.curl(row, from, to),
            Client::Lftp => self.lftp(row, &url, from, to, if at_vsftpd { LFTP_WITH_VSFTPD } else { "" }),
        };
        match row.what {
            What::File => rounds::file(&directory, &url, None, &copy),
            What::Tree => rounds::tree(&directory, &url, &copy),
            What::Over => rounds::file(&directory, &url, Some(&over), &copy),
        }
    }

    fn ropewalk(&self, row: &Row, from: &Place, to: &Place) -> Result<Outcome> {
        let tree = row.what == What::Tree;
        let mut command = self.site.command()?;
        command.env("XDG_STATE_HOME", self.site.path("state"));
        command.args(["cp", "--quiet", "--retries", "0", "--authorities"]).arg(&self.authority);
        run(command.args(row.ours.unwrap_or_default()).args([from.path(tree), to.path(tree)]), LIMIT)
    }

    fn curl(&self, row: &Row, from: &Place, to: &Place) -> Result<Outcome> {
        let mut command = process::command("curl");
        command.args(["--silent", "--show-error", "--max-time", "100", "--cacert"]).arg(&self.authority);
        let options = row.curl.unwrap_or_default();
        if !options.contains(&"--ftp-ssl-control") {
            command.arg("--ssl-reqd");
        }
        command.args(options);
        match (from, to) {
            (Place::Local(path), Place::Remote(url)) => command.arg("-T").arg(path).arg(url),
            (Place::Remote(url), Place::Local(path)) => command.arg("-o").arg(path).arg(url),
            _ => bail!("curl copies between here and there"),
        };
        run(&mut command, LIMIT)
    }

    fn lftp(&self, row: &Row, server: &str, from: &Place, to: &Place, more: &str) -> Result<Outcome> {
        let inside = |url: &str| url.trim_start_matches(server).trim_matches('/').to_owned();
        let shown = |path: &Path| path.display().to_string();
        let order = match (from, to, row.what) {
            (Place::Local(path), Place::Remote(url), What::Tree) => {
                format!("mirror -R --no-perms {} {}", shown(path), inside(url))
            }
            (Place::Remote(url), Place::Local(path), What::Tree) => {
                format!("mirror {} {}", inside(url), shown(path))
            }
            (Place::Local(path), Place::Remote(url), _) => format!("put {} -o {}", shown(path), inside(url)),
            (Place::Remote(url), Place::Local(path), _) => format!("get {} -o {}", inside(url), shown(path)),
            _ => bail!("lftp copies between here and there"),
        };
        let script = format!(
            "set ssl:ca-file {}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; set ftp:ssl-protect-data true; \
             set net:max-retries 1; set net:timeout 20; set cmd:fail-exit true; {}; {more}; open {server}/; {order}",
            self.authority.display(),
            row.lftp.unwrap_or_default(),
        );
        let mut command = process::command("lftp");
        command.env("HOME", self.site.path("home")).args(["--norc", "-c", &script]);
        run(&mut command, LIMIT)
    }
}

#[test]
fn tls() {
    if !peers::available(&["curl", "lftp", "vsftpd"]) {
        return;
    }
    let yard = Arc::new(Yard::open().unwrap());
    let mut cells = Vec::new();
    for row in &ROWS {
        for (client, name, runs) in [
            (Client::Ropewalk, "ropewalk", row.ours.is_some()),
            (Client::Curl, "curl", row.curl.is_some()),
            (Client::Lftp, "lftp", row.lftp.is_some()),
        ] {
            for (at_vsftpd, server) in [(false, "ropewalk server"), (true, "vsftpd")] {
                if !runs || at_vsftpd && !row.vsftpd {
                    continue;
                }
                let yard = yard.clone();
                let run = move || yard.cell(row, client, at_vsftpd);
                let cell = Cell::new(row.name, format!("{name} with {server}"), run);
                cells.push(match row.curl_cannot {
                    Some(why) if client == Client::Curl => cell.expected(Expected::PeerCannot(why)),
                    _ => cell,
                });
            }
        }
    }
    cells::run(&SECTION, cells);
}
