//! Whether a receiver has the connections that its transfer needs.

use std::time::Instant;

use ropewalk_protocol::mode_e::Receiver;

use crate::connect::Core;
use crate::error::{Error, Result};

pub(crate) struct Shortage {
    /// Whether the transfer began with connections of the last one: who closes them does not
    /// connect again.
    reused: bool,
    /// A connection that was lost before it brought anything: harmless unless one is missing in the
    /// end.
    lost: Option<Error>,
    since: Option<Instant>,
}

impl Shortage {
    pub(crate) fn new(reused: bool) -> Self {
        Self { reused, lost: None, since: None }
    }

    pub(crate) fn lost(&mut self, error: Error) {
        self.lost.get_or_insert(error);
    }

    /// Fails where the connections that the transfer lacks are not to be expected any more;
    /// otherwise, until when to wait for them. `alive` may take part yet, `made` is how many there
    /// were in all.
    pub(crate) fn check(
        &mut self,
        core: &Core,
        transfer: &Receiver,
        alive: usize,
        made: usize,
    ) -> Result<Option<Instant>> {
        let ended = transfer.ended();
        let wanted = transfer.announced().unwrap_or(ended + 1);
        if ended + alive as u64 >= wanted {
            self.since = None;
            return Ok(None);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let deadline = since + core.settings.connect_timeout;
        let hopeless = core.listener().is_none() || self.reused && alive == 0 && self.lost.is_some();
        if !hopeless && Instant::now() < deadline {
            return Ok(Some(deadline));
        }
        Err(self
            .lost
            .take()
            .unwrap_or_else(|| core.missing(made, wanted as usize, core.settings.connect_timeout)))
    }
}

/// True while further connections may belong to this transfer. Those that come later wait for the
/// next one.
pub(crate) fn wants_more(core: &Core, transfer: &Receiver, alive: usize) -> bool {
    core.open_listener().is_some()
        && transfer.announced().is_none_or(|n| transfer.ended() + (alive as u64) < n)
}
