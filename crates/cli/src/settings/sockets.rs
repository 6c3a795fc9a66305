//! `--socket-memory`.

use ropewalk_buffers::{Division, Keeper, Kept, Rule, check_budget};
use ropewalk_tuning::buffers::Policy;

use super::Settings;
use super::values::show_size;
use crate::output::say;
use crate::units::parse_size;

impl Settings {
    /// While the returned keeper lives, the socket buffers of this process share the memory that
    /// `--socket-memory` grants. Connections that need more than an equal share get the same amount
    /// each.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn keep_socket_memory(&self) -> anyhow::Result<Option<Keeper>> {
        let Some(budget) = self.socket_memory else { return Ok(None) };
        let division = Division { rule: Rule::Policy(Policy::MaxMin), budget };
        let tell = |kept| {
            if let Kept::Failed(error) = kept {
                say(format_args!("ropewalk: --socket-memory: {error}"));
            }
        };
        Ok(Some(Keeper::start(move || Some(division), tell)?))
    }
}

pub(super) fn socket_memory(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.socket_memory = match text {
        "none" => None,
        size => {
            let size = parse_size(size).map_err(|error| format!("{error}, or none"))?;
            Some(check_budget(size).map_err(|error| error.to_string())?)
        }
    };
    Ok(())
}

pub(super) fn show_socket_memory(settings: &Settings) -> String {
    settings.socket_memory.map_or_else(|| "none".into(), show_size)
}
