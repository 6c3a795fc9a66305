//! Downloads over a single stream: listings, and files in order.

use std::io::{self, Seek, Write};
use std::ops::ControlFlow;

use bstr::{BString, ByteSlice};
use ropewalk_engine::Progress;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::opts::{Options, RecursionOptions};
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window as Part};
use ropewalk_storage::Kind;

use crate::control::Answer;
use crate::listing::Listing;
use crate::model::entry::{Line, from_facts, from_long};
use crate::place::base_name;
use crate::session::Session;
use crate::watch::Watch;
use crate::{Amount, RemoteError};

/// Listings up to this size are kept in memory.
const LISTING_IN_MEMORY: usize = 4 << 20;

impl Session {
    /// The entries of a directory, or the file itself.
    pub(crate) fn listing(&mut self, path: &[u8]) -> Result<Listing, RemoteError> {
        if self.can.facts {
            let command = Command::Mlsd(Some(path.into()));
            return self.facts(&command).map(Listing::flat);
        }
        // Many servers omit names that begin with a dot unless they get the option of `ls`. Others
        // take the option as a name, and do not find it.
        let asked = [b"-a ", path].concat();
        match self.entries(&Command::List(Some(asked.into())), from_long) {
            Err(e) if e.breaks_session() => return Err(e),
            Ok(listing) => {
                let mut listing = listing.flat();
                if listing.tells_something()? {
                    return Ok(listing);
                }
            }
            Err(_) => {}
        }
        self.entries(&Command::List(Some(path.into())), from_long).map(Listing::flat)
    }

    /// The target of a symbolic link, for a server whose facts do not have it; `None` if it cannot
    /// be determined.
    pub(crate) fn read_link(&mut self, path: &[u8]) -> Result<Option<BString>, RemoteError> {
        // Without the option many servers list the directory that is the target.
        for option in ["-d ", ""] {
            let asked = Command::List(Some([option.as_bytes(), path].concat().into()));
            let mut listing = match self.entries(&asked, from_long) {
                Ok(listing) => listing.flat(),
                Err(e) if e.breaks_session() => return Err(e),
                Err(_) => continue,
            };
            if let (Some(Ok(entry)), None) = (listing.next(), listing.next())
                && entry.kind == Kind::Symlink
                && entry.name == base_name(path)
            {
                return Ok(entry.target);
            }
        }
        Ok(None)
    }

    /// Everything beneath a directory in one listing; names are relative to it. Requires MLSR. An
    /// unreadable directory is an entry with an error.
    pub(crate) fn tree(&mut self, path: &[u8]) -> Result<Listing, RemoteError> {
        if self.quirks.tree_listing_stops_at_errors {
            let go_on = RecursionOptions { continue_on_error: Some(true), traverse_links: None };
            self.control.suggest(&Command::Opts(Options::Mlsr(go_on)))?;
        }
        self.facts(&Command::Mlsr(Some(path.into())))
    }

    fn facts(&mut self, command: &Command) -> Result<Listing, RemoteError> {
        self.entries(command, |line| from_facts(line.as_bstr())).map(Listing::terminated)
    }

    /// Fetches a complete listing before its entries are handled: the caller may be slow, and a
    /// server would not wait for long.
    fn entries(&mut self, command: &Command, parse: fn(&[u8]) -> Line) -> Result<Listing, RemoteError> {
        let mut spool = Counted { writer: tempfile::spooled_tempfile(LISTING_IN_MEMORY), lines: 0 };
        let (bytes, ended) = self.fetch_until(std::slice::from_ref(command), &mut spool)?;
        let cut_off = ended.and_then(|reply| answer::cut_off(&reply, bytes, spool.lines));
        spool.writer.rewind().map_err(RemoteError::Output)?;
        let peer = self.control.peer().to_owned();
        Ok(Listing::new(spool.writer, parse, peer).cut_off(cut_off))
    }

    /// Downloads a file, or a range of it, in order.
    pub(crate) fn read_to(
        &mut self,
        path: &[u8],
        writer: &mut dyn Write,
        window: Amount,
    ) -> Result<u64, RemoteError> {
        let whole = Command::Retr(path.into());
        let Some(window) = window else { return self.fetch(&[whole], writer) };
        if self.can.partial {
            let length = window.length.unwrap_or(i64::MAX as u64 - window.offset);
            let what = Retrieval::Partial(Part { offset: window.offset, length });
            return self.fetch(&[Command::Eret { what, path: path.into() }], writer);
        }
        let mut limited =
            Limited { writer, left: window.length.unwrap_or(u64::MAX), full: false, written: 0 };
        let commands = [Command::Rest(Restart::Offset(window.offset)), whole];
        match self.fetch(&commands[usize::from(window.offset == 0)..], &mut limited) {
            Err(RemoteError::Output(_)) if limited.full => Ok(limited.written),
            result => result.map(|_| limited.written),
        }
    }

    /// The same as [`read_to`](Self::read_to), but fewer bytes than the file's size are an error:
    /// in MODE S the end of the connection does not prove anything.
    pub(crate) fn read_whole(
        &mut self,
        path: &[u8],
        writer: &mut dyn Write,
        window: Amount,
    ) -> Result<u64, RemoteError> {
        let size = match self.size(path) {
            Err(e) if e.breaks_session() => return Err(e),
            // The size of a special file is not reported.
            size => size.unwrap_or(0),
        };
        let bytes = self.read_to(path, writer, window)?;
        let rest = size.saturating_sub(window.map_or(0, |window| window.offset));
        let expected = window.and_then(|window| window.length).map_or(rest, |length| length.min(rest));
        if bytes < expected {
            return Err(RemoteError::Incomplete { path: path.into(), bytes, expected });
        }
        Ok(bytes)
    }

    /// Executes commands of which the last one sends data, over a single stream.
    pub(crate) fn fetch(&mut self, commands: &[Command], sink: &mut dyn Write) -> Result<u64, RemoteError> {
        self.fetch_until(commands, sink).map(|(bytes, _)| bytes)
    }

    /// The same as [`fetch`](Self::fetch); also returns the server's final reply.
    fn fetch_until(
        &mut self,
        commands: &[Command],
        sink: &mut dyn Write,
    ) -> Result<(u64, Option<Reply>), RemoteError> {
        self.receiving(Mode::Stream, 1, None)?;
        let Some((last, before)) = commands.split_last() else { return Ok((0, None)) };
        // If one is refused, the last one would send the wrong data.
        for command in before {
            self.call(command)?;
        }
        self.control.send(last)?;
        let Some(mut channel) = self.take_channel() else { return Ok((0, None)) };
        let mut ended: Option<Reply> = None;
        let mut judge = |answer: Answer| {
            let Answer::Final(reply) = answer else { return ControlFlow::Continue(()) };
            let failed = reply.is_failure();
            ended = Some(reply);
            if failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (stall, cancel) = (self.setup.options.timeouts.stall, self.setup.cancel.clone());
        let mut watch = Watch::new(&mut self.control, &mut judge, None, stall, &cancel, last.verb().into());
        let result = channel.data.receive_writer(sink, &mut watch, &Progress::new());
        let failure = watch.failure.take();
        drop(channel);
        if let Some(failure) = failure {
            return Err(failure);
        }
        let elsewhere = result.as_ref().is_err_and(leads_elsewhere);
        let unconnected = matches!(result, Err(ropewalk_engine::Error::Connect { .. }));
        let result = result.map_err(|e| RemoteError::data(self.control.peer(), last.verb().into(), e));
        // Also after a failure: the server's reason may be more precise, and its reply must not
        // stay in the queue. A server that waits in vain for our connection, because its address
        // leads elsewhere, replies late, if at all. A server that refused the command would have
        // replied meanwhile.
        let ended = match ended {
            None if elsewhere => None,
            None => match (self.control.finish(), &result) {
                (Ok(reply), _) => Some(reply),
                (Err(_), Err(error)) if unconnected || !error.may_be_consequence() => None,
                (Err(e), _) => return Err(e),
            },
            ended => ended,
        };
        match (result, ended) {
            (Ok(_), Some(ended))
                if self.quirks.lists_unreadable_as_empty
                    && ended.to_string().contains("failed to open directory") =>
            {
                Err(self.refused(last.verb(), ended))
            }
            (Ok(received), Some(ended)) => {
                self.accept(last.verb(), ended).map(|reply| (received.bytes, Some(reply)))
            }
            (Ok(_), None) => Err(RemoteError::Desynchronized),
            (Err(error), ended) => {
                let refusal = ended.filter(Reply::is_failure).map(|reply| self.refused(last.verb(), reply));
                Err(error.or_refusal(refusal))
            }
        }
    }
}

/// The announced address does not lead to the server. If no program listens there, the server's
/// reply is on its way.
fn leads_elsewhere(error: &ropewalk_engine::Error) -> bool {
    let ropewalk_engine::Error::Connect { source, .. } = error else { return false };
    source.kind() != io::ErrorKind::ConnectionRefused
}

/// Counts lines.
struct Counted<W> {
    writer: W,
    lines: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = self.writer.write(data)?;
        self.lines += data[..n].find_iter("\n").count() as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Accepts this many bytes; then an error ends the transfer.
struct Limited<'a> {
    writer: &'a mut dyn Write,
    left: u64,
    full: bool,
    written: u64,
}

impl Write for Limited<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
        if n == 0 && !data.is_empty() {
            self.full = true;
            return Err(io::Error::other("enough"));
        }
        let n = self.writer.write(&data[..n])?;
        self.left -= n as u64;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
