use std::os::unix::process::ExitStatusExt;

use clap::Args;
use ropewalk_lab::run::{RunError, labs, shell};

use super::of_run;
use crate::exit::{Exit, usage};

#[derive(Debug, Args)]
pub(crate) struct Shell {
    /// The host, for example left
    host: String,
    /// The command to run there instead of a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// The lab [default: the only one running]
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
}

impl Shell {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let lab = match self.lab {
            Some(lab) => lab,
            None => only_lab()?,
        };
        let status = shell(&lab, &self.host, &self.command).map_err(|error| match error {
            RunError::NoSuchLab { .. } | RunError::NoSuchHost { .. } => usage(error.to_string()),
            error => of_run(error),
        })?;
        // The command's own exit code is passed on, as with ssh and sudo.
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        if code == 0 { Ok(Exit::Done) } else { std::process::exit(code) }
    }
}

pub(super) fn only_lab() -> anyhow::Result<String> {
    let mut names: Vec<String> = labs().into_iter().map(|lab| lab.name).collect();
    match names.len() {
        1 => Ok(names.remove(0)),
        0 => Err(usage("no lab is running: start one with `ropewalk lab up SCENARIO`")),
        _ => Err(usage(format!("several labs are running: choose with --lab one of {}", names.join(", ")))),
    }
}
