//! The place of a transfer in the queue of a server, as lines of its preliminary reply (Ropewalk
//! extension).
//!
//! A server that cannot begin a transfer starts the reply 150 and adds a line when the place has
//! changed: `150-Waiting at the server: position 3 of 7.` The last line of the reply comes when the
//! transfer begins. Any client takes it for a reply of several lines (RFC 959 section 4.2).

use std::fmt;

use crate::reply::Reply;

const BEFORE: &[u8] = b"150-Waiting at the server: position ";

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// From 1.
    pub position: u32,
    /// All that wait.
    pub waiting: u32,
}

impl QueuePlace {
    /// The line, as the beginning of a reply.
    pub fn to_line(self) -> Reply {
        Reply::begin(150, self.to_string())
    }

    /// Of a line without its end. `None`: it says something else.
    pub fn from_line(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line.strip_prefix(BEFORE)?).ok()?;
        let (position, waiting) = text.strip_suffix('.')?.split_once(" of ")?;
        let number = |text: &str| text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok())?;
        Some(Self { position: number(position)?, waiting: number(waiting)? })
    }
}

impl fmt::Display for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting at the server: position {} of {}.", self.position, self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_that_is_printed_is_parsed_to_the_same_and_other_lines_are_none() {
        let place = QueuePlace { position: 3, waiting: 7 };
        let line = place.to_line().to_bytes();
        assert_eq!(line, b"150-Waiting at the server: position 3 of 7.\r\n");
        assert_eq!(QueuePlace::from_line(line.trim_ascii_end()), Some(place));
        for other in [
            "150 Waiting at the server: position 3 of 7.",
            "150-Waiting at the server: position +3 of 7.",
            "150-Waiting at the server: position 3 of 99999999999.",
            "150-Waiting at the server: position  of .",
            "150-Waiting at the server: position 3 of 7",
            "150-Beginning.",
        ] {
            assert_eq!(QueuePlace::from_line(other.as_bytes()), None, "{other}");
        }
    }
}
