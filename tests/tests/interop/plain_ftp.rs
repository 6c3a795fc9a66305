//! The Ropewalk client with plain FTP servers; globus-url-copy is the control group.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use ropewalk_tests::client::{Client, Copy, Summary};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree::Snapshot;
use ropewalk_tests::{files, peers, tree};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::interop_fixture::{Plot, Yard};

const SECTION: Section = Section {
    key: "plain-ftp",
    title: "Plain FTP servers",
    text: "These servers have no MODE E, no checksums, and no partial transfers except REST; vsftpd \
           has no MLSD either. ProFTPD and Pure-FTPd report symbolic links as such, not their \
           targets.",
    corner: "Task",
};

const SIZE: u64 = 3_000_017;

/// The year 2001.
const OLD_SECONDS: u64 = 981_173_106;

/// A client and its server.
type Peers = (Client, Kind);

struct Row {
    name: &'static str,
    run: fn(&Yard, Peers) -> Result<()>,
    /// Why globus-url-copy does not support it.
    guc_cannot: Option<&'static str>,
}

const fn row(name: &'static str, run: fn(&Yard, Peers) -> Result<()>) -> Row {
    Row { name, run, guc_cannot: None }
}

/// Features that a server does not support, with any client.
const SERVERS_CANNOT: [(&str, Kind, &str); 3] = [
    (ODD_NAMES, Kind::PureFtpd, NO_BACKSLASH),
    (RECURSIVE_GET, Kind::PureFtpd, NO_BACKSLASH),
    (
        FOREIGN_NAMES,
        Kind::Proftpd,
        "ProFTPD interprets a byte 0xff in a name as the start of a Telnet command",
    ),
];
const NO_BACKSLASH: &str = "Pure-FTPd refuses names with a backslash, and the tree has one";
const ODD_NAMES: &str = "names with spaces, quotes, %, ; and the like";
const FOREIGN_NAMES: &str = "names not in ASCII, some not in UTF-8";
const RECURSIVE_GET: &str = "recursive get";

const NEEDS_MLSD: &str = "globus-url-copy lists directories by MLSD only";
const GUC_RESTARTS: &str = "globus-url-copy -rst restarts third-party transfers only";

const ROWS: [Row; 13] = [
    row("get", |y, c| get(y, c, SIZE)),
    row("put", |y, c| put(y, c, SIZE)),
    row("empty file, get and put", |y, c| {
        get(y, c, 0)?;
        put(y, c, 0)
    }),
    row("over IPv6", over_ipv6),
    row(ODD_NAMES, |y, c| names(y, c, &tree::odd_names())),
    row(FOREIGN_NAMES, |y, c| names(y, c, &tree::foreign_names())),
    Row { guc_cannot: Some(NEEDS_MLSD), ..row(RECURSIVE_GET, recursive_get) },
    row("recursive put", recursive_put),
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("recursive get, links followed", links_followed) },
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("recursive get, links and times kept", links_and_times) },
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("mirror removes files missing at the source", mirror) },
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("sync moves only changed files", sync) },
    Row { guc_cannot: Some(GUC_RESTARTS), ..row("get, all connections cut half-way", cut) },
];

#[test]
fn plain_ftp() {
    if !peers::available(&["globus-url-copy", "vsftpd", "proftpd", "pure-ftpd", "pure-pw", "setpriv"]) {
        return;
    }
    let yard = Arc::new(Yard::open(&[Kind::Vsftpd, Kind::Proftpd, Kind::PureFtpd], true).unwrap());
    let columns = [
        (Client::Ropewalk, Kind::Vsftpd, "vsftpd"),
        (Client::Guc, Kind::Vsftpd, "vsftpd"),
        (Client::Ropewalk, Kind::Proftpd, "ProFTPD"),
        (Client::Ropewalk, Kind::PureFtpd, "Pure-FTPd"),
    ];
    let mut cells = Vec::new();
    for row in ROWS {
        for (client, kind, name) in columns {
            let yard = yard.clone();
            let cell = Cell::new(row.name, format!("{} with {name}", client.name()), move || {
                (row.run)(&yard, (client, kind))
            });
            let server = SERVERS_CANNOT.iter().find(|(name, server, _)| *name == row.name && *server == kind);
            let cannot = row.guc_cannot.filter(|_| client == Client::Guc).or(server.map(|(.., why)| *why));
            cells.push(match cannot {
                Some(why) => cell.expected(Expected::PeerCannot(why)),
                None => cell,
            });
        }
    }
    cells::run(&SECTION, cells);
}

fn old() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(OLD_SECONDS)
}

/// Directories of a cell; each user may write to the served one.
fn plot(yard: &Yard) -> Result<Plot> {
    let plot = yard.plot()?;
    fs::set_permissions(&plot.served, fs::Permissions::from_mode(0o777))?;
    Ok(plot)
}

/// A tree with a link to a file and one to a directory, whose lengths differ from those of the
/// files; all have old times.
fn linked_tree(plot: &Plot) -> Result<()> {
    let from = plot.served.join("from");
    fs::create_dir_all(from.join("sub"))?;
    for (name, size) in [("file", 1234), ("sub/inner", 17)] {
        files::write_random(&from.join(name), size, 5)?;
        fs::File::options().write(true).open(from.join(name))?.set_modified(old())?;
    }
    symlink("file", from.join("to-file"))?;
    symlink("sub", from.join("to-sub"))?;
    Ok(())
}

fn links_followed(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    linked_tree(&plot)?;
    let to = plot.local.join("to");
    let url = yard.server(kind)?.url(plot.at("from/"));
    plain(client, &Copy::new(url, client.local(&to, true)).recursive())?;
    for (name, same) in [("file", "file"), ("to-file", "file"), ("to-sub/inner", "sub/inner")] {
        files::ensure_same(&plot.served.join("from").join(same), &to.join(name))?;
        ensure!(fs::symlink_metadata(to.join(name))?.is_file(), "{name} is no file");
    }
    Ok(())
}

fn links_and_times(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    linked_tree(&plot)?;
    let to = plot.local.join("to");
    let url = yard.server(kind)?.url(plot.at("from/"));
    let copy = Copy::new(url, client.local(&to, true)).recursive();
    plain(client, &copy.argument("--preserve=times,links"))?;
    for (name, target) in [("to-file", "file"), ("to-sub", "sub")] {
        ensure!(fs::read_link(to.join(name))?.as_os_str() == target, "{name} leads elsewhere");
    }
    for name in ["file", "sub/inner"] {
        ensure!(fs::metadata(to.join(name))?.modified()? == old(), "{name} has another time");
    }
    Ok(())
}

fn mirror(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    let (from, to) = (plot.served.join("from"), plot.local.join("to"));
    tree::make(&from, false)?;
    tree::make(&to, false)?;
    fs::create_dir(to.join("gone"))?;
    for name in ["gone/one", "two", "a/three"] {
        files::write_random(&to.join(name), 3, 8)?;
    }
    let url = yard.server(kind)?.url(plot.at("from/"));
    let copy = Copy { sync: true, ..Copy::new(url, client.local(&to, true)).recursive() };
    plain(client, &copy.argument("--delete"))?;
    tree::ensure_same(&from, &to)
}

fn plain(client: Client, copy: &Copy) -> Result<()> {
    client.run(copy)?.succeeded().map(drop)
}

fn get(yard: &Yard, (client, kind): Peers, size: u64) -> Result<()> {
    let plot = plot(yard)?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, size, 1)?;
    let url = yard.server(kind)?.url(plot.at("source"));
    plain(client, &Copy::new(url, client.local(&copy, false)))?;
    files::ensure_same(&source, &copy)
}

fn put(yard: &Yard, (client, kind): Peers, size: u64) -> Result<()> {
    let plot = plot(yard)?;
    let source = plot.local.join("source");
    files::write_random(&source, size, 1)?;
    let url = yard.server(kind)?.url(plot.at("copy"));
    plain(client, &Copy::new(client.local(&source, false), url))?;
    files::ensure_same(&source, &plot.served.join("copy"))
}

fn over_ipv6(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    let server = yard.server6(kind)?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, SIZE, 2)?;
    let fetch = Copy::new(server.url(plot.at("source")), client.local(&copy, false));
    plain(client, &Copy { ipv6: true, ..fetch })?;
    let back = Copy::new(client.local(&copy, false), server.url(plot.at("back")));
    plain(client, &Copy { ipv6: true, ..back })?;
    files::ensure_same(&source, &plot.served.join("back"))
}

fn names(yard: &Yard, (client, kind): Peers, names: &[std::ffi::OsString]) -> Result<()> {
    let plot = plot(yard)?;
    let server = yard.server(kind)?;
    let (from, to) = (plot.served.join("from"), plot.local.join("to"));
    fs::create_dir(&from)?;
    fs::create_dir(&to)?;
    tree::make_named(&from, names)?;
    for name in names {
        plain(
            client,
            &Copy::new(server.url(plot.at("from").join(name)), client.local(&to.join(name), false)),
        )?;
    }
    tree::ensure_same(&from, &to)
}

fn recursive_get(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    let from = plot.served.join("from");
    tree::make(&from, true)?;
    tree::make_named(&from, &tree::odd_names())?;
    let url = yard.server(kind)?.url(plot.at("from/"));
    plain(client, &Copy::new(url, client.local(&plot.local.join("to"), true)).recursive())?;
    tree::ensure_same(&from, &plot.local.join("to"))
}

fn recursive_put(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    let from = plot.local.join("from");
    tree::make(&from, true)?;
    let url = yard.server(kind)?.url(plot.at("to/"));
    plain(client, &Copy::new(client.local(&from, true), url).recursive())?;
    tree::ensure_same(&from, &plot.served.join("to"))
}

fn sync(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let plot = plot(yard)?;
    let (from, to) = (plot.served.join("from"), plot.local.join("to"));
    tree::make(&from, false)?;
    let url = yard.server(kind)?.url(plot.at("from/"));
    let copy = Copy { sync: true, ..Copy::new(url, client.local(&to, true)).recursive() };
    plain(client, &copy)?;
    let first = Snapshot::take(&to)?;
    files::write_random(&from.join("a/one"), 2, 77)?;
    plain(client, &copy)?;
    let written = first.written_since(&to)?;
    ensure!(written == [PathBuf::from("a/one")], "these were written: {written:?}");
    tree::ensure_same(&from, &to)
}

fn cut(yard: &Yard, (client, kind): Peers) -> Result<()> {
    let size = 24_000_001;
    let plot = plot(yard)?;
    let server = yard.server(kind)?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, size, 3)?;
    let proxy = Proxy::start(server.address())?;
    proxy.set_rate(Some(60_000_000));
    proxy.cut_after(size / 2);
    let url = server.url_at(proxy.address(), plot.at("source"));
    let outcome =
        client.run(&Copy { restart: true, ..Copy::new(url, client.local(&copy, false)) })?.succeeded()?;
    ensure!(!proxy.cut_is_due(), "the connections were never cut");
    files::ensure_same(&source, &copy)?;
    if client == Client::Ropewalk {
        ensure!(Summary::of(&outcome)?.number("retries")? > 0, "no retry was counted");
        ensure!(proxy.moved() < size + size / 4, "{} bytes moved for a file of {size}", proxy.moved());
    }
    Ok(())
}
