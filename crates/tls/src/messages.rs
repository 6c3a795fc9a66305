//! Parses handshake messages that come after the handshake (RFC 8446 section 4.6). Only session
//! tickets from a server and key updates are allowed; each other message has its alert. Messages
//! may be split over records.

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// The length of a ticket in bytes, from all fields at their shortest (a ticket of one byte) to all
/// at their longest (RFC 8446 section 4.6.1).
const TICKET: std::ops::RangeInclusive<usize> = 14..=(4 + 4 + 1 + 255 + 2 + 0xffff + 2 + 0xffff);
/// Length of a message's type and length fields, in bytes.
const HEAD: usize = 4;

#[derive(Debug, thiserror::Error)]
pub(crate) enum MalformedMessage {
    #[error("a record with an empty piece of a handshake message came")]
    Empty,
    #[error("a handshake message of type {0} came, which has no place here after the handshake")]
    Type(u8),
    #[error("a handshake message of type {kind} and {length} bytes came, which it cannot have")]
    Length { kind: u8, length: usize },
    #[error("a key update came that says {0}, which is neither 0 nor 1")]
    Request(u8),
    #[error("a key update was not the last of its record")]
    BehindUpdate,
}

impl MalformedMessage {
    /// The alert for this error, from RFC 8446 sections 4.6.3, 5.1 and 6.2.
    pub(crate) fn alert(&self) -> u8 {
        match self {
            Self::Empty | Self::Type(_) | Self::BehindUpdate => 10,
            Self::Length { .. } => 50,
            Self::Request(_) => 47,
        }
    }
}

/// The peer uses new keys from the next record on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUpdate {
    /// The peer also requests new keys from this side.
    pub(crate) requested: bool,
}

/// Parses messages from the content of records. It stores only the position within a message.
#[derive(Debug)]
pub(crate) struct Messages {
    from_server: bool,
    head: [u8; HEAD],
    /// How many bytes of the head came.
    had: usize,
    /// How many bytes of the body are still missing.
    left: usize,
}

impl Messages {
    pub(crate) fn new(from_server: bool) -> Self {
        Self { from_server, head: [0; HEAD], had: 0, left: 0 }
    }

    /// Whether the end of a message is still missing.
    pub(crate) fn is_partial(&self) -> bool {
        self.had > 0
    }

    /// Parses the content of one record. Tickets are skipped because sessions of data connections
    /// are not resumed.
    pub(crate) fn take(&mut self, content: &[u8]) -> Result<Option<KeyUpdate>, MalformedMessage> {
        // RFC 8446 section 5.1 forbids empty handshake records.
        if content.is_empty() {
            return Err(MalformedMessage::Empty);
        }
        let mut rest = content;
        while let Some((&byte, behind)) = rest.split_first() {
            if self.had < HEAD {
                self.head[self.had] = byte;
                self.had += 1;
                rest = behind;
                if self.had == HEAD {
                    self.left = self.length()?;
                }
                continue;
            }
            let count = self.left.min(rest.len());
            rest = &rest[count..];
            self.left -= count;
            if self.left > 0 {
                continue;
            }
            self.had = 0;
            if self.head[0] == KEY_UPDATE {
                // Messages must not span a change of keys (RFC 8446 section 5.1).
                if !rest.is_empty() {
                    return Err(MalformedMessage::BehindUpdate);
                }
                return match byte {
                    0 | 1 => Ok(Some(KeyUpdate { requested: byte == 1 })),
                    other => Err(MalformedMessage::Request(other)),
                };
            }
        }
        Ok(None)
    }

    /// The body length of the message whose head was received.
    fn length(&self) -> Result<usize, MalformedMessage> {
        let [kind, high, middle, low] = self.head;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let right = match kind {
            NEW_SESSION_TICKET if self.from_server => TICKET.contains(&length),
            KEY_UPDATE => length == 1,
            other => return Err(MalformedMessage::Type(other)),
        };
        if right { Ok(length) } else { Err(MalformedMessage::Length { kind, length }) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ticket(length: usize) -> Vec<u8> {
        [&[NEW_SESSION_TICKET, (length >> 16) as u8, (length >> 8) as u8, length as u8][..], &vec![7; length]]
            .concat()
    }

    #[test]
    fn take_skips_tickets_and_finds_updates_in_any_fragmentation() {
        let both = [ticket(14), ticket(300), vec![KEY_UPDATE, 0, 0, 1, 1]].concat();
        for size in 1..both.len() {
            let mut messages = Messages::new(true);
            let mut found = None;
            for piece in both.chunks(size) {
                assert_eq!(found, None);
                found = messages.take(piece).unwrap();
            }
            assert_eq!(found, Some(KeyUpdate { requested: true }));
            assert!(!messages.is_partial());
        }
        let mut messages = Messages::new(true);
        assert_eq!(messages.take(&ticket(*TICKET.end())).unwrap(), None);
        assert!(!messages.is_partial());
    }

    #[test]
    fn take_refuses_invalid_messages_with_the_right_alert() {
        let refused =
            |from_server: bool, content: &[u8]| Messages::new(from_server).take(content).unwrap_err().alert();
        assert_eq!(refused(true, &[]), 10);
        assert_eq!(refused(true, &[1, 0, 0, 0]), 10, "a new hello");
        assert_eq!(refused(true, &[13, 0, 0, 3]), 10, "a certificate request");
        assert_eq!(refused(false, &ticket(20)), 10, "a client's ticket");
        assert_eq!(refused(true, &ticket(13)), 50);
        assert_eq!(refused(true, &[NEW_SESSION_TICKET, 2, 2, 0]), 50);
        assert_eq!(refused(true, &[KEY_UPDATE, 0, 0, 2, 0]), 50);
        assert_eq!(refused(true, &[KEY_UPDATE, 0, 0, 0]), 50);
        assert_eq!(refused(true, &[KEY_UPDATE, 0, 0, 1, 2]), 47);
        assert_eq!(refused(true, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE]), 10);
    }
}
