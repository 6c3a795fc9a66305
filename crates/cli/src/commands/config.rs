use std::env;
use std::fmt::Write as _;
use std::io::{self, Write};

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::settings::{Flags, Layers, SETTINGS, user_file};

#[derive(Debug, Args)]
pub struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print all settings, in the format of a configuration file
    ///
    /// A flag overrides the environment variable (ROPEWALK_STREAMS for --streams), which overrides
    /// $XDG_CONFIG_HOME/ropewalk/config.toml, which overrides /etc/ropewalk/config.toml.
    Show {
        /// Print the origin of each value
        #[arg(long)]
        origin: bool,
    },
    /// Print the name of the user's configuration file
    Path,
}

impl Config {
    pub fn run(self) -> anyhow::Result<Exit> {
        let text = match self.action {
            Action::Show { origin } => show(&Layers::load(&Flags::default())?, origin)?,
            Action::Path => {
                let path = user_file(|name| env::var_os(name));
                path.map(|path| format!("{}\n", path.display())).unwrap_or_default()
            }
        };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(Exit::Done)
    }
}

fn show(layers: &Layers, origin: bool) -> anyhow::Result<String> {
    let settings = layers.settings()?;
    let mut text = String::new();
    for setting in SETTINGS {
        let value = (setting.show)(&settings);
        let plain = matches!(value.as_str(), "true" | "false") || value.parse::<u64>().is_ok();
        let value = if plain { value } else { toml::Value::from(value).to_string() };
        let line = format!("{} = {value}", setting.key);
        if origin {
            writeln!(text, "{line:<36} # {}", layers.origin(setting))?;
        } else {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shown_settings_are_a_configuration_file() {
        let text = show(&Layers::default(), true).unwrap();
        assert!(text.contains("streams = \"auto\""), "{text}");
        assert!(text.lines().all(|line| line.ends_with(" # default")), "{text}");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table.len(), SETTINGS.len());
    }
}
