use std::ffi::OsString;

use clap::Args;

use crate::exit::Exit;
use crate::guc;

/// Only for help and completions: the program hands these arguments over before it parses its own.
#[derive(Debug, Args)]
pub struct GlobusUrlCopy {
    /// As `globus-url-copy -help` tells
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl GlobusUrlCopy {
    pub fn run(self) -> anyhow::Result<Exit> {
        Ok(guc::main(self.arguments))
    }
}
