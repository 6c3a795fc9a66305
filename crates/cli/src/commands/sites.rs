use std::fmt::Write as _;
use std::io::{self, Write};

use clap::Args;

use crate::exit::Exit;
use crate::sites::{Site, Sites as Configured};

#[derive(Debug, Args)]
pub struct Sites {}

impl Sites {
    pub fn run(self) -> anyhow::Result<Exit> {
        let sites = Configured::load()?;
        io::stdout().lock().write_all(listed(sites.0.values()).as_bytes())?;
        Ok(Exit::Done)
    }
}

/// A site on each line: its name, its URL, and its settings.
fn listed<'a>(sites: impl Iterator<Item = &'a Site>) -> String {
    let mut text = String::new();
    for Site { name, url, settings } in sites {
        let _ = write!(text, "{name}: {url}");
        for (key, value) in settings {
            let _ = write!(text, " {key}={value}");
        }
        text.push('\n');
    }
    text
}
