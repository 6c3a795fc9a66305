//! The records of a data connection. After a TLS 1.3 handshake they are handled by Ropewalk's own
//! record layer (`record13`), otherwise by OpenSSL. The caller moves the bytes between
//! [`DataRecords`] and the network. After an error nothing more can be read.

use std::io::IoSlice;

use openssl::ssl::{SslRef, SslVersion};

use crate::keylog;
use crate::queue::Queue;
use crate::record13::{Opener, Sealer, Violation};
use crate::records::{Opened, RecordError, Records};
use crate::traffic::{Keys, Suite};

/// If this many bytes wait to be sent, answers to key updates are postponed.
const MAX_ANSWERS: usize = 1024;

/// Both directions of a data connection, with buffers for bytes to send and received bytes. It does
/// no network I/O.
pub struct DataRecords {
    layer: Layer,
    /// Protected bytes that have not been sent yet.
    output: Queue,
}

enum Layer {
    OpenSsl(Box<Records>),
    Own(Box<Own>),
}

struct Own {
    sealer: Sealer,
    opener: Opener,
    /// Received bytes that have not been read yet.
    input: Queue,
    /// The rest of a record that did not fit into the caller's buffer: `start..` must be returned
    /// first.
    rest: Vec<u8>,
    start: usize,
}

impl std::fmt::Debug for DataRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataRecords").field("own", &self.is_own()).finish_non_exhaustive()
    }
}

impl From<Violation> for RecordError {
    fn from(violation: Violation) -> Self {
        Self::Wrong(violation.to_string())
    }
}

impl DataRecords {
    /// Takes over after a completed handshake.
    pub fn new(mut records: Records) -> Self {
        let layer = match take_over(&records) {
            Some((sealer, opener)) => {
                let mut input = Queue::default();
                input.put(&records.rest());
                Layer::Own(Box::new(Own { sealer, opener, input, rest: Vec::new(), start: 0 }))
            }
            None => Layer::OpenSsl(Box::new(records)),
        };
        Self { layer, output: Queue::default() }
    }

    /// Whether Ropewalk's record layer is used, not OpenSSL's.
    pub fn is_own(&self) -> bool {
        matches!(self.layer, Layer::Own(_))
    }

    /// Protects the first `most` bytes of `plain` (the concatenation of its slices) and appends the
    /// records to [`DataRecords::output`]. Returns how many bytes of `plain` that was.
    ///
    /// # Errors
    /// This direction was closed or has failed.
    pub fn seal(&mut self, plain: &[IoSlice<'_>], most: usize) -> Result<usize, RecordError> {
        match &mut self.layer {
            Layer::Own(own) => {
                let sealed = own.sealer.seal(plain, most, &mut self.output)?;
                if sealed > 0 {
                    own.opener.forget_idling();
                }
                Ok(sealed)
            }
            Layer::OpenSsl(records) => {
                let mut left = most;
                for part in plain {
                    let part = &part[..part.len().min(left)];
                    if !part.is_empty() {
                        self.output.append(|out| records.seal(part, out))?;
                    }
                    left -= part.len();
                }
                Ok(most - left)
            }
        }
    }

    /// Closes this direction (close_notify). Nothing can be protected afterwards.
    ///
    /// # Errors
    /// This direction has failed.
    pub fn close(&mut self) -> Result<(), RecordError> {
        match &mut self.layer {
            Layer::Own(own) => Ok(own.sealer.close(&mut self.output)?),
            Layer::OpenSsl(records) => self.output.append(|out| records.close(out)),
        }
    }

    /// The bytes to send: protected data and messages of TLS itself.
    pub fn output(&self) -> &[u8] {
        self.output.waiting()
    }

    /// Removes `count` bytes of [`DataRecords::output`] that were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.taken(count);
    }

    /// Space for at least `least` bytes from the network.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        match &mut self.layer {
            Layer::Own(own) => own.input.space(least),
            Layer::OpenSsl(records) => records.room(least),
        }
    }

    /// Marks `count` bytes of [`DataRecords::room`] as received.
    pub fn received(&mut self, count: usize) {
        match &mut self.layer {
            Layer::Own(own) => own.input.filled(count),
            Layer::OpenSsl(records) => records.received(count),
        }
    }

    /// Whether the received bytes end within a record or a message. If OpenSSL handles the records,
    /// the answer is limited to what OpenSSL reports.
    pub fn is_torn(&self) -> bool {
        match &self.layer {
            Layer::Own(own) => !own.input.waiting().is_empty() || own.opener.is_within_message(),
            Layer::OpenSsl(records) => records.is_torn(),
        }
    }

    /// Reads the next record with data, or as much of it as fits into `buffer`. `buffer` must not
    /// be empty.
    ///
    /// # Errors
    /// A record is not authentic, or the peer has sent an alert. Nothing can be read afterwards,
    /// and the content of `buffer` is not authentic. The alert for the peer is in
    /// [`DataRecords::output`].
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Opened, RecordError> {
        match &mut self.layer {
            Layer::Own(own) => Ok(own.read(buffer, &mut self.output)?),
            Layer::OpenSsl(records) => {
                let result = records.read(buffer);
                let answer = records.take_output();
                self.output.put(&answer);
                result
            }
        }
    }
}

impl Own {
    fn read(&mut self, buffer: &mut [u8], output: &mut Queue) -> Result<Opened, Violation> {
        if self.start == self.rest.len() {
            self.rest.clear();
            self.start = 0;
            let Self { sealer, opener, input, rest, .. } = self;
            let opened = opener.open(input, buffer, rest, sealer, output)?;
            // Answer a key update at once, because the peer may wait for it while this side has
            // nothing to send. A peer that keeps requesting updates without reading gets one
            // answer, and a peer that has closed its direction gets none.
            if output.waiting().len() < MAX_ANSWERS
                && opened != Opened::End
                && let Err(violation) = sealer.answer(output)
            {
                opener.give_up();
                return Err(violation);
            }
            if opened != Opened::Bytes(0) {
                return Ok(opened);
            }
        }
        let count = buffer.len().min(self.rest.len() - self.start);
        buffer[..count].copy_from_slice(&self.rest[self.start..self.start + count]);
        self.start += count;
        Ok(Opened::Bytes(count))
    }
}

/// Makes the keys of both directions. Returns `None` if OpenSSL must keep the connection: with
/// another version or cipher suite, and whenever one side may already have used these keys, because
/// the sequence numbers would then be wrong.
fn take_over(records: &Records) -> Option<(Sealer, Opener)> {
    let ssl = records.ssl();
    // The secrets are cleared here in any case.
    let secrets = keylog::take(ssl);
    if ssl.version2() != Some(SslVersion::TLS1_3) || !records.is_fresh() || !is_silent(ssl) {
        return None;
    }
    // `Sealer` always makes records of the maximum length.
    if crate::sys::has_short_records(ssl) {
        return None;
    }
    let suite = Suite::named(ssl.current_cipher()?.name())?;
    let (ours, theirs) = match ssl.is_server() {
        true => (secrets.server?, secrets.client?),
        false => (secrets.client?, secrets.server?),
    };
    let sealing = Keys::new(suite, ours).ok()??;
    let opening = Keys::new(suite, theirs).ok()??;
    Some((Sealer::new(sealing), Opener::new(opening, !ssl.is_server())))
}

/// Whether OpenSSL has sent no record after its part of the handshake and has read none after the
/// peer's.
fn is_silent(ssl: &SslRef) -> bool {
    let tickets = ssl.is_server() && ssl.num_tickets() != 0;
    !tickets && !crate::sys::has_pending(ssl)
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
