//! lftp with the Ropewalk server; vsftpd is the control group.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree::Snapshot;
use ropewalk_tests::{files, tree};

use crate::document::Section;
use crate::interop_fixture::{Plot, Yard};
use crate::servers::{self, Row, row};

const SECTION: Section = Section {
    key: "lftp",
    title: "lftp",
    text: "lftp uses plain FTP, with MLSD, MDTM, MFMT, SITE CHMOD and REST if the server has them; \
           vsftpd is the control group.",
    corner: "Task",
};

const SIZE: u64 = 3_000_017;
const LIMIT: Duration = Duration::from_secs(40);

const VSFTPD_MLSD: &str = "vsftpd has no MLSD";
const VSFTPD_FACTS: &str = "vsftpd lets anonymous users set neither times nor modes";

static ROWS: [Row; 20] = [
    row("get", |y, k| get(y, k, "")),
    row("put", |y, k| put(y, k, "")),
    row("get and put, EPSV", |y, k| {
        get(y, k, "set ftp:prefer-epsv yes")?;
        put(y, k, "set ftp:prefer-epsv yes")
    }),
    row("get and put, PORT", |y, k| {
        get(y, k, "set ftp:passive-mode no")?;
        put(y, k, "set ftp:passive-mode no")
    }),
    row("get and put over IPv6", over_ipv6),
    row("ls, cls, cat, du", listings),
    row("ls by MLSD (ftp:use-mlsd)", |y, k| long_list(y, k, "set ftp:use-mlsd yes"))
        .except_vsftpd(VSFTPD_MLSD),
    row("pget -n 4", parallel_get),
    row("get -c after lftp was killed", |y, k| resume(y, k, true)),
    row("put -c after lftp was killed", |y, k| resume(y, k, false)),
    row("get and put, resumed after a cut", |y, k| {
        cut(y, k, true)?;
        cut(y, k, false)
    }),
    row("mirror", |y, k| mirror(y, k, false, "", "")),
    row("mirror --parallel=4", |y, k| mirror(y, k, false, "", "--parallel=4")),
    row("mirror by MLSD", |y, k| mirror(y, k, false, "set ftp:use-mlsd yes", "")),
    row("mirror -R", |y, k| mirror(y, k, true, "", "")),
    row("mirror -R --parallel=4", |y, k| mirror(y, k, true, "", "--parallel=4")),
    row("mirror, second run moves nothing", second_mirror),
    row("mirror -R keeps times and modes", facts).except_vsftpd(VSFTPD_FACTS),
    row("mkdir -p, mv, mget, mput, rm, rm -r", housekeeping),
    row("odd names, some not in ASCII", names),
];

#[test]
fn lftp() {
    servers::run(&SECTION, "lftp", &ROWS);
}

/// Runs lftp's `script` after connecting to `base`, a URL.
fn run(base: &str, settings: &str, script: &str) -> Result<Outcome> {
    process::run(&mut command(base, settings, script), LIMIT)
}

fn command(base: &str, settings: &str, script: &str) -> Command {
    let mut command = process::command("lftp");
    let all = format!(
        "set cmd:fail-exit yes; set net:max-retries 2; set net:timeout 15; set net:reconnect-interval-base 1; \
         set ftp:use-feat yes; set file:charset UTF-8; \
         set ftp:charset UTF-8; {settings}; open {base}; {script}; exit"
    );
    // Without user settings, and without a history of the tests.
    command.args(["--norc", "-c"]).arg(all).env("LFTP_HOME", "/nonexistent").env("LC_ALL", "C.UTF-8");
    command
}

/// A word of lftp's command language.
fn quoted(path: &Path) -> String {
    let text = String::from_utf8_lossy(path.as_os_str().as_bytes());
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn base(yard: &Yard, kind: Kind, plot: &Plot) -> Result<String> {
    Ok(yard.server(kind)?.url(&plot.name))
}

fn get(yard: &Yard, kind: Kind, settings: &str) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, SIZE, 1)?;
    run(&base(yard, kind, &plot)?, settings, &format!("get source -o {}", quoted(&copy)))?.succeeded()?;
    files::ensure_same(&source, &copy)
}

fn put(yard: &Yard, kind: Kind, settings: &str) -> Result<()> {
    let plot = yard.plot()?;
    let source = plot.local.join("source");
    files::write_random(&source, SIZE, 1)?;
    run(&base(yard, kind, &plot)?, settings, &format!("put {} -o copy", quoted(&source)))?.succeeded()?;
    files::ensure_same(&source, &plot.served.join("copy"))
}

fn over_ipv6(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, SIZE, 1)?;
    let url = yard.server6(kind)?.url(&plot.name);
    let script = format!("get source -o {0}; put {0} -o back", quoted(&copy));
    run(&url, "", &script)?.succeeded()?;
    files::ensure_same(&source, &copy)?;
    files::ensure_same(&source, &plot.served.join("back"))
}

fn listings(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    tree::make(&plot.served, true)?;
    fs::write(plot.served.join("word"), "hello\n")?;
    long_list(yard, kind, "")?;
    let base = base(yard, kind, &plot)?;
    let outcome = run(&base, "", "cls -1; cat word")?.succeeded()?;
    let mut lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
    lines.sort();
    ensure!(lines == ["a/", "empty", "hello", "hollow/", "top", "word", "z/"], "{lines:?}");
    let size = run(&base, "", "du -bs a")?.succeeded()?.text();
    let bytes: u64 =
        size.split_whitespace().next().and_then(|word| word.parse().ok()).context(size.clone())?;
    ensure!(bytes >= 1 + 262_144 + 70_001 + 3_000_000, "du says {size}");
    Ok(())
}

fn long_list(yard: &Yard, kind: Kind, settings: &str) -> Result<()> {
    let plot = yard.plot()?;
    tree::make(&plot.served, true)?;
    let server = base(yard, kind, &plot)?;
    // The server's replies show whether the requested protection is used.
    let outcome = run(&server, &format!("debug 5; {settings}"), "cls -l")?.succeeded()?;
    let text = outcome.text();
    let line = text.lines().find(|line| line.ends_with(" top")).with_context(|| text.clone())?;
    ensure!(line.contains(" 1000 "), "{line}");
    let directory =
        text.lines().find(|line| line.trim_end_matches('/').ends_with(" hollow")).context(text.clone())?;
    ensure!(directory.starts_with('d'), "{directory}");
    if settings.contains("mlsd") {
        ensure!(outcome.errors().contains("---> MLSD"), "MLSD was not used: {}", outcome.errors());
    }
    Ok(())
}

fn parallel_get(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (source, copy) = (plot.served.join("source"), plot.local.join("copy"));
    files::write_random(&source, 8_000_003, 2)?;
    run(&base(yard, kind, &plot)?, "", &format!("pget -n 4 source -o {}", quoted(&copy)))?.succeeded()?;
    files::ensure_same(&source, &copy)
}

fn resume(yard: &Yard, kind: Kind, get: bool) -> Result<()> {
    let size = 12_000_007;
    let plot = yard.plot()?;
    let server = yard.server(kind)?;
    let (source, copy) = if get {
        (plot.served.join("source"), plot.local.join("copy"))
    } else {
        (plot.local.join("source"), plot.served.join("copy"))
    };
    files::write_random(&source, size, 3)?;
    let proxy = Proxy::start(server.address())?;
    proxy.set_rate(Some(40_000_000));
    let url = server.url_at(proxy.address(), &plot.name);
    let script = |resume: &str| {
        if get {
            format!("get {resume} source -o {}", quoted(&copy))
        } else {
            format!("put {resume} {} -o copy", quoted(&source))
        }
    };
    let mut first = Program::start(&mut command(&url, "", &script("")))?;
    proxy.wait_for(size / 2, LIMIT)?;
    first.kill();
    drop(first);
    let before = proxy.moved();
    run(&url, "", &script("-c"))?.succeeded()?;
    files::ensure_same(&source, &copy)?;
    let again = proxy.moved() - before;
    // The client had not read everything that passed the proxy before the cut.
    ensure!(kind != Kind::Ropewalk || again < size * 9 / 10, "{again} of {size} bytes were moved again");
    Ok(())
}

/// lftp reconnects and resumes by itself.
fn cut(yard: &Yard, kind: Kind, get: bool) -> Result<()> {
    let size = 12_000_007;
    let plot = yard.plot()?;
    let server = yard.server(kind)?;
    let (source, copy) = if get {
        (plot.served.join("source"), plot.local.join("copy"))
    } else {
        (plot.local.join("source"), plot.served.join("copy"))
    };
    files::write_random(&source, size, 3)?;
    let proxy = Proxy::start(server.address())?;
    proxy.set_rate(Some(40_000_000));
    proxy.cut_after(size / 2);
    let url = server.url_at(proxy.address(), &plot.name);
    let script = if get {
        format!("get source -o {}", quoted(&copy))
    } else {
        format!("put {} -o copy", quoted(&source))
    };
    run(&url, "", &script)?.succeeded()?;
    ensure!(!proxy.cut_is_due(), "the connections were never cut");
    files::ensure_same(&source, &copy)
}

fn mirror(yard: &Yard, kind: Kind, up: bool, settings: &str, options: &str) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = if up {
        (plot.local.join("from"), plot.served.join("to"))
    } else {
        (plot.served.join("from"), plot.local.join("to"))
    };
    tree::make(&from, true)?;
    tree::make_many(&from.join("many"), 60, 1500)?;
    let script = if up {
        format!("mirror -R --no-perms {options} {} to", quoted(&from))
    } else {
        format!("mirror {options} from {}", quoted(&to))
    };
    run(&base(yard, kind, &plot)?, settings, &script)?.succeeded()?;
    tree::ensure_same(&from, &to)
}

fn second_mirror(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = (plot.served.join("from"), plot.local.join("to"));
    tree::make(&from, true)?;
    let url = base(yard, kind, &plot)?;
    let script = format!("mirror from {}", quoted(&to));
    run(&url, "", &script)?.succeeded()?;
    let first = Snapshot::take(&to)?;
    run(&url, "", &script)?.succeeded()?;
    let written = first.written_since(&to)?;
    ensure!(written.is_empty(), "these were fetched again: {written:?}");
    Ok(())
}

fn facts(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let from = plot.local.join("from");
    files::write_random(&from.join("old"), 1000, 4)?;
    fs::set_permissions(from.join("old"), fs::Permissions::from_mode(0o640))?;
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(from.join("old"))?.set_modified(old)?;
    run(&base(yard, kind, &plot)?, "", &format!("mirror -R {} to", quoted(&from)))?.succeeded()?;
    let about = fs::metadata(plot.served.join("to/old"))?;
    ensure!(about.mtime() == 1_000_000_000, "the time is {}", about.mtime());
    ensure!(about.mode() & 0o777 == 0o640, "the mode is {:o}", about.mode());
    Ok(())
}

fn housekeeping(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    for name in ["x1", "x2", "y1"] {
        files::write_random(&plot.local.join(name), 500, 5)?;
    }
    let local = quoted(&plot.local);
    let script = format!(
        "mkdir -p one/two; cd one; mput -O two {local}/x* {local}/y1; mv two/y1 y2; rm two/x1; \
         mget -O {local}/back two/x*; get y2 -o {local}/back/y2; rm -r two"
    );
    fs::create_dir(plot.local.join("back"))?;
    run(&base(yard, kind, &plot)?, "", &script)?.succeeded()?;
    ensure!(!plot.served.join("one/two").exists(), "rm -r left something");
    ensure!(plot.served.join("one/y2").is_file(), "mv failed");
    files::ensure_same(&plot.local.join("x2"), &plot.local.join("back/x2"))?;
    files::ensure_same(&plot.local.join("y1"), &plot.local.join("back/y2"))
}

fn names(yard: &Yard, kind: Kind) -> Result<()> {
    let plot = yard.plot()?;
    let (from, back, to) = (plot.served.join("from"), plot.local.join("back"), plot.served.join("to"));
    fs::create_dir(&from)?;
    let mut names: Vec<OsString> = tree::odd_names().into_iter().chain(tree::foreign_names()).collect();
    // lftp decodes the names of MLSD as UTF-8 (RFC 3659, section 2.2).
    names.retain(|name| name.to_str().is_some());
    tree::make_named(&from, &names)?;
    let local = quoted(&back);
    let script = format!("mirror from {local}; mirror -R --no-perms {local} to");
    run(&base(yard, kind, &plot)?, "", &script)?.succeeded()?;
    tree::ensure_same(&from, &back)?;
    tree::ensure_same(&from, &to)
}
