//! Both GridFTP clients with both GridFTP servers.

mod names;
mod repeat;
mod single;
mod trees;

use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::client::Client;
use ropewalk_tests::peers;
use ropewalk_tests::server::{Kind, Server};

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::interop_fixture::Yard;

/// A client and a server of the matrix.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) client: Client,
    pub(crate) server: Kind,
}

impl Pair {
    fn column(self) -> String {
        let server = match self.server {
            Kind::Ropewalk => "ropewalk",
            Kind::Gct => "GCT",
            Kind::Vsftpd => "vsftpd",
            Kind::Proftpd => "ProFTPD",
            Kind::PureFtpd => "Pure-FTPd",
        };
        format!("{} with {server} server", self.client.name())
    }

    pub(crate) fn server(self, yard: &Yard) -> Result<&Server> {
        yard.server(self.server)
    }
}

/// The direction of the transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Get,
    Put,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Get, Self::Put];

    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
        }
    }
}

type Run = Box<dyn Fn(&Yard, Pair) -> Result<()> + Send + Sync>;

/// One row: its name, its test, and the programs that do not support it.
pub(crate) struct Row {
    name: String,
    run: Run,
    expected: fn(Pair) -> Expected,
    wanted: fn(Pair) -> bool,
}

impl Row {
    pub(crate) fn new(
        name: impl Into<String>,
        run: impl Fn(&Yard, Pair) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), run: Box::new(run), expected: |_| Expected::Works, wanted: |_| true }
    }

    pub(crate) fn expected(mut self, expected: fn(Pair) -> Expected) -> Self {
        self.expected = expected;
        self
    }

    /// Restricts the row to pairs for which `wanted` returns true.
    pub(crate) fn only(mut self, wanted: fn(Pair) -> bool) -> Self {
        self.wanted = wanted;
        self
    }
}

const SECTION: Section = Section {
    key: "gridftp",
    title: "GridFTP clients and servers",
    text: "The source or the destination is a local file. `ropewalk globus-url-copy` accepts the \
           options of GCT's client. An empty cell was not run.",
    corner: "Task",
};

#[test]
fn gridftp() {
    if !peers::available(&["globus-url-copy", "globus-gridftp-server", "setpriv"]) {
        return;
    }
    let kinds = [Kind::Ropewalk, Kind::Gct];
    let yard = Arc::new(Yard::open(&kinds, true).unwrap());
    let rows = [single::rows(), names::rows(), trees::rows(), repeat::rows()];
    let mut cells = Vec::new();
    for row in rows.into_iter().flatten().map(Arc::new) {
        for client in [Client::Ropewalk, Client::Guc, Client::Compatible] {
            for server in kinds {
                let pair = Pair { client, server };
                if !(row.wanted)(pair) {
                    continue;
                }
                let (yard, row) = (yard.clone(), row.clone());
                let expected = (row.expected)(pair);
                let cell = Cell::new(row.name.clone(), pair.column(), move || (row.run)(&yard, pair));
                cells.push(cell.expected(expected));
            }
        }
    }
    cells::run(&SECTION, cells);
}
