//! One file: modes, streams, ranges, sizes, checksums, address families.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::files;
use ropewalk_tests::server::Kind;

use super::{Pair, Row, Way};
use crate::interop_fixture::{Plot, ROOMY, Yard};

/// Not a multiple of any block size.
const SIZE: u64 = 5_000_003;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for way in Way::BOTH {
        let name = way.name();
        let modes = [
            ("stream mode", Mode::Stream),
            ("MODE E, 1 stream", Mode::Extended(1)),
            ("MODE E, 4 streams", Mode::Extended(4)),
            ("MODE E, 16 streams", Mode::Extended(16)),
        ];
        for (label, mode) in modes {
            let run =
                move |yard: &Yard, pair: Pair| one(yard, pair, way, SIZE, &|copy| copy.mode(mode)).map(drop);
            rows.push(Row::new(format!("{name}, {label}"), run));
        }
        rows.push(Row::new(format!("{name}, empty file"), move |yard, pair| {
            one(yard, pair, way, 0, &|copy| copy.mode(Mode::Stream))?;
            one(yard, pair, way, 0, &|copy| copy.mode(Mode::Extended(4)))?;
            Ok(())
        }));
        rows.push(Row::new(format!("{name}, range of a file, stream mode"), move |yard, pair| {
            part(yard, pair, way, Mode::Stream)
        }));
        rows.push(Row::new(format!("{name}, range of a file, MODE E, 4 streams"), move |yard, pair| {
            part(yard, pair, way, Mode::Extended(4))
        }));
        rows.push(
            Row::new(format!("{name}, sparse file of 6 GiB, MODE E"), move |yard, pair| {
                huge(yard, pair, way)
            })
            .only(|pair| {
                pair.client == Client::Ropewalk || (pair.client, pair.server) == (Client::Guc, Kind::Ropewalk)
            }),
        );
        rows.push(Row::new(format!("{name}, checksums compared"), move |yard, pair| {
            checked(yard, pair, way)
        }));
        rows.push(Row::new(format!("{name}, TYPE A"), move |yard, pair| ascii(yard, pair, way)));
        rows.push(Row::new(format!("{name}, over IPv6"), move |yard, pair| over_ipv6(yard, pair, way)));
    }
    rows.push(Row::new("put, delayed passive", |yard, pair| {
        one(yard, pair, Way::Put, SIZE, &|copy| Copy {
            delayed_passive: true,
            ..copy.mode(Mode::Extended(2))
        })
        .map(drop)
    }));
    rows
}

/// Source and destination of one file as arguments of the client, and as paths.
fn ends(
    plot: &Plot,
    yard: &Yard,
    pair: Pair,
    way: Way,
) -> Result<(Copy, std::path::PathBuf, std::path::PathBuf)> {
    let server = pair.server(yard)?;
    let local = |name: &str| pair.client.local(&plot.local.join(name), false);
    Ok(match way {
        Way::Get => {
            let copy = Copy::new(server.url(plot.at("source")), local("copy"));
            (copy, plot.served.join("source"), plot.local.join("copy"))
        }
        Way::Put => {
            let copy = Copy::new(local("source"), server.url(plot.at("copy")));
            (copy, plot.local.join("source"), plot.served.join("copy"))
        }
    })
}

/// Moves one file of `size` bytes; returns the summary if the client prints one.
fn one(
    yard: &Yard,
    pair: Pair,
    way: Way,
    size: u64,
    options: &dyn Fn(Copy) -> Copy,
) -> Result<Option<Summary>> {
    let plot = yard.plot()?;
    let (copy, source, destination) = ends(&plot, yard, pair, way)?;
    files::write_random(&source, size, size)?;
    let outcome = pair.client.run(&options(copy))?.succeeded()?;
    files::ensure_same(&source, &destination)?;
    if pair.client != Client::Ropewalk {
        return Ok(None);
    }
    let summary = Summary::of(&outcome)?;
    ensure!(summary.number("bytes")? == size, "moved {size} bytes, but the summary says {}", summary.value());
    Ok(Some(summary))
}

/// The bytes around the range must not change at the destination.
fn part(yard: &Yard, pair: Pair, way: Way, mode: Mode) -> Result<()> {
    let plot = yard.plot()?;
    let (copy, source, destination) = ends(&plot, yard, pair, way)?;
    let before = plot.local.join("before");
    files::write_random(&source, SIZE, 1)?;
    files::write_random(&before, SIZE, 2)?;
    fs::copy(&before, &destination)?;
    let (offset, length) = (1_234_567, 2_000_001);
    pair.client.run(&copy.mode(mode).window(offset, length))?.succeeded()?;
    ensure!(fs::metadata(&destination)?.len() == SIZE, "the destination was cut off");
    let end = offset + length;
    files::ensure_same_range(&source, offset, &destination, offset, length)?;
    files::ensure_same_range(&before, 0, &destination, 0, offset)?;
    files::ensure_same_range(&before, end, &destination, end, SIZE - end)
}

fn huge(yard: &Yard, pair: Pair, way: Way) -> Result<()> {
    let _alone = ROOMY.lock();
    let plot = yard.plot()?;
    let (copy, source, destination) = ends(&plot, yard, pair, way)?;
    let size = 6 << 30;
    // Around the limits of 31, 32 and 33 bits, and at both ends of the file.
    let places = [0, (1 << 31) - 500, (1 << 32) - 500, (1 << 32) + 3_000_000, size - 1_000_000];
    files::write_sparse(&source, size, &places.map(|at| (at, 1_000_000)), 6)?;
    let copy = Copy { limit: Duration::from_secs(100), ..copy.mode(Mode::Extended(2)) };
    pair.client.run(&copy)?.succeeded()?;
    files::ensure_same(&source, &destination)
}

fn checked(yard: &Yard, pair: Pair, way: Way) -> Result<()> {
    // globus-url-copy has no ADLER32 of its own for the local file.
    let algorithms = ["md5", "sha1", "sha256", "sha512", "adler32"];
    let count = if pair.client == Client::Guc { 4 } else { 5 };
    for algorithm in &algorithms[..count] {
        let summary = one(yard, pair, way, SIZE, &|copy| match pair.client {
            Client::Ropewalk => copy.mode(Mode::Extended(2)).argument("--checksum").argument(algorithm),
            Client::Guc | Client::Compatible => Copy { verify: true, ..copy.mode(Mode::Extended(2)) }
                .argument("-checksum-alg")
                .argument(algorithm),
        })?;
        if let Some(summary) = summary {
            ensure!(
                summary.number("bytes_verified")? == SIZE,
                "{algorithm} was not compared: {}",
                summary.value()
            );
        }
    }
    // Also without the option.
    if let Some(summary) = one(yard, pair, way, SIZE, &|copy| copy)? {
        ensure!(summary.number("bytes_verified")? == SIZE, "nothing was compared: {}", summary.value());
    }
    Ok(())
}

/// Lines end with LF on both sides, and with CR LF on the wire.
fn ascii(yard: &Yard, pair: Pair, way: Way) -> Result<()> {
    let plot = yard.plot()?;
    let (copy, source, destination) = ends(&plot, yard, pair, way)?;
    fs::write(&source, "one\ntwo\n\nfour\n".repeat(10_000))?;
    pair.client.run(&Copy { ascii: true, ..copy })?.succeeded()?;
    files::ensure_same(&source, &destination)
}

fn over_ipv6(yard: &Yard, pair: Pair, way: Way) -> Result<()> {
    for mode in [Mode::Stream, Mode::Extended(4)] {
        let plot = yard.plot()?;
        let server = yard.server6(pair.server)?;
        let local = |name: &str| pair.client.local(&plot.local.join(name), false);
        let (copy, source, destination) = match way {
            Way::Get => (
                Copy::new(server.url(plot.at("source")), local("copy")),
                &plot.served,
                plot.local.join("copy"),
            ),
            Way::Put => (
                Copy::new(local("source"), server.url(plot.at("copy"))),
                &plot.local,
                plot.served.join("copy"),
            ),
        };
        let source: &Path = &source.join("source");
        files::write_random(source, SIZE, 3)?;
        pair.client.run(&Copy { ipv6: true, ..copy.mode(mode) })?.succeeded()?;
        files::ensure_same(source, &destination)?;
    }
    Ok(())
}
