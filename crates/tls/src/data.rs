//! The records of a data connection: with a record layer of our own where the handshake ended in TLS 1.3, with OpenSSL's else.

use std::io::IoSlice;

use openssl::ssl::{SslRef, SslVersion};

use crate::keylog;
use crate::queue::Queue;
use crate::record13::{Opener, Sealer, Violation};
use crate::records::{Opened, RecordError, Records};
use crate::traffic::{Keys, Suite};

/// Bytes that wait to be sent, beyond which an answer to a key update has to wait, too.
const MAX_ANSWERS: usize = 1024;

/// Both directions of a data connection, with what waits to be sent and what came. It touches no network.
pub struct DataRecords {
    layer: Layer,
    /// Sealed, and not sent yet.
    output: Queue,
}

enum Layer {
    OpenSsl(Box<Records>),
    Own(Box<Own>),
}

struct Own {
    sealer: Sealer,
    opener: Opener,
    /// Came, and not opened yet.
    input: Queue,
    /// Of a record that did not fit where it was read to: `start..` is to be read first.
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
        Self(violation.to_string())
    }
}

impl DataRecords {
    /// Of a handshake that has just ended.
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

    /// Whether the records are ours, and not OpenSSL's.
    pub fn is_own(&self) -> bool {
        matches!(self.layer, Layer::Own(_))
    }

    /// Seals the first `most` bytes of `plain`, all its parts one after another, to [`DataRecords::output`]. Returns how many
    /// bytes that was.
    ///
    /// # Errors
    /// Our direction has ended or failed.
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

    /// Ends our direction (close_notify). Nothing can be sealed afterwards.
    ///
    /// # Errors
    /// Our direction has failed.
    pub fn close(&mut self) -> Result<(), RecordError> {
        match &mut self.layer {
            Layer::Own(own) => Ok(own.sealer.close(&mut self.output)?),
            Layer::OpenSsl(records) => self.output.append(|out| records.close(out)),
        }
    }

    /// What is to be sent: what was sealed, and what TLS itself has to say.
    pub fn output(&self) -> &[u8] {
        self.output.waiting()
    }

    /// So many bytes of [`DataRecords::output`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.taken(count);
    }

    /// Room for at least so many bytes from the network.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        match &mut self.layer {
            Layer::Own(own) => own.input.space(least),
            Layer::OpenSsl(records) => records.room(least),
        }
    }

    /// So many bytes were put into [`DataRecords::room`].
    pub fn received(&mut self, count: usize) {
        match &mut self.layer {
            Layer::Own(own) => own.input.filled(count),
            Layer::OpenSsl(records) => records.received(count),
        }
    }

    /// Whether what came ends within a record or a message, as far as OpenSSL tells where the records are its own.
    pub fn is_torn(&self) -> bool {
        match &self.layer {
            Layer::Own(own) => !own.input.waiting().is_empty() || own.opener.is_within_message(),
            Layer::OpenSsl(records) => records.is_torn(),
        }
    }

    /// Opens the next record with data, or what fits of it into `buffer`, which is not empty.
    ///
    /// # Errors
    /// A record is not genuine, or the peer has told of an error: nothing can be opened afterwards, and what is in `buffer` is
    /// nobody's word. The peer's alert is in [`DataRecords::output`].
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
            // At once: the peer may be waiting, and we may have nothing to send. But one that asks and asks and reads nothing
            // gets one answer, and one that has ended its direction none.
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

/// Both directions with keys of their own. `None` where OpenSSL has to go on: with another version or suite, and wherever it is
/// not certain that neither side has used these keys yet, since the sequence numbers would not be right.
fn take_over(records: &Records) -> Option<(Sealer, Opener)> {
    let ssl = records.ssl();
    // Cleared here whatever follows.
    let secrets = keylog::take(ssl);
    if ssl.version2() != Some(SslVersion::TLS1_3) || !records.is_fresh() || !is_silent(ssl) {
        return None;
    }
    // Ours are as long as they can be.
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

/// OpenSSL has sealed nothing behind its part of the handshake, and has read nothing behind the peer's.
fn is_silent(ssl: &SslRef) -> bool {
    let tickets = ssl.is_server() && ssl.num_tickets() != 0;
    !tickets && !crate::sys::has_pending(ssl)
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
