//! The command line: the list of commands. Each command's flags are in its own file.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ropewalk_cli::exit::{self, Exit};
use ropewalk_cli::{commands, habits};

use crate::completions::Completions;
use crate::help;
use crate::man::Man;

/// GridFTP server and client: moves large amounts of data fast, resumes after interruptions, and
/// verifies the result.
#[derive(Debug, Parser)]
#[command(name = "ropewalk", version, after_help = exit::HELP, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = false, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the program's arguments; ends the program if they are invalid.
    pub(crate) fn from_arguments(arguments: &[OsString]) -> Self {
        Self::try_from_arguments(arguments).unwrap_or_else(|error| error.exit())
    }

    pub(crate) fn try_from_arguments(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let matches = with_quantities(Self::definition()).try_get_matches_from(arguments);
        Self::from_arg_matches_mut(&mut matches.map_err(|error| missing_tool(habits::corrected(error)))?)
    }

    /// The commands with the additions to help, man pages and completions.
    pub(crate) fn definition() -> clap::Command {
        help::complete(Self::command())
    }
}

/// Explains that a command is one of the tools, if the program has no feature `tools`.
fn missing_tool(error: clap::Error) -> clap::Error {
    const TOOLS: [&str; 6] = ["buffers", "doctor", "lab", "model", "profile", "report"];
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if TOOLS.contains(&name.as_str()) => Cli::command().error(
            ErrorKind::InvalidSubcommand,
            format!(
                "this program was built without the command '{name}': the feature `tools` of the package \
                 ropewalk includes it, and is on by default"
            ),
        ),
        _ => error,
    }
}

/// Makes options of quantities report a negative one themselves: otherwise `-1` would be an unknown
/// option.
fn with_quantities(command: clap::Command) -> clap::Command {
    const NAMES: [&str; 10] =
        ["BYTES", "N", "NUMBER", "PACKETS", "RATE", "SECONDS", "SHARE", "SIGMA", "SIZE", "TIME"];
    let is_quantity = |arg: &clap::Arg| {
        let name = arg.get_value_names().and_then(|names| names.first());
        // Lists of them are `SIZE,...`.
        let name = name.map(|name| name.trim_end_matches(",..."));
        arg.get_action().takes_values()
            && !arg.is_positional()
            && name.is_some_and(|name| NAMES.contains(&name))
    };
    command
        .mut_args(|arg| if is_quantity(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(with_quantities)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy files and trees between this machine and servers, or between two servers
    Cp(Box<commands::cp::Cp>),
    /// Bring a copy of a tree up to date: cp --recursive --sync, from directory to directory
    Sync(Box<commands::sync::Sync>),
    /// Report differences between two trees, without moving data
    Check(Box<commands::check::Check>),
    /// List directories
    Ls(commands::ls::Ls),
    /// Show the attributes of files and directories
    Stat(commands::stat::Stat),
    /// Find entries of a tree by name, type, size or age
    Find(commands::find::Find),
    /// Add up the sizes of trees
    Du(commands::du::Du),
    /// Write files to standard output
    Cat(commands::cat::Cat),
    /// Compute checksums of files, where the files are
    Sum(commands::sum::Sum),
    /// Make directories
    Mkdir(commands::mkdir::Mkdir),
    /// Rename or move within one server
    Mv(commands::mv::Mv),
    /// Remove files and directories
    Rm(commands::rm::Rm),
    /// Remove the partial files of interrupted copies that were not resumed
    Clean(commands::clean::Clean),
    /// Predict goodput and loss by number of streams, and the best number, by models of parallel
    /// TCP
    #[cfg(feature = "tools")]
    Model(Box<ropewalk_tools::model::Model>),
    /// Show socket buffers of this host and the connections that need more; divide memory among
    /// connections
    #[cfg(feature = "tools")]
    Buffers(Box<ropewalk_tools::buffers::Buffers>),
    /// Check whether this host is ready for a fast or long link; change and restore kernel settings
    #[cfg(feature = "tools")]
    Doctor(ropewalk_tools::doctor::Doctor),
    /// Explain why a transfer was slow, from its profile; put profiles side by side
    #[cfg(feature = "tools")]
    Report(ropewalk_tools::report::Report),
    /// Measure both ends and the path during a transfer, and name what limited it
    #[cfg(feature = "tools")]
    Profile(Box<ropewalk_tools::profile::Profiled>),
    /// Run a server
    Serve(commands::serve::Serve),
    /// Move data for a server that is a front end (serve --nodes-listen)
    Node(commands::node::Node),
    /// Look at a running server and control it: sessions, nodes, limits, kick, reload, drain
    Admin(commands::admin::Admin),
    /// Show the space of a user at a server, and reserve it for later uploads
    Space(commands::space::Space),
    /// Reserve transfers at a time and a rate at a server for later copies
    Slots(commands::slots::Slots),
    /// List the running copies of this user, and change the limits on their rates
    Jobs(commands::jobs::Jobs),
    /// Let FTP clients use GridFTP servers: any FTP client in front, any server behind
    Gateway(Box<commands::gateway::Gateway>),
    /// Set, remove or list passwords of a server's users
    Passwd(commands::passwd::Passwd),
    /// Choose the relays between two places: estimate the rate of each hop
    Route(commands::route::Route),
    /// Reserve a network path for a later copy
    Reserve(commands::reserve::Reserve),
    /// List the reserved network paths, and remove those that earlier runs have left
    Reservations(commands::reservations::Reservations),
    /// Cancel reserved network paths
    Cancel(commands::cancel::CancelCommand),
    /// Make, show or remove a proxy: the short-lived credential for gsiftp://
    Proxy(commands::proxy::Proxy),
    /// Show or forget the servers with TLS that were accepted
    KnownHosts(commands::known_hosts::KnownHosts),
    /// Run an authority for a site that has none: host and user certificates, signing policy,
    /// gridmap
    Ca(commands::ca::CaCommand),
    /// Try programs and settings on long, lossy and shared paths, emulated on this machine
    #[cfg(feature = "tools")]
    Lab(Box<ropewalk_tools::lab::Lab>),
    /// Show the settings of client commands and their origins
    Config(commands::config::Config),
    /// List the named sites of the configuration, whose NAME:PATH stands for a URL
    Sites(commands::sites::Sites),
    /// Behave as GCT's globus-url-copy, with its options (also when called by that name)
    #[command(disable_help_flag = true)]
    GlobusUrlCopy(commands::globus_url_copy::GlobusUrlCopy),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page
    Man(Man),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Cp(command) => command.run(),
            Self::Sync(command) => command.run(),
            Self::Check(command) => command.run(),
            Self::Ls(command) => command.run(),
            Self::Stat(command) => command.run(),
            Self::Find(command) => command.run(),
            Self::Du(command) => command.run(),
            Self::Cat(command) => command.run(),
            Self::Sum(command) => command.run(),
            Self::Mkdir(command) => command.run(),
            Self::Mv(command) => command.run(),
            Self::Rm(command) => command.run(),
            Self::Clean(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Model(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Buffers(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Doctor(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Report(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Profile(command) => command.run(),
            Self::Serve(command) => {
                #[cfg(feature = "tools")]
                let measurements = Some(std::sync::Arc::new(ropewalk_tools::measurements::Profiler) as _);
                #[cfg(not(feature = "tools"))]
                let measurements = None;
                command.run(measurements)
            }
            Self::Node(command) => command.run(),
            Self::Admin(command) => command.run(),
            Self::Jobs(command) => command.run(),
            Self::Space(command) => command.run(),
            Self::Slots(command) => command.run(),
            Self::Gateway(command) => command.run(),
            Self::Passwd(command) => command.run(),
            Self::Route(command) => command.run(),
            Self::Reserve(command) => command.run(),
            Self::Reservations(command) => command.run(),
            Self::Cancel(command) => command.run(),
            Self::Proxy(command) => command.run(),
            Self::KnownHosts(command) => command.run(),
            Self::Ca(command) => command.run(),
            #[cfg(feature = "tools")]
            Self::Lab(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Sites(command) => command.run(),
            Self::GlobusUrlCopy(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        with_quantities(Cli::definition()).debug_assert();
    }

    #[test]
    fn negative_quantities_are_told_as_such() {
        #[cfg(feature = "tools")]
        let tools = [
            "model -b -1Gbit/s --rtt 80ms",
            "model -b 1Gbit/s --rtt -80ms",
            "model -b 1Gbit/s --rtt 80ms --loss -0.1",
            "model -b 1Gbit/s --rtt 80ms -n -5",
            "buffers -i -1s",
            "buffers plan -d -1,5 -b 10",
        ];
        #[cfg(not(feature = "tools"))]
        let tools = [];
        for line in tools.into_iter().chain(["sum --length -1 x"]) {
            let arguments: Vec<_> = ["ropewalk"].into_iter().chain(line.split(' ')).map(Into::into).collect();
            let error = Cli::try_from_arguments(&arguments).map(|_| ()).map_err(|error| error.kind());
            assert_eq!(error, Err(clap::error::ErrorKind::ValueValidation), "{line}");
        }
    }

    #[test]
    fn options_of_others_are_translated() {
        let given = ["ropewalk", "cp", "--bwlimit", "3M", "a", "b"].map(Into::into);
        let error = Cli::try_from_arguments(&given).map(|_| ()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains("--bandwidth")), "{error:?}");
    }

    #[test]
    #[cfg(not(feature = "tools"))]
    fn command_of_a_tool_without_the_feature_is_explained() {
        for line in [&["lab", "run"][..], &["profile", "--collect"], &["help", "model"]] {
            let arguments: Vec<_> = ["ropewalk"].iter().chain(line).map(Into::into).collect();
            let error = Cli::try_from_arguments(&arguments).map(|_| ()).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains("the feature `tools`")), "{error:?}");
        }
    }
}
