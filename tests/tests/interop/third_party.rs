//! Transfers between two servers, controlled by either client.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::{Kind, Server};
use ropewalk_tests::tree::Snapshot;
use ropewalk_tests::{files, peers, tree};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::interop_fixture::{Plot, ROOMY, Yard};

const SIZE: u64 = 5_000_003;

/// The controlling client, and the servers.
#[derive(Clone, Copy)]
struct Three {
    client: Client,
    source: Kind,
    destination: Kind,
}

impl Three {
    fn column(self) -> String {
        let name = |kind| if kind == Kind::Gct { "GCT" } else { "ropewalk" };
        format!("{}: {} to {}", self.client.name(), name(self.source), name(self.destination))
    }

    fn source(self, yard: &Yard) -> Result<&Server> {
        yard.server(self.source)
    }

    fn destination(self, yard: &Yard) -> Result<&Server> {
        yard.server(self.destination)
    }

    /// A copy of `from` to `to`, both beneath the cell's directory.
    fn copy(self, yard: &Yard, plot: &Plot, from: &str, to: &str) -> Result<Copy> {
        Ok(Copy::new(self.source(yard)?.url(plot.at(from)), self.destination(yard)?.url(plot.at(to))))
    }
}

fn eight_bits(three: Three) -> Expected {
    let through_gct = three.source == Kind::Gct || three.destination == Kind::Gct;
    if through_gct { Expected::PeerCannot(GCT_DROPS) } else { Expected::Works }
}

struct Row {
    name: &'static str,
    run: fn(&Yard, Three) -> Result<()>,
    expected: fn(Three) -> Expected,
    wanted: fn(Three) -> bool,
}

const SECTION: Section = Section {
    key: "third-party",
    title: "Third-party transfers",
    text: "Both ends are servers; the client only controls them. An empty cell was not run.",
    corner: "Task",
};

const GCT_DROPS: &str = "globus-gridftp-server drops bytes above 0x7f from paths";
const GUC_QUOTES: &str = "globus-url-copy cannot copy a directory with a double quote in a name";

fn all(_: Three) -> bool {
    true
}

fn works(_: Three) -> Expected {
    Expected::Works
}

fn guc_cannot(three: Three, why: &'static str) -> Expected {
    if three.client == Client::Guc { Expected::PeerCannot(why) } else { Expected::Works }
}

#[rustfmt::skip]
const ROWS: [Row; 20] = [
    Row { name: "stream mode", run: |y, t| one(y, t, SIZE, |c| c.mode(Mode::Stream)), expected: works, wanted: all },
    Row { name: "MODE E, 1 stream", run: |y, t| one(y, t, SIZE, |c| c.mode(Mode::Extended(1))), expected: works, wanted: all },
    Row { name: "MODE E, 4 streams", run: |y, t| one(y, t, SIZE, |c| c.mode(Mode::Extended(4))), expected: works, wanted: all },
    Row { name: "MODE E, 16 streams", run: |y, t| one(y, t, SIZE, |c| c.mode(Mode::Extended(16))), expected: works, wanted: all },
    Row { name: "empty file", run: empty, expected: works, wanted: all },
    Row { name: "range of a file, stream mode", run: |y, t| part(y, t, Mode::Stream), expected: works, wanted: all },
    Row { name: "range of a file, MODE E, 4 streams", run: |y, t| part(y, t, Mode::Extended(4)), expected: works, wanted: all },
    Row { name: "sparse file of 6 GiB, MODE E", run: huge, expected: works, wanted: huge_wanted },
    Row { name: "checksums compared", run: checked, expected: works, wanted: all },
    Row { name: "TYPE A", run: ascii, expected: works, wanted: all },
    Row { name: "over IPv6", run: over_ipv6, expected: works, wanted: all },
    Row { name: "delayed passive", run: |y, t| one(y, t, SIZE, |c| Copy { delayed_passive: true, ..c.mode(Mode::Extended(2)) }), expected: works, wanted: all },
    Row { name: "names with spaces, %, ; and the like", run: |y, t| names(y, t, &tree::odd_names()), expected: works, wanted: all },
    Row { name: "names not in ASCII, some not in UTF-8", run: |y, t| names(y, t, &tree::foreign_names()), expected: eight_bits, wanted: all },
    Row { name: "recursive", run: |y, t| recursive(y, t, |c| c.mode(Mode::Extended(4))), expected: works, wanted: all },
    Row { name: "recursive, a name with double quotes", run: quotes, expected: |t| guc_cannot(t, GUC_QUOTES), wanted: all },
    Row { name: "400 small files, pipelined", run: |y, t| many(y, t, |c| Copy { pipelined: true, ..c.mode(Mode::Extended(1)) }), expected: works, wanted: all },
    Row { name: "400 small files, 4 control connections", run: |y, t| many(y, t, |c| Copy { concurrency: Some(4), ..c }), expected: works, wanted: all },
    Row { name: "sync moves only changed files", run: sync, expected: works, wanted: all },
    Row { name: "all connections of the destination cut half-way, MODE E, 4 streams", run: cut, expected: works, wanted: all },
];

#[test]
fn third_party() {
    if !peers::available(&["globus-url-copy", "globus-gridftp-server", "setpriv"]) {
        return;
    }
    let kinds = [Kind::Ropewalk, Kind::Gct];
    let yard = Arc::new(Yard::open(&kinds, true).unwrap());
    let mut cells = Vec::new();
    for row in ROWS {
        for client in [Client::Ropewalk, Client::Guc] {
            for (source, destination) in kinds.iter().flat_map(|s| kinds.iter().map(move |d| (*s, *d))) {
                let three = Three { client, source, destination };
                if (row.wanted)(three) {
                    let yard = yard.clone();
                    let cell = Cell::new(row.name, three.column(), move || (row.run)(&yard, three));
                    cells.push(cell.expected((row.expected)(three)));
                }
            }
        }
    }
    cells::run(&SECTION, cells);
}

fn one(yard: &Yard, three: Three, size: u64, options: impl Fn(Copy) -> Copy) -> Result<()> {
    let plot = yard.plot()?;
    let (source, destination) = (plot.served.join("source"), plot.served.join("copy"));
    files::write_random(&source, size, size)?;
    three.client.run(&options(three.copy(yard, &plot, "source", "copy")?))?.succeeded()?;
    files::ensure_same(&source, &destination)
}

fn empty(yard: &Yard, three: Three) -> Result<()> {
    one(yard, three, 0, |copy| copy.mode(Mode::Stream))?;
    one(yard, three, 0, |copy| copy.mode(Mode::Extended(4)))
}

fn part(yard: &Yard, three: Three, mode: Mode) -> Result<()> {
    let plot = yard.plot()?;
    let (source, before, destination) =
        (plot.served.join("source"), plot.local.join("before"), plot.served.join("copy"));
    files::write_random(&source, SIZE, 1)?;
    files::write_random(&before, SIZE, 2)?;
    fs::copy(&before, &destination)?;
    let (offset, length) = (1_234_567, 2_000_001);
    let copy = three.copy(yard, &plot, "source", "copy")?.mode(mode).window(offset, length);
    three.client.run(&copy)?.succeeded()?;
    ensure!(fs::metadata(&destination)?.len() == SIZE, "the destination was cut off");
    let end = offset + length;
    files::ensure_same_range(&source, offset, &destination, offset, length)?;
    files::ensure_same_range(&before, 0, &destination, 0, offset)?;
    files::ensure_same_range(&before, end, &destination, end, SIZE - end)
}

/// Only for our server with another program.
fn huge_wanted(three: Three) -> bool {
    three.client == Client::Ropewalk && three.source != three.destination
}

fn huge(yard: &Yard, three: Three) -> Result<()> {
    let _alone = ROOMY.lock();
    let plot = yard.plot()?;
    let source = plot.served.join("source");
    let size = 6 << 30;
    let places = [0, (1 << 31) - 500, (1 << 32) - 500, size - 1_000_000];
    files::write_sparse(&source, size, &places.map(|at| (at, 1_000_000)), 6)?;
    let copy = three.copy(yard, &plot, "source", "copy")?.mode(Mode::Extended(2));
    three.client.run(&Copy { limit: Duration::from_secs(100), ..copy })?.succeeded()?;
    files::ensure_same(&source, &plot.served.join("copy"))
}

fn checked(yard: &Yard, three: Three) -> Result<()> {
    for algorithm in ["md5", "adler32", "sha1", "sha256", "sha512"] {
        one(yard, three, SIZE, |copy| match three.client {
            Client::Ropewalk => copy.mode(Mode::Extended(2)).argument("--checksum").argument(algorithm),
            Client::Guc | Client::Compatible => {
                Copy { verify: true, ..copy }.argument("-checksum-alg").argument(algorithm.to_uppercase())
            }
        })
        .context(algorithm)?;
    }
    Ok(())
}

fn ascii(yard: &Yard, three: Three) -> Result<()> {
    let plot = yard.plot()?;
    fs::write(plot.served.join("source"), "one\ntwo\n\nfour\n".repeat(10_000))?;
    let copy = Copy { ascii: true, ..three.copy(yard, &plot, "source", "copy")? };
    three.client.run(&copy)?.succeeded()?;
    files::ensure_same(&plot.served.join("source"), &plot.served.join("copy"))
}

fn over_ipv6(yard: &Yard, three: Three) -> Result<()> {
    for mode in [Mode::Stream, Mode::Extended(4)] {
        let plot = yard.plot()?;
        files::write_random(&plot.served.join("source"), SIZE, 3)?;
        let from = yard.server6(three.source)?.url(plot.at("source"));
        let to = yard.server6(three.destination)?.url(plot.at("copy"));
        three.client.run(&Copy { ipv6: true, ..Copy::new(from, to).mode(mode) })?.succeeded()?;
        files::ensure_same(&plot.served.join("source"), &plot.served.join("copy"))?;
    }
    Ok(())
}

fn names(yard: &Yard, three: Three, names: &[OsString]) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = (plot.served.join("from"), plot.served.join("to"));
    fs::create_dir(&from)?;
    fs::create_dir(&to)?;
    tree::make_named(&from, names)?;
    for name in names {
        let source = three.source(yard)?.url(plot.at("from").join(name));
        let destination = three.destination(yard)?.url(plot.at("to").join(name));
        three
            .client
            .run(&Copy::new(source, destination))?
            .succeeded()
            .with_context(|| format!("{name:?}"))?;
    }
    tree::ensure_same(&from, &to)
}

/// Makes `from` with `fill`, copies it, and returns both directories if they are equal.
fn whole(
    yard: &Yard,
    three: Three,
    fill: impl Fn(&std::path::Path) -> Result<()>,
    options: impl Fn(Copy) -> Copy,
) -> Result<()> {
    let plot = yard.plot()?;
    let from = plot.served.join("from");
    fs::create_dir(&from)?;
    fill(&from)?;
    let copy = options(three.copy(yard, &plot, "from/", "to/")?.recursive());
    three.client.run(&copy)?.succeeded()?;
    tree::ensure_same(&from, &plot.served.join("to"))
}

fn recursive(yard: &Yard, three: Three, options: impl Fn(Copy) -> Copy) -> Result<()> {
    whole(yard, three, |from| tree::make(from, true), options)
}

fn quotes(yard: &Yard, three: Three) -> Result<()> {
    whole(yard, three, |from| tree::make_named(from, &["say \"hello\"".into()]), |copy| copy)
}

fn many(yard: &Yard, three: Three, options: impl Fn(Copy) -> Copy) -> Result<()> {
    whole(yard, three, |from| tree::make_many(from, 400, 4096), options)
}

fn sync(yard: &Yard, three: Three) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = (plot.served.join("from"), plot.served.join("to"));
    tree::make(&from, false)?;
    let copy = Copy { sync: true, ..three.copy(yard, &plot, "from/", "to/")?.recursive() };
    three.client.run(&copy)?.succeeded()?;
    tree::ensure_same(&from, &to)?;
    let first = Snapshot::take(&to)?;
    three.client.run(&copy)?.succeeded()?;
    let written = first.written_since(&to)?;
    ensure!(written.is_empty(), "nothing had changed, but these were written again: {written:?}");
    files::write_random(&from.join("a/one"), 2, 77)?;
    three.client.run(&copy)?.succeeded()?;
    let written = first.written_since(&to)?;
    ensure!(written == [PathBuf::from("a/one")], "these were written: {written:?}");
    tree::ensure_same(&from, &to)
}

/// The client must detect the cut, reconnect and resume.
fn cut(yard: &Yard, three: Three) -> Result<()> {
    let size = 24_000_001;
    let plot = yard.plot()?;
    let source = plot.served.join("source");
    files::write_random(&source, size, 9)?;
    let destination = three.destination(yard)?;
    let proxy = Proxy::start(destination.address())?;
    proxy.set_rate(Some(60_000_000));
    proxy.cut_after(size / 2);
    let from = three.source(yard)?.url(plot.at("source"));
    let to = destination.url_at(proxy.address(), plot.at("copy"));
    let copy = Copy { restart: true, ..Copy::new(from, to).mode(Mode::Extended(4)) };
    three.client.run(&copy)?.succeeded()?;
    ensure!(!proxy.cut_is_due(), "the connections were never cut: only {} bytes passed", proxy.moved());
    files::ensure_same(&source, &plot.served.join("copy"))
}
