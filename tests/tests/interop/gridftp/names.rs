//! Names that are hard to carry in URLs, commands and listings.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::server::Kind;
use ropewalk_tests::{files, tree};

use super::{Pair, Row, Way};
use crate::cells::Expected;
use crate::interop_fixture::Yard;

const GUC_QUOTES: &str = "globus-url-copy cannot copy a directory with a double quote in a name";
const GCT_DROPS: &str = "globus-gridftp-server drops bytes above 0x7f from paths";

fn needs_eight_bits(pair: Pair) -> Expected {
    if pair.server == Kind::Gct { Expected::PeerCannot(GCT_DROPS) } else { Expected::Works }
}

fn needs_quotes(pair: Pair) -> Expected {
    match pair.client {
        Client::Guc => Expected::PeerCannot(GUC_QUOTES),
        Client::Ropewalk | Client::Compatible => Expected::Works,
    }
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for way in Way::BOTH {
        let name = way.name();
        rows.push(Row::new(
            format!("{name}, names with spaces, quotes, %, ; and the like"),
            move |yard, pair| singly(yard, pair, way, &tree::odd_names()),
        ));
        rows.push(Row::new(format!("{name}, name of 255 bytes"), move |yard, pair| {
            singly(yard, pair, way, &[tree::long_name()])
        }));
        let foreign = move |yard: &Yard, pair: Pair| singly(yard, pair, way, &tree::foreign_names());
        rows.push(
            Row::new(format!("{name}, names not in ASCII, some not in UTF-8"), foreign)
                .expected(needs_eight_bits),
        );
        rows.push(Row::new(format!("{name}, recursive, odd names"), move |yard, pair| {
            let names: Vec<OsString> = tree::odd_names();
            let (_, unquoted): (Vec<_>, Vec<_>) =
                names.into_iter().partition(|name| name.as_bytes().contains(&b'"'));
            together(yard, pair, way, &unquoted)
        }));
        let quoted = move |yard: &Yard, pair: Pair| together(yard, pair, way, &["say \"hello\"".into()]);
        rows.push(
            Row::new(format!("{name}, recursive, a name with double quotes"), quoted).expected(needs_quotes),
        );
        let foreign = move |yard: &Yard, pair: Pair| together(yard, pair, way, &tree::foreign_names());
        rows.push(
            Row::new(format!("{name}, recursive, names not in ASCII, some not in UTF-8"), foreign)
                .expected(needs_eight_bits),
        );
    }
    rows
}

/// Without long pauses if a server does not support a name.
fn few_retries(pair: Pair, copy: Copy) -> Copy {
    if pair.client == Client::Ropewalk { copy.argument("--retries=1") } else { copy }
}

fn singly(yard: &Yard, pair: Pair, way: Way, names: &[OsString]) -> Result<()> {
    let plot = yard.plot()?;
    let server = pair.server(yard)?;
    let (from, to) = match way {
        Way::Get => (&plot.served, &plot.local),
        Way::Put => (&plot.local, &plot.served),
    };
    tree::make_named(from, names)?;
    for name in names {
        let remote = OsString::from(server.url(plot.at(name)));
        let local = pair.client.local(&plot.local.join(name), false);
        let copy = match way {
            Way::Get => Copy::new(remote, local),
            Way::Put => Copy::new(local, remote),
        };
        pair.client.run(&few_retries(pair, copy))?.succeeded().with_context(|| format!("{name:?}"))?;
        files::ensure_same(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

fn together(yard: &Yard, pair: Pair, way: Way, names: &[OsString]) -> Result<()> {
    let plot = yard.plot()?;
    let (from, to) = super::trees::directories(&plot, way)?;
    tree::make_named(&from, names)?;
    // A directory with each name as well.
    for name in names {
        let mut directory = OsString::from("d");
        directory.push(name);
        files::write_random(&from.join(directory).join("inner"), 10, 1)?;
    }
    let copy = super::trees::copy(yard, &plot, pair, way)?.mode(Mode::Extended(1));
    let copy = few_retries(pair, copy);
    pair.client.run(&copy)?.succeeded()?;
    tree::ensure_same(&from, &to)
}
