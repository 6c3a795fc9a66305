//! The `ropewalk` program: flags become requests, events become output.

#![forbid(unsafe_code)]

mod cli;
mod completions;
mod help;
mod man;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use ropewalk_cli::exit::Exit;
use ropewalk_cli::logging::{self, LogFormat};
use ropewalk_cli::{guc, message, output, signals};

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    without_dumps();
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    if Path::new(&name).file_name().is_some_and(|name| name == "globus-url-copy") {
        return guc::main(arguments.collect()).into();
    }
    let all: Vec<OsString> = env::args_os().collect();
    // Its options are not parsed by clap, which would take `-vb` for `-v -b`.
    if all.get(1).is_some_and(|command| command == "globus-url-copy") {
        return guc::main(all.into_iter().skip(2).collect()).into();
    }
    match run(Cli::from_arguments(&all)) {
        Ok(exit) => exit.into(),
        Err(error) if signals::is_broken_pipe(&error) => Exit::Failed.into(),
        Err(error) => {
            output::say(format_args!("ropewalk: {}", message(&error)));
            Exit::of_error(&error).into()
        }
    }
}

/// Prevents core dumps: passwords, keys and tokens of this process must not get into a file. A
/// failure is ignored.
fn without_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Core).maximum;
    // One byte: programs that take dumps through a pipe ignore 0 (core(5)), and no dump is as
    // short.
    let current = Some(maximum.map_or(1, |maximum| maximum.min(1)));
    let _ = setrlimit(Resource::Core, Rlimit { current, maximum });
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    if !matches!(cli.command, Command::Serve(_) | Command::Node(_) | Command::Gateway(_)) {
        logging::init(None, "error", LogFormat::Text)?;
    }
    cli.command.run()
}
