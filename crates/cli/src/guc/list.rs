//! `-list`.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use ropewalk_client::{Cancel, EventSink, Options, list};

use crate::client::Target;
use crate::output::shown_name;

pub(super) fn run(
    url: &OsStr,
    target: &Target,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    let terminal = io::stdout().is_terminal();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", url.to_string_lossy())?;
    let entries = match list(&target.location, options, events, cancel) {
        Ok(entries) => entries,
        Err(error) => {
            writeln!(out)?;
            return Err(error.into());
        }
    };
    for entry in entries {
        out.write_all(b"    ")?;
        out.write_all(&shown_name(&entry.name, terminal))?;
        out.write_all(if entry.is_directory() { b"/\n" } else { b" \n" })?;
    }
    writeln!(out)?;
    Ok(())
}
