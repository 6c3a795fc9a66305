//! Data connections over UDT: both clients with both servers, and between the servers.

use std::path::Path;
use std::sync::Arc;

use ropewalk_tests::peers;

use crate::cells::{self, Cell};
use crate::document::Section;
use crate::gsi::{Client, Yard};

/// Debian's package libglobus-xio-udt-driver.
const GCT_DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libglobus_xio_udt_driver.so";

const SECTION: Section = Section {
    key: "udt",
    title: "Data over UDT",
    text: "As above, with certificates; data connections are UDT connections, with GSI in them unless \
           the row says otherwise. GCT's programs use libudt 4.11. The driver itself is tested \
           against programs with libudt in `crates/udt-driver/tests`.",
    corner: "Task",
};

/// Name of the row, options of our client, options of GCT's client.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const ROWS: [Row; 5] = [
    ("stream mode", &["--mode", "stream", "--stack", "udt"], &["-udt"]),
    ("MODE E, 1 stream", &["-p", "1", "--stack", "udt"], &["-udt", "-p", "1"]),
    ("MODE E, 4 streams", &["-p", "4", "--stack", "udt"], &["-udt", "-p", "4"]),
    (
        "PROT P, 2 streams",
        &["-p", "2", "--stack", "udt", "--data-protection", "private"],
        &["-udt", "-p", "2", "-dcpriv"],
    ),
    ("DCAU N, 2 streams", &["-p", "2", "--stack", "udt", "--no-dcau"], &["-udt", "-p", "2", "-nodcau"]),
];

#[test]
fn udt() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"])
        || !Path::new(GCT_DRIVER).exists() && peers::skip("not installed: libglobus-xio-udt-driver")
    {
        return;
    }
    let ours = "[data]\ndrivers = ['tcp', 'udt', 'gsi']\n";
    let gct = ["-dc-whitelist", "tcp,gsi,udt", "-threads", "2"];
    let yard = Arc::new(Yard::open(ours, &gct).unwrap());
    let mut cells = Vec::new();
    for third in [false, true] {
        for (name, our_options, gct_options) in ROWS {
            for client in [Client::Ours, Client::Guc, Client::Alias] {
                for at_gct in [false, true] {
                    let server = if at_gct { "GCT" } else { "ropewalk" };
                    let options = if client == Client::Ours { our_options } else { gct_options };
                    let row =
                        if third { format!("{name}, then to the other server") } else { name.to_owned() };
                    let yard = Arc::clone(&yard);
                    cells.push(Cell::new(
                        row,
                        format!("{} with {server} server", client.name()),
                        move || {
                            let (first, second) =
                                if at_gct { (&yard.gct, &yard.ours) } else { (&yard.ours, &yard.gct) };
                            yard.round(client, options, first, third.then_some(second))
                        },
                    ));
                }
            }
        }
    }
    cells::run(&SECTION, cells);
}
