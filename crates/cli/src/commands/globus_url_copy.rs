use std::ffi::OsString;

use clap::Args;

use crate::exit::Exit;
use crate::guc;

/// Only for help and completions: the program passes these arguments on before it parses its own.
#[derive(Debug, Args)]
pub struct GlobusUrlCopy {
    /// The options that `globus-url-copy -help` lists
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl GlobusUrlCopy {
    pub fn run(self) -> anyhow::Result<Exit> {
        Ok(guc::main(self.arguments))
    }
}
