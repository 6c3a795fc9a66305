//! Our client against an FTP server that knows nothing of GridFTP; globus-url-copy is the control group.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use ropewalk_tests::client::{Client, Copy, Summary};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree::Snapshot;
use ropewalk_tests::{files, peers, tree};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::yard::Yard;

const SECTION: Section = Section {
    key: "plain-ftp",
    title: "A plain FTP server",
    text: "vsftpd has no MODE E, no MLSD, no checksums and no partial transfers but REST.",
    corner: "Task",
};

const SIZE: u64 = 3_000_017;

struct Row {
    name: &'static str,
    run: fn(&Yard, Client) -> Result<()>,
    /// Why globus-url-copy cannot.
    guc_cannot: Option<&'static str>,
}

const fn row(name: &'static str, run: fn(&Yard, Client) -> Result<()>) -> Row {
    Row { name, run, guc_cannot: None }
}

const NEEDS_MLSD: &str = "globus-url-copy lists directories by MLSD only";
const GUC_RESTARTS: &str = "globus-url-copy -rst restarts third-party transfers only";

const ROWS: [Row; 10] = [
    row("get", |y, c| get(y, c, SIZE)),
    row("put", |y, c| put(y, c, SIZE)),
    row("empty file, get and put", |y, c| {
        get(y, c, 0)?;
        put(y, c, 0)
    }),
    row("over IPv6", over_ipv6),
    row("names with spaces, quotes, %, ; and the like", |y, c| names(y, c, &tree::odd_names())),
    row("names not in ASCII, some not in UTF-8", |y, c| names(y, c, &tree::foreign_names())),
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("recursive get", recursive_get) },
    row("recursive put", recursive_put),
    Row { guc_cannot: Some(NEEDS_MLSD), ..row("sync moves only what changed", sync) },
    Row { guc_cannot: Some(GUC_RESTARTS), ..row("get, all connections cut half-way", cut) },
];

#[test]
fn plain_ftp() {
    if !peers::available(&["globus-url-copy", "vsftpd", "setpriv"]) {
        return;
    }
    let yard = Arc::new(Yard::open(&[Kind::Vsftpd], true).unwrap());
    let mut cells = Vec::new();
    for row in ROWS {
        for client in [Client::Ropewalk, Client::Guc] {
            let yard = yard.clone();
            let cell = Cell::new(row.name, format!("{} with vsftpd", client.name()), move || {
                (row.run)(&yard, client)
            });
            cells.push(match row.guc_cannot {
                Some(why) if client == Client::Guc => cell.expected(Expected::PeerCannot(why)),
                _ => cell,
            });
        }
    }
    cells::run(&SECTION, cells);
}

fn plain(client: Client, copy: &Copy) -> Result<()> {
    client.run(copy)?.succeeded().map(drop)
}

fn get(yard: &Yard, client: Client, size: u64) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, size, 1)?;
    let url = yard.server(Kind::Vsftpd)?.url(plot.at("source"));
    plain(client, &Copy::new(url, client.local(&copy, false)))?;
    files::ensure_same(&source, &copy)
}

fn put(yard: &Yard, client: Client, size: u64) -> Result<()> {
    let plot = yard.plot()?;
    let source = plot.local.join("source");
    files::write_random(&source, size, 1)?;
    let url = yard.server(Kind::Vsftpd)?.url(plot.at("copy"));
    plain(client, &Copy::new(client.local(&source, false), url))?;
    files::ensure_same(&source, &plot.served.join("copy"))
}

fn over_ipv6(yard: &Yard, client: Client) -> Result<()> {
    let plot = yard.plot()?;
    let server = yard.server6(Kind::Vsftpd)?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, SIZE, 2)?;
    let fetch = Copy::new(server.url(plot.at("source")), client.local(&copy, false));
    plain(client, &Copy { ipv6: true, ..fetch })?;
    let back = Copy::new(client.local(&copy, false), server.url(plot.at("back")));
    plain(client, &Copy { ipv6: true, ..back })?;
    files::ensure_same(&source, &plot.served.join("back"))
}

fn names(yard: &Yard, client: Client, names: &[std::ffi::OsString]) -> Result<()> {
    let plot = yard.plot()?;
    let server = yard.server(Kind::Vsftpd)?;
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

fn recursive_get(yard: &Yard, client: Client) -> Result<()> {
    let plot = yard.plot()?;
    let from = plot.served.join("from");
    tree::make(&from, true)?;
    tree::make_named(&from, &tree::odd_names())?;
    let url = yard.server(Kind::Vsftpd)?.url(plot.at("from/"));
    plain(client, &Copy::new(url, client.local(&plot.local.join("to"), true)).recursive())?;
    tree::ensure_same(&from, &plot.local.join("to"))
}

fn recursive_put(yard: &Yard, client: Client) -> Result<()> {
    let plot = yard.plot()?;
    let from = plot.local.join("from");
    tree::make(&from, true)?;
    let url = yard.server(Kind::Vsftpd)?.url(plot.at("to/"));
    plain(client, &Copy::new(client.local(&from, true), url).recursive())?;
    tree::ensure_same(&from, &plot.served.join("to"))
}

fn sync(yard: &Yard, client: Client) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = (plot.served.join("from"), plot.local.join("to"));
    tree::make(&from, false)?;
    let url = yard.server(Kind::Vsftpd)?.url(plot.at("from/"));
    let copy = Copy { sync: true, ..Copy::new(url, client.local(&to, true)).recursive() };
    plain(client, &copy)?;
    let first = Snapshot::take(&to)?;
    files::write_random(&from.join("a/one"), 2, 77)?;
    plain(client, &copy)?;
    let written = first.written_since(&to)?;
    ensure!(written == [PathBuf::from("a/one")], "these were written: {written:?}");
    tree::ensure_same(&from, &to)
}

fn cut(yard: &Yard, client: Client) -> Result<()> {
    let size = 24_000_001;
    let plot = yard.plot()?;
    let server = yard.server(Kind::Vsftpd)?;
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
