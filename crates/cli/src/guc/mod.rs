//! `globus-url-copy`: the options and output of GCT with Ropewalk's transfers.

mod expand;
mod help;
mod list;
mod options;
mod pending;
mod perf;
mod report;
mod run;
mod table;

use std::ffi::OsString;

use crate::exit::Exit;
use crate::output::say;

/// Runs the program with the arguments after its name. The exit codes are GCT's: 0, or 1 if
/// anything failed; 2 if an option is not supported.
pub fn main(arguments: Vec<OsString>) -> Exit {
    match options::parse(arguments) {
        Ok(options) => run::run(options),
        Err(options::Wrong::Usage(text)) => {
            say(format_args!("\n{text}\n\n{}", help::SYNTAX));
            Exit::Failed
        }
        Err(options::Wrong::NotPossible(text)) => {
            say(format_args!("\nerror: {text}\n"));
            Exit::Usage
        }
    }
}
