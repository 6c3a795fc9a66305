//! SITE SLOTS: reservations of permits for transfers, and of a rate.

use std::time::Duration;

use ropewalk_protocol::command::Command;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::slots::{ReservedSlots, SlotsCommand, SlotsRequest, whole_seconds};

use super::Session;
use crate::{Event, RemoteError};

impl Session {
    pub(crate) fn reserve_slots(&mut self, request: SlotsRequest) -> Result<ReservedSlots, RemoteError> {
        self.require_slots()?;
        let reply = self.call(&Command::Site(SiteCommand::Slots(SlotsCommand::Reserve(request))))?;
        ReservedSlots::parse(reply.text()).ok_or_else(|| self.nonsense("SITE SLOTS RESERVE", &reply))
    }

    pub(crate) fn extend_slots(
        &mut self,
        token: &str,
        lease: Duration,
    ) -> Result<ReservedSlots, RemoteError> {
        let command = SlotsCommand::Extend { token: token.to_owned(), seconds: whole_seconds(lease) };
        let reply = self.call(&Command::Site(SiteCommand::Slots(command)))?;
        ReservedSlots::parse(reply.text()).ok_or_else(|| self.nonsense("SITE SLOTS EXTEND", &reply))
    }

    pub(crate) fn release_slots(&mut self, token: &str) -> Result<bool, RemoteError> {
        let release = SlotsCommand::Release(token.to_owned());
        match self.call(&Command::Site(SiteCommand::Slots(release))) {
            Err(error) if error.reply_code() == Some(550) => Ok(false),
            released => released.map(|_| true),
        }
    }

    pub(crate) fn reserved_slots(&mut self) -> Result<Vec<ReservedSlots>, RemoteError> {
        self.require_slots()?;
        let reply = self.call(&Command::Site(SiteCommand::Slots(SlotsCommand::List)))?;
        let lines = reply.lines();
        let between = lines.len().saturating_sub(2);
        let reserved = reply.lines().skip(1).take(between).map(|line| ReservedSlots::parse(line));
        reserved.collect::<Option<_>>().ok_or_else(|| self.nonsense("SITE SLOTS LIST", &reply))
    }

    /// SITE SLOTS USE, if the options name a reservation. One that has ended, perhaps while the
    /// copy runs, is no reason to fail: the session then waits its turn as others do.
    pub(super) fn use_slots(&mut self) -> Result<(), RemoteError> {
        let Some(token) = self.setup.options.end(self.endpoint.end).slots_token else { return Ok(()) };
        self.require_slots()?;
        match self.call(&Command::Site(SiteCommand::Slots(SlotsCommand::Use(Some(token))))) {
            Err(error) if error.reply_code() == Some(550) => {
                if self.setup.warned_of_slots.add(self.control.peer()) {
                    let message = format!("the reservation of slots is not used: {error}");
                    self.setup.events.event(Event::Warning { message });
                }
                Ok(())
            }
            used => used.map(drop),
        }
    }

    fn require_slots(&self) -> Result<(), RemoteError> {
        match self.can.slots {
            true => Ok(()),
            false => {
                let peer = self.control.peer().to_owned();
                Err(RemoteError::Unsupported { peer, what: "reserve slots for transfers".into() })
            }
        }
    }
}
