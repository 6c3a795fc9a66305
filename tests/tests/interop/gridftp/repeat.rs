//! Transfers whose connections are cut half-way.

use std::time::Duration;

use anyhow::{Result, ensure};
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::files;
use ropewalk_tests::proxy::Proxy;

use super::{Pair, Row, Way};
use crate::cells::Expected;
use crate::interop_fixture::Yard;

const GUC_RESTARTS: &str = "globus-url-copy -rst restarts third-party transfers only";
const SIZE: u64 = 24_000_001;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for way in Way::BOTH {
        for (label, mode) in [("stream mode", Mode::Stream), ("MODE E, 4 streams", Mode::Extended(4))] {
            rows.push(
                Row::new(
                    format!("{}, all connections cut half-way, {label}", way.name()),
                    move |yard, pair| cut(yard, pair, way, mode),
                )
                .expected(|pair| match pair.client {
                    Client::Guc => Expected::PeerCannot(GUC_RESTARTS),
                    Client::Ropewalk | Client::Compatible => Expected::Works,
                }),
            );
        }
    }
    rows
}

/// The client must detect the cut, reconnect and resume.
fn cut(yard: &Yard, pair: Pair, way: Way, mode: Mode) -> Result<()> {
    let plot = yard.plot()?;
    let server = pair.server(yard)?;
    let proxy = Proxy::start(server.address())?;
    proxy.set_rate(Some(60_000_000));
    let local = |name: &str| pair.client.local(&plot.local.join(name), false);
    let (copy, source, destination) = match way {
        Way::Get => {
            let url = server.url_at(proxy.address(), plot.at("source"));
            (Copy::new(url, local("copy")), plot.served.join("source"), plot.local.join("copy"))
        }
        Way::Put => {
            let url = server.url_at(proxy.address(), plot.at("copy"));
            (Copy::new(local("source"), url), plot.local.join("source"), plot.served.join("copy"))
        }
    };
    files::write_random(&source, SIZE, 9)?;
    proxy.cut_after(SIZE / 2);
    let copy = Copy { restart: true, limit: Duration::from_secs(60), ..copy.mode(mode) };
    pair.client.run(&copy)?.succeeded()?;
    ensure!(!proxy.cut_is_due(), "the connections were never cut: only {} bytes passed", proxy.moved());
    files::ensure_same(&source, &destination)?;
    if pair.client == Client::Ropewalk && way == Way::Get {
        // Bytes that arrived are not fetched again from any server; 17 bytes of each block are
        // headers.
        let limit = SIZE + SIZE / 4;
        ensure!(proxy.moved() < limit, "{} bytes moved for a file of {SIZE}", proxy.moved());
    }
    Ok(())
}
