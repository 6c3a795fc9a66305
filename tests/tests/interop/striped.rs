//! Striped transfers: a front end with data nodes of Ropewalk, and one of GCT.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::nodes::{GctSite, Site, layout};
use ropewalk_tests::peers;
use ropewalk_tests::process::Program;

use crate::cells::{self, Cell, Expected};
use crate::document::Section;

const SECTION: Section = Section {
    key: "striped",
    title: "Striped servers",
    text: "A front end of Ropewalk with m data nodes and one of GCT (`-r`) with n data nodes (`-dn`): \
           m x n in the rows. All nodes move one file together. \"local\" is an upload and a download \
           by the client itself. `tests/tests/striped.rs` also tests `ropewalk globus-url-copy`, and \
           copies that continue after a node was killed.",
    corner: "Nodes, layout, streams to each address",
};

const SIZE: u64 = 5_000_003;
const GUC_PARTITIONS: &str = "globus-url-copy refuses -sbs 0 for a file that it sends itself";

struct Yard {
    ours: Site,
    gct: GctSite,
    next: AtomicUsize,
    _nodes: Vec<Program>,
}

/// The ends of a copy.
#[derive(Clone, Copy)]
enum Way {
    ToGct,
    FromGct,
    LocalAndOurs,
    LocalAndGct,
}

impl Yard {
    fn open(ours: usize, gct: usize) -> Self {
        let site = Site::new();
        let nodes = (0..ours).map(|at| site.node(&format!("n{at}"))).collect();
        Self { ours: site, gct: GctSite::new(gct), next: AtomicUsize::new(0), _nodes: nodes }
    }

    fn run(&self, client: Client, way: Way, block: Option<u32>, streams: u32) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [source, copy, back] = ["source", "copy", "back"].map(|name| format!("{name}{number}"));
        let (ours, gct) = (self.ours.server.root(), self.gct.scratch.path());
        let run = |from: OsString, to: OsString| {
            let mut copy = Copy::new(from, to).mode(Mode::Extended(streams));
            copy.arguments = layout(client, block);
            client.run(&copy)?.succeeded().map(drop)
        };
        let between = |from: (&Path, String), to: (&Path, String)| {
            let made = from.0.join(&source);
            write_random(&made, SIZE, number as u64)?;
            run(from.1.into(), to.1.into())?;
            ensure_same(&made, &to.0.join(&copy))
        };
        let local = |url: String| {
            let (made, back) = (self.ours.scratch.join(&source), self.ours.scratch.join(&back));
            write_random(&made, SIZE, number as u64)?;
            run(client.local(&made, false), url.clone().into())?;
            run(url.into(), client.local(&back, false))?;
            ensure_same(&made, &back)?;
            fs::remove_file(back).map_err(Into::into)
        };
        match way {
            Way::ToGct => between((ours, self.ours.server.url(&source)), (gct, self.gct.server.url(&copy))),
            Way::FromGct => between((gct, self.gct.server.url(&source)), (ours, self.ours.server.url(&copy))),
            Way::LocalAndOurs => local(self.ours.server.url(&copy)),
            Way::LocalAndGct => local(self.gct.server.url(&copy)),
        }
    }
}

#[test]
fn striped() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let ways = [
        (Way::ToGct, "ropewalk to GCT"),
        (Way::FromGct, "GCT to ropewalk"),
        (Way::LocalAndOurs, "local and ropewalk"),
        (Way::LocalAndGct, "local and GCT"),
    ];
    // GCT's client hangs if it sends a file of its own in blocks (-sbs) to GCT's servers.
    let layouts = [(None, "server's layout", 1), (None, "server's layout", 4), (Some(0), "partitioned", 2)];
    let mut cells = Vec::new();
    for (ours, gct) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
        let yard = Arc::new(Yard::open(ours, gct));
        let blocks = (Some(65536), "blocks of 64 KiB", 2);
        for (block, layout, streams) in layouts.into_iter().chain([blocks]) {
            for client in [Client::Ropewalk, Client::Guc] {
                for (way, name) in ways {
                    let sends = matches!(way, Way::LocalAndOurs | Way::LocalAndGct);
                    let guc_sends = sends && client == Client::Guc;
                    if guc_sends && block.is_some_and(|size| size > 0) {
                        continue;
                    }
                    let yard = Arc::clone(&yard);
                    let row = format!("{ours} x {gct}, {layout}, {streams}");
                    let column = format!("{}: {name}", client.name());
                    let cell = Cell::new(row, column, move || yard.run(client, way, block, streams));
                    let cannot = guc_sends && block.is_some();
                    cells.push(if cannot {
                        cell.expected(Expected::PeerCannot(GUC_PARTITIONS))
                    } else {
                        cell
                    });
                }
            }
        }
    }
    cells::run(&SECTION, cells);
}
