//! Netlink messages and their attributes, in the host's byte order.

const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;

/// A request under construction.
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Begins a request of type `kind` with these flags and this fixed part. `NLM_F_REQUEST` is
    /// added.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        Self { bytes }.padded()
    }

    /// Appends an attribute. `value` has to be shorter than 64 KiB.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        debug_assert!(value.len() < usize::from(u16::MAX) - 4);
        self.bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.padded()
    }

    fn padded(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        let flags = flags | u16_at(&self.bytes, 6).unwrap_or(0);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Iterates over the messages of a reply, up to the first malformed one.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            body: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Iterates over the attributes of a message (type and value), up to the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.0, 0)?);
        // Two bits of the type are flags.
        let attribute = (u16_at(self.0, 2)? & 0x3fff, self.0.get(4..length)?);
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn request_built_is_parsed_back() {
        let bytes = Request::new(20, 0x400, &[1, 2, 3, 4]).with(1, &[9; 5]).with(2, b"ab").finish(4, 7);
        let mut all = messages(&bytes);
        let message = all.next().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (20, 0x405, 7));
        assert_eq!(message.body[..4], [1, 2, 3, 4]);
        let found: Vec<_> = Attributes(&message.body[4..]).collect();
        assert_eq!(found, [(1, &[9; 5][..]), (2, b"ab")]);
        assert!(all.next().is_none());
    }

    #[test]
    fn messages_and_attributes_when_malformed_end() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[1, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[255; 32]).count(), 0);
        assert_eq!(Attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(Attributes(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(Attributes(&[5, 0, 1, 0, 9, 0, 0, 0, 4, 0, 2, 0]).count(), 2);
    }
}
