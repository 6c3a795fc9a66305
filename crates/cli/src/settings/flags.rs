//! The settings as flags.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{Group, SETTINGS, Setting, Settings, Shape};

/// The flags that `-h` shows; `--help` shows all.
const USUAL: [&str; 16] = [
    "accept-new",
    "bandwidth",
    "checksum",
    "debug",
    "delete",
    "files",
    "fingerprint",
    "log-file",
    "password-file",
    "polite",
    "preserve",
    "recursive",
    "streams",
    "sync",
    "token",
    "user",
];

/// The flags on the command line, in the order of the table.
#[derive(Clone, Debug, Default)]
pub struct Flags(pub Vec<(&'static str, String)>);

/// Flags of each command that may connect to a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionFlags(pub(crate) Flags);

/// Flags of each command that copies: its own and those of connections.
#[derive(Clone, Debug, Default)]
pub struct CopyFlags(pub Flags);

/// Flags of `cp`: those of [`CopyFlags`], and of network paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpFlags(pub(crate) Flags);

impl Setting {
    /// The flag, and for a switch its hidden opposite, which only matters against a configuration
    /// file.
    fn flags(&'static self) -> Vec<Arg> {
        let heading = match self.group {
            Group::Connection => "Connection",
            Group::Security | Group::Ends => "Log-in and protection",
            Group::Copy | Group::Path => "Copy",
        };
        let arg = |long: String| {
            Arg::new(long.clone()).long(long).value_parser(Checked(self)).help_heading(heading)
        };
        let visible = |arg: Arg| {
            let arg = arg.help(self.help_text()).hide_short_help(!USUAL.contains(&self.key));
            match self.short {
                Some(short) => arg.short(short),
                None => arg,
            }
        };
        let on = || arg(self.key.into()).action(ArgAction::Set).num_args(0).default_missing_value("true");
        let off = || {
            arg(format!("no-{}", self.key)).action(ArgAction::Set).num_args(0).default_missing_value("false")
        };
        match self.shape {
            Shape::Value(name) => {
                vec![
                    visible(arg(self.key.into()))
                        .value_name(name)
                        .allow_hyphen_values(true)
                        .hide_possible_values(true),
                ]
            }
            Shape::Optional(name, missing) => vec![
                visible(arg(self.key.into()))
                    .value_name(name)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value(missing),
            ],
            Shape::Switch => vec![visible(on()), off().hide(true).overrides_with(self.key)],
            Shape::Negated => {
                vec![visible(off()), on().hide(true).overrides_with(format!("no-{}", self.key))]
            }
        }
    }

    fn help_text(&self) -> String {
        match (self.shape, (self.show)(&Settings::default())) {
            (Shape::Value(_), default) if !default.is_empty() => {
                format!("{} [default: {default}]", self.help)
            }
            _ => self.help.into(),
        }
    }
}

/// Checks a value with the setting's own function, so that the error names the flag.
#[derive(Clone)]
struct Checked(&'static Setting);

impl TypedValueParser for Checked {
    type Value = String;

    /// The values that the value name lists, as in `auto|stream|extended`.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let Shape::Value(name) = self.0.shape else { return None };
        let all = name.contains('|') && !name.contains(|c: char| c.is_ascii_uppercase());
        all.then(|| Box::new(name.split('|').map(PossibleValue::new)) as Box<dyn Iterator<Item = _>>)
    }

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        let problem = match value.to_str() {
            Some(text) => match self.0.check(text) {
                Ok(()) => return Ok(text.to_owned()),
                // The message already names the value.
                Err(problem) => match problem.strip_prefix(&format!("{text:?}: ")) {
                    Some(rest) => rest.to_owned(),
                    None => problem,
                },
            },
            None => "it is not valid UTF-8".into(),
        };
        let mut error = clap::Error::new(ErrorKind::ValueValidation).with_cmd(command);
        let name = arg.map_or_else(|| self.0.key.to_owned(), ToString::to_string);
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
        // The user may have passed the token itself.
        let shown = if self.0.key == "token" { "***".into() } else { value.to_string_lossy().into_owned() };
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![problem.into()]));
        Err(error)
    }
}

fn augment(command: Command, groups: &[Group]) -> Command {
    command.args(SETTINGS.iter().filter(|setting| groups.contains(&setting.group)).flat_map(Setting::flags))
}

fn collect(matches: &ArgMatches, groups: &[Group]) -> Flags {
    let given = SETTINGS.iter().filter(|setting| groups.contains(&setting.group)).filter_map(|setting| {
        let value = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
        let value = value(setting.key).or_else(|| value(&format!("no-{}", setting.key)))?;
        Some((setting.key, value))
    });
    Flags(given.collect())
}

macro_rules! flags {
    ($type:ident, $groups:expr) => {
        impl Args for $type {
            fn augment_args(command: Command) -> Command {
                augment(command, $groups)
            }

            fn augment_args_for_update(command: Command) -> Command {
                augment(command, $groups)
            }
        }

        impl FromArgMatches for $type {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self(collect(matches, $groups)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self(collect(matches, $groups));
                Ok(())
            }
        }
    };
}

flags!(ConnectionFlags, &[Group::Security, Group::Connection]);
flags!(CopyFlags, &[Group::Copy, Group::Security, Group::Ends, Group::Connection]);
flags!(CpFlags, &[Group::Copy, Group::Path, Group::Security, Group::Ends, Group::Connection]);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        copy: CopyFlags,
    }

    fn given(words: &str) -> Vec<(&'static str, String)> {
        Program::try_parse_from(["x"].into_iter().chain(words.split_whitespace())).unwrap().copy.0.0
    }

    #[test]
    fn flags_of_each_shape_are_parsed() {
        assert_eq!(given(""), []);
        assert_eq!(given("-p 4"), [("streams", "4".into())]);
        assert_eq!(given("--sync"), [("sync", "time".into())]);
        assert_eq!(given("--sync=size"), [("sync", "size".into())]);
        assert_eq!(given("-r"), [("recursive", "true".into())]);
        assert_eq!(given("--no-recursive"), [("recursive", "false".into())]);
        assert_eq!(given("--no-resume"), [("resume", "false".into())]);
        assert_eq!(given("--resume"), [("resume", "true".into())]);
        assert_eq!(given("--no-recursive -r"), [("recursive", "true".into())]);
        assert_eq!(given("-r --no-recursive"), [("recursive", "false".into())]);
        assert_eq!(given("--resume --no-resume"), [("resume", "false".into())]);
    }

    #[test]
    fn help_shows_defaults() {
        let help = <Program as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(help.contains("[default: 1M]") && !help.contains("--no-recursive"), "{help}");
    }
}
