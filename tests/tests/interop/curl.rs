//! curl with the Ropewalk server; vsftpd is the control group.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ropewalk_tests::process::{self, Outcome};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;
use ropewalk_tests::{files, tree};

use crate::document::Section;
use crate::interop_fixture::Yard;
use crate::servers::{self, Row, row};

const SECTION: Section = Section {
    key: "curl",
    title: "curl",
    text: "curl uses plain FTP; vsftpd is the control group.",
    corner: "Task",
};

const SIZE: u64 = 3_000_017;
const LIMIT: Duration = Duration::from_secs(40);

static ROWS: [Row; 20] = [
    row("get", |y, k| get(y, k, SIZE, &[])),
    row("put", |y, k| put(y, k, SIZE, &[])),
    row("empty file, get and put", |y, k| {
        get(y, k, 0, &[])?;
        put(y, k, 0, &[])
    }),
    row("get, PASV (--disable-epsv)", |y, k| get(y, k, SIZE, &["--disable-epsv"])),
    row("get, EPRT (-P -)", |y, k| get(y, k, SIZE, &["-P", "-"])),
    row("get, PORT (-P - --disable-eprt)", |y, k| get(y, k, SIZE, &["-P", "-", "--disable-eprt"])),
    row("put, PORT (-P - --disable-eprt)", |y, k| put(y, k, SIZE, &["-P", "-", "--disable-eprt"])),
    row("get, --ftp-method nocwd", |y, k| get(y, k, SIZE, &["--ftp-method", "nocwd"])),
    row("get, --ftp-method singlecwd", |y, k| get(y, k, SIZE, &["--ftp-method", "singlecwd"])),
    row("get and put over IPv6", over_ipv6),
    row("resume of a get (-C -)", resume_get),
    row("resume of a put (-C -) after a cut", resume_put),
    row("ranges (-r)", ranges),
    row("append (-a)", append),
    row("listings (LIST, NLST)", listings),
    row("size and time (-I, -R)", about),
    row("--ftp-create-dirs", create_directories),
    row("30 files over one connection, get and put", many),
    row("odd names, some not in UTF-8", names),
    row("-Q: MKD, RNFR, RNTO, DELE, RMD, missing files", quotes),
];

#[test]
fn curl() {
    servers::run(&SECTION, "curl", &ROWS);
}

fn run(arguments: &[&str], more: &[OsString]) -> Result<Outcome> {
    let mut command = process::command("curl");
    command.args(["-q", "-sS", "-g"]).args(arguments).args(more);
    process::run(&mut command, LIMIT)
}

fn text(path: &Path) -> OsString {
    path.as_os_str().to_owned()
}

fn get(yard: &Yard, kind: Kind, size: u64, options: &[&str]) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, size, 1)?;
    let url = yard.server(kind)?.url(plot.at("source"));
    run(options, &["-o".into(), text(&copy), url.into()])?.succeeded()?;
    if size == 0 {
        // curl creates no file for empty data.
        return Ok(());
    }
    files::ensure_same(&source, &copy)
}

fn put(yard: &Yard, kind: Kind, size: u64, options: &[&str]) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.local.join("source"), plot.served.join("copy"));
    files::write_random(&source, size, 1)?;
    let url = yard.server(kind)?.url(plot.at("copy"));
    run(options, &["-T".into(), text(&source), url.into()])?.succeeded()?;
    files::ensure_same(&source, &copy)
}

fn over_ipv6(yard: &Yard, kind: Kind) -> Result<()> {
    for options in [&[][..], &["-P", "-"][..]] {
        let plot = yard.plot()?;
        files::write_random(&plot.served.join("source"), SIZE, 2)?;
        let server = yard.server6(kind)?;
        let copy = plot.local.join("copy");
        run(options, &["-o".into(), text(&copy), server.url(plot.at("source")).into()])?.succeeded()?;
        files::ensure_same(&plot.served.join("source"), &copy)?;
        run(options, &["-T".into(), text(&copy), server.url(plot.at("back")).into()])?.succeeded()?;
        files::ensure_same(&copy, &plot.served.join("back"))?;
    }
    Ok(())
}

fn resume_get(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, SIZE, 3)?;
    fs::write(&copy, &fs::read(&source)?[..1_000_001])?;
    let proxy = Proxy::start(yard.server(kind)?.address())?;
    let url = yard.server(kind)?.url_at(proxy.address(), plot.at("source"));
    run(&["-C", "-"], &["-o".into(), text(&copy), url.into()])?.succeeded()?;
    files::ensure_same(&source, &copy)?;
    ensure!(proxy.moved() == SIZE - 1_000_001, "{} bytes moved", proxy.moved());
    Ok(())
}

fn resume_put(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.local.join("source"), plot.served.join("copy"));
    let size = 12_000_007;
    files::write_random(&source, size, 4)?;
    let proxy = Proxy::start(yard.server(kind)?.address())?;
    proxy.set_rate(Some(40_000_000));
    proxy.cut_after(size / 2);
    let url = OsString::from(yard.server(kind)?.url_at(proxy.address(), plot.at("copy")));
    run(&[], &["-T".into(), text(&source), url.clone()])?.failed()?;
    ensure!(!proxy.cut_is_due(), "the first upload was not cut");
    let before = proxy.moved();
    run(&["-C", "-"], &["-T".into(), text(&source), url])?.succeeded()?;
    files::ensure_same(&source, &copy)?;
    let again = proxy.moved() - before;
    // A reset discards the bytes that the server had not read yet.
    ensure!(kind != Kind::Ropewalk || again < size * 9 / 10, "{again} of {size} bytes were sent again");
    Ok(())
}

fn ranges(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let source = plot.served.join("source");
    files::write_random(&source, SIZE, 5)?;
    let content = fs::read(&source)?;
    let url = OsString::from(yard.server(kind)?.url(plot.at("source")));
    let size = SIZE as usize;
    let cases =
        [("0-0", 0..1), ("1000-1999", 1000..2000), ("2999000-", 2_999_000..size), ("-500", size - 500..size)];
    for (range, wanted) in cases {
        let outcome = run(&["-r", range], std::slice::from_ref(&url))?.succeeded().context(range)?;
        ensure!(outcome.stdout == content[wanted], "-r {range} gave {} other bytes", outcome.stdout.len());
    }
    Ok(())
}

fn append(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (first, second) = (plot.local.join("first"), plot.local.join("second"));
    files::write_random(&first, 100_001, 6)?;
    files::write_random(&second, 50_001, 7)?;
    let url = OsString::from(yard.server(kind)?.url(plot.at("log")));
    for part in [&first, &second] {
        run(&["-a"], &["-T".into(), text(part), url.clone()])?.succeeded()?;
    }
    let wanted = [fs::read(&first)?, fs::read(&second)?].concat();
    ensure!(fs::read(plot.served.join("log"))? == wanted, "the appended file is not right");
    Ok(())
}

fn listings(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    tree::make(&plot.served, true)?;
    let url = OsString::from(format!("{}/", yard.server(kind)?.url(&plot.name)));
    let long = run(&[], std::slice::from_ref(&url))?.succeeded()?.text();
    for name in ["top", "empty", "a", "z", "hollow"] {
        let line = long.lines().find(|line| line.ends_with(&format!(" {name}")));
        let line = line.with_context(|| format!("{name} is not in {long}"))?;
        let is_directory = ["a", "z", "hollow"].contains(&name);
        ensure!(line.starts_with(if is_directory { 'd' } else { '-' }), "not the right type: {line}");
    }
    ensure!(long.lines().any(|line| line.contains(" 1000 ")), "no size of 1000 in {long}");
    let mut names: Vec<String> =
        run(&["-l"], &[url])?.succeeded()?.text().lines().map(str::to_owned).collect();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    ensure!(names == ["a", "empty", "hollow", "top", "z"], "NLST gave {names:?}");
    let hollow = format!("{}/", yard.server(kind)?.url(plot.at("hollow")));
    run(&[], &[hollow.into()])?.succeeded()?;
    Ok(())
}

fn about(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let source = plot.served.join("source");
    files::write_random(&source, 12_345, 8)?;
    let url = OsString::from(yard.server(kind)?.url(plot.at("source")));
    let head = run(&["-I"], std::slice::from_ref(&url))?.succeeded()?.text();
    ensure!(head.contains("Content-Length: 12345"), "{head}");
    ensure!(head.contains("Last-Modified: "), "{head}");
    let copy = plot.local.join("copy");
    run(&["-R"], &["-o".into(), text(&copy), url])?.succeeded()?;
    ensure!(fs::metadata(&copy)?.mtime() == fs::metadata(&source)?.mtime(), "-R did not set the time");
    Ok(())
}

fn create_directories(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let source = plot.local.join("source");
    files::write_random(&source, 1000, 9)?;
    let url = OsString::from(yard.server(kind)?.url(plot.at("new/deeper/and deeper/file")));
    run(&[], &["-T".into(), text(&source), url.clone()])?.failed()?;
    run(&["--ftp-create-dirs"], &["-T".into(), text(&source), url])?.succeeded()?;
    files::ensure_same(&source, &plot.served.join("new/deeper/and deeper/file"))
}

/// Through a proxy with a delay: curl 7.88 sleeps for a second if the reply to EPSV arrives at
/// once.
fn many(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let server = yard.server(kind)?;
    let proxy = Proxy::start(server.address())?;
    proxy.delay_lines(Duration::from_millis(1));
    let url = |name: PathBuf| OsString::from(server.url_at(proxy.address(), name));
    let (from, back) = (plot.served.join("from"), plot.local.join("back"));
    for number in 0..30 {
        files::write_random(&from.join(format!("f{number}")), 2000 + number, number)?;
    }
    fs::create_dir(&back)?;
    let mut gets = Vec::new();
    let mut puts = Vec::new();
    for number in 0..30 {
        let name = format!("f{number}");
        let local = text(&back.join(&name));
        gets.extend(["-o".into(), local.clone(), url(plot.at("from").join(&name))]);
        puts.extend(["-T".into(), local, url(plot.at("to").join(&name))]);
    }
    run(&[], &gets)?.succeeded()?;
    run(&["--ftp-create-dirs"], &puts)?.succeeded()?;
    tree::ensure_same(&from, &back)?;
    tree::ensure_same(&from, &plot.served.join("to"))
}

fn names(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let server = yard.server(kind)?;
    let mut names: Vec<OsString> = tree::odd_names().into_iter().chain(tree::foreign_names()).collect();
    // curl refuses URLs with control characters.
    names.retain(|name| !name.as_bytes().contains(&b'\t'));
    let (from, back, to) = (plot.served.join("from"), plot.local.join("back"), plot.served.join("to"));
    for directory in [&from, &back, &to] {
        fs::create_dir(directory)?;
    }
    tree::make_named(&from, &names)?;
    for name in &names {
        let local = text(&back.join(name));
        let fetched = run(&[], &["-o".into(), local.clone(), server.url(plot.at("from").join(name)).into()])?;
        fetched.succeeded().with_context(|| format!("get {name:?}"))?;
        let stored = run(&[], &["-T".into(), local, server.url(plot.at("to").join(name)).into()])?;
        stored.succeeded().with_context(|| format!("put {name:?}"))?;
    }
    tree::ensure_same(&from, &back)?;
    tree::ensure_same(&from, &to)
}

fn quotes(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let server = yard.server(kind)?;
    files::write_random(&plot.served.join("old"), 100, 10)?;
    files::write_random(&plot.served.join("unwanted"), 100, 11)?;
    fs::create_dir(plot.served.join("gone"))?;
    let base = String::from_utf8(server.remote_path(&plot.name))?;
    let url = OsString::from(format!("{}/", server.url(&plot.name)));
    let mut arguments = Vec::new();
    for command in [
        format!("MKD {base}/made"),
        format!("RNFR {base}/old"),
        format!("RNTO {base}/made/new"),
        format!("DELE {base}/unwanted"),
        format!("RMD {base}/gone"),
    ] {
        arguments.extend(["-Q".into(), command.into()]);
    }
    arguments.push(url);
    run(&[], &arguments)?.succeeded()?;
    ensure!(plot.served.join("made/new").is_file(), "not renamed");
    for name in ["old", "unwanted", "gone"] {
        ensure!(!plot.served.join(name).exists(), "{name} is still there");
    }
    let missing = run(&[], &[server.url(plot.at("missing")).into()])?.failed()?;
    // 78: the resource does not exist.
    ensure!(missing.status.code() == Some(78), "curl ended with {}", missing.status);
    Ok(())
}
