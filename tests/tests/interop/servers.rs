//! Tables of one foreign client with the Ropewalk server, and with vsftpd as the control group.

use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::peers;
use ropewalk_tests::server::Kind;

use crate::cells::{self, Cell, Expected};
use crate::document::Section;
use crate::interop_fixture::Yard;

pub(crate) struct Row {
    name: &'static str,
    run: fn(&Yard, Kind) -> Result<()>,
    /// Why vsftpd does not support it.
    vsftpd_cannot: Option<&'static str>,
}

pub(crate) const fn row(name: &'static str, run: fn(&Yard, Kind) -> Result<()>) -> Row {
    Row { name, run, vsftpd_cannot: None }
}

impl Row {
    pub(crate) const fn except_vsftpd(self, why: &'static str) -> Self {
        Self { vsftpd_cannot: Some(why), ..self }
    }
}

/// Runs the table of the client `program`.
pub(crate) fn run(section: &Section, program: &str, rows: &'static [Row]) {
    if !peers::available(&[program, "vsftpd", "setpriv"]) {
        return;
    }
    let kinds = [Kind::Ropewalk, Kind::Vsftpd];
    let yard = Arc::new(Yard::open(&kinds, true).unwrap());
    let mut cells = Vec::new();
    for row in rows {
        for kind in kinds {
            let name = if kind == Kind::Ropewalk { "ropewalk server" } else { "vsftpd" };
            let yard = yard.clone();
            let cell = Cell::new(row.name, name, move || (row.run)(&yard, kind));
            cells.push(match row.vsftpd_cannot {
                Some(why) if kind == Kind::Vsftpd => cell.expected(Expected::PeerCannot(why)),
                _ => cell,
            });
        }
    }
    cells::run(section, cells);
}
