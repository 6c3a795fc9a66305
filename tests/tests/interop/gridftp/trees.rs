//! Directory trees: recursion, many small files, repeated runs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ropewalk_tests::client::{Copy, Mode};
use ropewalk_tests::files;
use ropewalk_tests::tree::{self, Snapshot};

use super::{Pair, Row, Way};
use crate::interop_fixture::{Plot, Yard};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for way in Way::BOTH {
        let name = way.name();
        rows.push(Row::new(format!("{name}, recursive, stream mode"), move |yard, pair| {
            whole(yard, pair, way, &|copy| copy.mode(Mode::Stream))
        }));
        rows.push(Row::new(format!("{name}, recursive, MODE E, 4 streams"), move |yard, pair| {
            whole(yard, pair, way, &|copy| copy.mode(Mode::Extended(4)))
        }));
        rows.push(Row::new(format!("{name}, 400 small files, pipelined"), move |yard, pair| {
            many(yard, pair, way, &|copy| Copy { pipelined: true, ..copy.mode(Mode::Extended(1)) })
        }));
        rows.push(Row::new(format!("{name}, 400 small files, 4 control connections"), move |yard, pair| {
            many(yard, pair, way, &|copy| Copy { concurrency: Some(4), ..copy })
        }));
        rows.push(Row::new(format!("{name}, sync moves only changed files"), move |yard, pair| {
            sync(yard, pair, way)
        }));
    }
    rows.push(Row::new("listing of a directory", listing));
    rows
}

/// Source and destination directories of a recursive copy.
pub(super) fn directories(plot: &Plot, way: Way) -> Result<(PathBuf, PathBuf)> {
    let (from, to) = match way {
        Way::Get => (plot.served.join("from"), plot.local.join("to")),
        Way::Put => (plot.local.join("from"), plot.served.join("to")),
    };
    fs::create_dir(&from)?;
    Ok((from, to))
}

pub(super) fn copy(yard: &Yard, plot: &Plot, pair: Pair, way: Way) -> Result<Copy> {
    let server = pair.server(yard)?;
    let local = |name: &str| pair.client.local(&plot.local.join(name), true);
    Ok(match way {
        Way::Get => Copy::new(server.url(plot.at("from/")), local("to")),
        Way::Put => Copy::new(local("from"), server.url(plot.at("to/"))),
    }
    .recursive())
}

fn whole(yard: &Yard, pair: Pair, way: Way, options: &dyn Fn(Copy) -> Copy) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = directories(&plot, way)?;
    tree::make(&from, true)?;
    pair.client.run(&options(copy(yard, &plot, pair, way)?))?.succeeded()?;
    tree::ensure_same(&from, &to)
}

fn many(yard: &Yard, pair: Pair, way: Way, options: &dyn Fn(Copy) -> Copy) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = directories(&plot, way)?;
    tree::make_many(&from, 400, 4096)?;
    pair.client.run(&options(copy(yard, &plot, pair, way)?))?.succeeded()?;
    tree::ensure_same(&from, &to)
}

fn listing(yard: &Yard, pair: Pair) -> Result<()> {
    let plot = yard.plot()?;
    tree::make(&plot.served, true)?;
    let url = pair.server(yard)?.url(plot.at(""));
    let listed = pair.client.list(&url)?.succeeded()?.text();
    for name in ["top", "empty", "a", "z", "hollow"] {
        let found = listed.split_whitespace().any(|word| word.trim_end_matches('/') == name);
        ensure!(found, "{name} is not in {listed}");
    }
    Ok(())
}

fn sync(yard: &Yard, pair: Pair, way: Way) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = directories(&plot, way)?;
    tree::make(&from, false)?;
    let copy = Copy { sync: true, ..copy(yard, &plot, pair, way)? };
    pair.client.run(&copy)?.succeeded()?;
    tree::ensure_same(&from, &to)?;
    let first = Snapshot::take(&to)?;
    pair.client.run(&copy)?.succeeded()?;
    let written = first.written_since(&to)?;
    ensure!(written.is_empty(), "nothing had changed, but these were written again: {written:?}");
    files::write_random(&from.join("a/one"), 2, 77)?;
    files::write_random(&from.join("a/new"), 3, 78)?;
    pair.client.run(&copy)?.succeeded()?;
    let written = first.written_since(&to)?;
    ensure!(written == [PathBuf::from("a/new"), PathBuf::from("a/one")], "these were written: {written:?}");
    tree::ensure_same(&from, &to)
}
