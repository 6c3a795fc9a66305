//! SITE USAGE and SITE SPACE: the space of a user at a server, and reservations of it.

use std::time::Duration;

use ropewalk_protocol::command::Command;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::space::{ReservedSpace, SpaceCommand};
use ropewalk_protocol::usage::{Usage, UsageCommand};

use super::Session;
use crate::RemoteError;

impl Session {
    pub(crate) fn space_usage(&mut self, path: &[u8], quota: Option<&str>) -> Result<Usage, RemoteError> {
        let command = UsageCommand { token: quota.map(Into::into), path: path.into() };
        let reply = self.call(&Command::Site(SiteCommand::Usage(command)))?;
        Usage::parse(reply.text()).ok_or_else(|| self.nonsense("SITE USAGE", &reply))
    }

    pub(crate) fn reserve_space(
        &mut self,
        path: &[u8],
        bytes: u64,
        time: Duration,
    ) -> Result<ReservedSpace, RemoteError> {
        let command = SpaceCommand::Reserve { bytes, seconds: time.as_secs(), path: Some(path.into()) };
        let reply = self.call(&Command::Site(SiteCommand::Space(command)))?;
        ReservedSpace::parse(reply.text()).ok_or_else(|| self.nonsense("SITE SPACE RESERVE", &reply))
    }

    pub(crate) fn extends_space(&self) -> bool {
        self.can.space_extend
    }

    pub(crate) fn extend_space(&mut self, token: &str, time: Duration) -> Result<ReservedSpace, RemoteError> {
        let command = SpaceCommand::Extend { token: token.to_owned(), seconds: time.as_secs() };
        let reply = self.call(&Command::Site(SiteCommand::Space(command)))?;
        ReservedSpace::parse(reply.text()).ok_or_else(|| self.nonsense("SITE SPACE EXTEND", &reply))
    }

    pub(crate) fn release_space(&mut self, token: &str) -> Result<bool, RemoteError> {
        let release = SpaceCommand::Release(token.to_owned());
        match self.call(&Command::Site(SiteCommand::Space(release))) {
            Err(error) if error.reply_code() == Some(550) => Ok(false),
            released => released.map(|_| true),
        }
    }

    pub(crate) fn reserved_space(&mut self) -> Result<Vec<ReservedSpace>, RemoteError> {
        let reply = self.call(&Command::Site(SiteCommand::Space(SpaceCommand::List)))?;
        let lines = reply.lines();
        let between = lines.len().saturating_sub(2);
        let spaces = reply.lines().skip(1).take(between).map(|line| ReservedSpace::parse(line));
        spaces.collect::<Option<_>>().ok_or_else(|| self.nonsense("SITE SPACE LIST", &reply))
    }
}
