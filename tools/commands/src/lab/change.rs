use std::io::{self, Write};

use clap::Args;
use ropewalk_lab::run::{RunError, change};
use ropewalk_lab::scenario::Value;

use super::shell::only_lab;
use super::{of_run, setting};
use crate::exit::{Exit, usage};

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// The changes: links[0].path.both.loss=1%, links[0].path.forward.rate=20Mbit/s,
    /// links[0].path.round_trip=80ms
    #[arg(required = true, value_name = "FIELD=VALUE", value_parser = setting)]
    settings: Vec<(String, Value)>,
    /// The lab [default: the only one running]
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
}

impl Change {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let lab = match self.lab {
            Some(lab) => lab,
            None => only_lab()?,
        };
        let paths = change(&lab, &self.settings).map_err(|error| match error {
            RunError::NoSuchLab { .. } | RunError::Change { .. } => usage(error.to_string()),
            error => of_run(error),
        })?;
        let mut out = io::stdout().lock();
        for (link, path) in paths {
            writeln!(out, "# {link}.path is now\n{}", toml::to_string(&path)?)?;
        }
        Ok(Exit::Done)
    }
}
