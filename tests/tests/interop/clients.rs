//! Further clients of FTP and GridFTP with the Ropewalk server: one table, a column for each
//! client.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ropewalk_tests::grid::{Served, Site};
use ropewalk_tests::process::{self, Outcome, run};
use ropewalk_tests::server::{Kind, percent_encode};
use ropewalk_tests::{files, peers, tree};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::interop_fixture::{Plot, Yard};

/// SIGABRT.
const ABORTED: i32 = 6;

const SECTION: Section = Section {
    key: "clients",
    title: "Other clients",
    text: "Further clients with the Ropewalk server. gfal2 uses GridFTP with certificates, the \
           others plain FTP. An empty cell was not run.",
    corner: "Task",
};

const SIZE: u64 = 3_000_017;
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Rclone,
    Gfal2,
    Ncftp,
    Tnftp,
    Ftplib,
    Aioftp,
}

const CLIENTS: [Client; 6] =
    [Client::Rclone, Client::Gfal2, Client::Ncftp, Client::Tnftp, Client::Ftplib, Client::Aioftp];

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Rclone => "rclone",
            Self::Gfal2 => "gfal2",
            Self::Ncftp => "ncftp",
            Self::Tnftp => "tnftp",
            Self::Ftplib => "Python ftplib",
            Self::Aioftp => "aioftp",
        }
    }

    /// Whether the client is installed; prints a message if not.
    fn is_available(self) -> bool {
        match self {
            Self::Rclone => peers::available(&["rclone"]),
            Self::Gfal2 => peers::available(&["gfal-copy", "gfal-ls", "gfal-rename"]),
            Self::Ncftp => peers::available(&["ncftpput", "ncftpget", "ncftpls"]),
            Self::Tnftp => peers::available(&["tnftp"]),
            Self::Ftplib => peers::available(&["python3"]),
            Self::Aioftp => {
                let import = process::command("python3").args(["-c", "import aioftp"]).output();
                import.is_ok_and(|output| output.status.success())
                    || !peers::skip("python3 has no aioftp (PyPI: aioftp)")
            }
        }
    }
}

struct Ground {
    yard: Yard,
    /// For gfal2.
    site: Site,
    served: Served,
}

/// A client with a server and a directory for it.
struct Place<'a> {
    client: Client,
    ground: &'a Ground,
    plot: Plot,
    port: String,
}

impl<'a> Place<'a> {
    fn new(ground: &'a Ground, client: Client) -> Result<Self> {
        let port = ground.yard.server(Kind::Ropewalk)?.address().port().to_string();
        Ok(Self { client, ground, plot: ground.yard.plot()?, port })
    }

    /// The server's path on disk.
    fn served(&self, name: &str) -> PathBuf {
        self.plot.served.join(name)
    }

    fn local(&self, name: &str) -> PathBuf {
        self.plot.local.join(name)
    }

    /// The server's path in commands.
    fn remote(&self, name: &str) -> String {
        format!("/{}/{name}", self.plot.name.display())
    }

    fn rclone(&self, arguments: &[String]) -> Result<Outcome> {
        /// rclone expects passwords in an encoding of its own.
        static PASSWORD: LazyLock<Option<String>> = LazyLock::new(|| {
            let made = run(process::command("rclone").args(["obscure", "x"]), LIMIT).ok()?;
            Some(made.text().trim().to_owned())
        });
        let password = PASSWORD.as_deref().context("rclone obscure gave nothing")?;
        let mut command = process::command("rclone");
        command.args(["--config", "/dev/null", "--retries", "1"]).args(arguments);
        command.env("RCLONE_FTP_HOST", "127.0.0.1").env("RCLONE_FTP_PORT", &self.port);
        command.env("RCLONE_FTP_USER", "anonymous").env("RCLONE_FTP_PASS", password);
        run(&mut command, LIMIT)?.succeeded()
    }

    fn gfal2(&self, program: &str, arguments: &[String]) -> Result<Outcome> {
        let mut command = process::command(program);
        self.ground.site.environment(&mut command);
        command.env("GFAL_PYTHONBIN", "/usr/bin/python3").args(arguments);
        let outcome = run(&mut command, LIMIT)?;
        if program == "gfal-copy" && outcome.status.signal() == Some(ABORTED) {
            // Rarely it frees an invalid pointer and aborts. The file is compared in any case.
            return run(command.arg("--force"), LIMIT)?.succeeded();
        }
        outcome.succeeded()
    }

    fn gfal2_url(&self, name: &str) -> String {
        format!("{}{}", self.ground.served.url, percent_encode(self.remote(name).as_bytes()))
    }

    fn ncftp(&self, program: &str, arguments: &[&str]) -> Result<Outcome> {
        let mut command = process::command(program);
        command.args(["-P", &self.port, "-u", "anonymous", "-p", "x"]).args(arguments);
        run(&mut command, LIMIT)?.succeeded()
    }

    /// The script is a file, because tnftp reads commands from standard input.
    fn tnftp(&self, line: &str) -> Result<Outcome> {
        let script = self.local(".script");
        fs::write(&script, format!("open 127.0.0.1 {}\nuser anonymous x\n{line}\nbye\n", self.port))?;
        let text = "exec tnftp -n -i -v < \"$0\"";
        let outcome = run(process::command("sh").args(["-c", text]).arg(&script), LIMIT)?.succeeded()?;
        // Its exit code is 0 whatever the server replies.
        let said = outcome.text() + &outcome.errors();
        let failed = said.lines().any(|line| line.starts_with(['4', '5']) && line.get(3..4) == Some(" "));
        ensure!(!failed, "tnftp: {said}");
        Ok(outcome)
    }

    fn python(&self, arguments: &[&str]) -> Result<Outcome> {
        let module = if self.client == Client::Ftplib { "ftplib" } else { "aioftp" };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/clients/client.py");
        let mut command = process::command("python3");
        run(command.args([script, module, "127.0.0.1", &self.port]).args(arguments), LIMIT)?.succeeded()
    }

    fn put(&self, from: &Path, name: &str) -> Result<()> {
        let (remote, from) = (self.remote(name), from.to_str().context("not UTF-8")?);
        match self.client {
            Client::Rclone => self.rclone(&["copyto".into(), from.into(), format!(":ftp:{remote}")]),
            Client::Gfal2 => {
                // It accepts unescaped local paths.
                self.gfal2("gfal-copy", &[format!("file://{from}"), self.gfal2_url(name)])
            }
            Client::Ncftp => self.ncftp("ncftpput", &["-V", "-C", "127.0.0.1", from, &remote]),
            Client::Tnftp => self.tnftp(&format!("put {} {}", quoted(from), quoted(&remote))),
            Client::Ftplib | Client::Aioftp => self.python(&["put", from, &remote]),
        }
        .map(drop)
    }

    fn get(&self, name: &str, to: &Path) -> Result<()> {
        let (remote, to) = (self.remote(name), to.to_str().context("not UTF-8")?);
        match self.client {
            Client::Rclone => self.rclone(&["copyto".into(), format!(":ftp:{remote}"), to.into()]),
            Client::Gfal2 => self.gfal2("gfal-copy", &[self.gfal2_url(name), format!("file://{to}")]),
            Client::Ncftp => self.ncftp("ncftpget", &["-V", "-C", "127.0.0.1", &remote, to]),
            Client::Tnftp => self.tnftp(&format!("get {} {}", quoted(&remote), quoted(to))),
            Client::Ftplib | Client::Aioftp => self.python(&["get", &remote, to]),
        }
        .map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (old, new) = (self.remote(from), self.remote(to));
        match self.client {
            Client::Rclone => self.rclone(&["moveto".into(), format!(":ftp:{old}"), format!(":ftp:{new}")]),
            Client::Gfal2 => self.gfal2("gfal-rename", &[self.gfal2_url(from), self.gfal2_url(to)]),
            Client::Ncftp => {
                let (from, to) = (format!("RNFR {old}"), format!("RNTO {new}"));
                self.ncftp("ncftpls", &["-W", &from, "-W", &to, "ftp://127.0.0.1/"])
            }
            Client::Tnftp => self.tnftp(&format!("rename {} {}", quoted(&old), quoted(&new))),
            Client::Ftplib | Client::Aioftp => self.python(&["rename", &old, &new]),
        }
        .map(drop)
    }

    /// The names in a directory.
    fn list(&self, name: &str) -> Result<Vec<String>> {
        let remote = self.remote(name);
        let listed = match self.client {
            Client::Rclone => self.rclone(&["lsf".into(), format!(":ftp:{remote}")]),
            Client::Gfal2 => self.gfal2("gfal-ls", &[self.gfal2_url(name)]),
            Client::Ncftp => self.ncftp("ncftpls", &["-1", &format!("ftp://127.0.0.1{remote}/")]),
            Client::Tnftp => {
                let names = self.local(".names");
                self.tnftp(&format!("nlist {remote} {}", quoted(names.to_str().context("not UTF-8")?)))?;
                return Ok(sorted(&fs::read_to_string(names)?));
            }
            Client::Ftplib | Client::Aioftp => self.python(&["list", &remote]),
        }?;
        Ok(sorted(&listed.text()))
    }
}

/// Quotes a name with spaces for tnftp. A double quote is written outside of the quotes, after a
/// backslash.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\\\"\""))
}

fn sorted(lines: &str) -> Vec<String> {
    // rclone marks directories.
    let names = lines.lines().map(|line| line.trim_end_matches(['\r', '\t', '/']));
    let mut names: Vec<String> =
        names.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect();
    names.sort();
    names
}

/// Names that a client must pass on unchanged.
fn names() -> Vec<OsString> {
    let hidden = [".hidden", "..two dots", "{x}", "$HOME", "it's", "a  b", "100% x", "Ω b"];
    let odd = tree::odd_names().into_iter().chain(tree::foreign_names());
    let mut names: Vec<OsString> = odd.chain(hidden.map(OsString::from)).collect();
    // Clients that assume UTF-8 cannot use other names.
    names.retain(|name| name.to_str().is_some());
    names
}

fn there_and_back(place: &Place<'_>) -> Result<()> {
    for (name, size) in [("some", SIZE), ("empty", 0)] {
        let (source, back) = (place.local(name), place.local(&format!("{name} back")));
        files::write_random(&source, size, 1)?;
        place.put(&source, name)?;
        files::ensure_same(&source, &place.served(name))?;
        place.get(name, &back)?;
        files::ensure_same(&source, &back)?;
    }
    Ok(())
}

fn listing(place: &Place<'_>) -> Result<()> {
    for name in ["a", "b c", "old"] {
        files::write_random(&place.served("d").join(name), 10, 2)?;
    }
    // 2024-02-29: each client must support it.
    let old = fs::File::options().write(true).open(place.served("d/old"))?;
    old.set_modified(UNIX_EPOCH + Duration::from_secs(1_709_208_000))?;
    fs::create_dir(place.served("d/e"))?;
    let names = place.list("d")?;
    ensure!(names == ["a", "b c", "e", "old"], "the names are {names:?}");
    Ok(())
}

fn renaming(place: &Place<'_>) -> Result<()> {
    files::write_random(&place.served("old name"), 1000, 3)?;
    let before = fs::metadata(place.served("old name"))?.ino();
    place.rename("old name", "new name")?;
    ensure!(!place.served("old name").exists(), "the old name is still there");
    let after = fs::metadata(place.served("new name"))?.ino();
    ensure!(before == after, "it was copied");
    Ok(())
}

/// Uploads and downloads odd names, and reports all failures.
fn odd_names(place: &Place<'_>) -> Result<()> {
    let from = place.local("from");
    fs::create_dir(&from)?;
    fs::create_dir(place.served("to"))?;
    let names = names();
    tree::make_named(&from, &names)?;
    if place.client == Client::Rclone {
        return rclone_moves(place, &from);
    }
    let back = place.local("back");
    fs::create_dir(&back)?;
    let mut failures = Vec::new();
    for name in &names {
        let name = name.to_str().context("not UTF-8")?;
        let remote = format!("to/{name}");
        let moved = place.put(&from.join(name), &remote).and_then(|()| place.get(&remote, &back.join(name)));
        if let Err(error) = moved {
            failures.push(format!("{name:?}: {error:#}"));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    tree::ensure_same(&from, &place.served("to"))?;
    tree::ensure_same(&from, &back)
}

/// Whole trees. rclone replaces a tab with another character, and so uses its own names at the
/// server.
fn rclone_moves(place: &Place<'_>, from: &Path) -> Result<()> {
    let there = |name: &str| format!(":ftp:{}", place.remote(name));
    let local = |path: &Path| path.display().to_string();
    let kept = place.local("kept");
    let old = UNIX_EPOCH + Duration::from_secs(1_709_208_000);
    fs::File::options().write(true).open(from.join("sp ace"))?.set_modified(old)?;
    place.rclone(&["copy".into(), local(from), local(&kept)])?;
    place.rclone(&["copy".into(), local(from), there("to")])?;
    ensure!(fs::metadata(place.served("to/sp ace"))?.mtime() == 1_709_208_000, "the time is not kept");
    place.rclone(&["check".into(), "--download".into(), local(from), there("to")])?;
    place.rclone(&["moveto".into(), there("to"), there("moved")])?;
    place.rclone(&["check".into(), local(from), there("moved")])?;
    fs::remove_dir_all(from)?;
    place.rclone(&["move".into(), there("moved"), local(from)])?;
    tree::ensure_same(&kept, from)?;
    let left = fs::read_dir(place.served("moved")).map_or(0, Iterator::count);
    ensure!(left == 0, "the move left {left} files behind");
    Ok(())
}

type Row = (&'static str, fn(&Place<'_>) -> Result<()>);

const ROWS: [Row; 4] = [
    ("put and get, also an empty file", there_and_back),
    ("listing", listing),
    ("rename", renaming),
    ("odd names, put and get", odd_names),
];

/// The reason if a client does not support something.
fn cannot(_client: Client, _row: &str) -> Option<&'static str> {
    None
}

#[test]
fn clients() {
    if !peers::available(&["setpriv"]) || !CLIENTS.into_iter().all(Client::is_available) {
        return;
    }
    let yard = Yard::open(&[Kind::Ropewalk], false).unwrap();
    let plot = yard.plot().unwrap();
    let site = Site::new().unwrap();
    // Both servers offer the same.
    fs::remove_dir(site.path("root")).unwrap();
    symlink(plot.served.parent().unwrap(), site.path("root")).unwrap();
    let served = site.serve("", &[]).unwrap();
    let ground = Arc::new(Ground { yard, site, served });
    let mut cells = Vec::new();
    for (row, task) in ROWS {
        for client in CLIENTS {
            let ground = Arc::clone(&ground);
            let cell = Cell::new(row, client.name(), move || task(&Place::new(&ground, client)?));
            cells.push(match cannot(client, row) {
                Some(why) => cell.expected(Expected::PeerCannot(why)),
                None => cell,
            });
        }
    }
    cells::run(&SECTION, cells);
}
