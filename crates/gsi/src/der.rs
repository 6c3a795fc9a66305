//! The parts of DER (X.690) that certificates need: a reader, which never panics, and a writer.
//! The crate `der` splits the input into elements. Its types for values are stricter than
//! certificates in use, so the callers interpret the content.

use der::asn1::AnyRef;
use der::{ErrorKind, Header, Reader as _, SliceReader, Tag};

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// Why an encoding is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DerError {
    #[error("the encoding ends early")]
    Truncated,
    #[error("a length is not as DER wants it")]
    Length,
    #[error("tag {expected:#04x} was expected, {found:#04x} came")]
    Tag { expected: u8, found: u8 },
    #[error("bytes follow where the encoding should end")]
    Trailing,
    #[error("a value is out of its range")]
    Value,
}

impl From<der::Error> for DerError {
    fn from(error: der::Error) -> Self {
        match error.kind() {
            ErrorKind::Incomplete { .. } => Self::Truncated,
            ErrorKind::IndefiniteLength | ErrorKind::Overlength | ErrorKind::Overflow => Self::Length,
            _ => Self::Value,
        }
    }
}

/// Reads elements one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

/// One element: its tag, its content, and all of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    pub whole: &'a [u8],
}

impl<'a> Element<'a> {
    pub(crate) fn reader(&self) -> Reader<'a> {
        Reader(self.content)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the next element.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Reads the next element, whatever its tag is.
    pub(crate) fn any(&mut self) -> Result<Element<'a>, DerError> {
        let mut reader = SliceReader::new(self.0)?;
        let header = Header::peek(&reader)?;
        let whole = reader.tlv_bytes()?;
        let tag = *whole.first().ok_or(DerError::Truncated)?;
        let content = whole.len() - usize::try_from(header.length())?;
        self.0 = &self.0[whole.len()..];
        Ok(Element { tag, content: &whole[content..], whole })
    }

    pub(crate) fn expect(&mut self, tag: u8) -> Result<Element<'a>, DerError> {
        match self.peek() {
            Some(found) if found != tag => Err(DerError::Tag { expected: tag, found }),
            _ => self.any(),
        }
    }

    /// Reads the next element if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<Element<'a>>, DerError> {
        if self.peek() == Some(tag) { self.any().map(Some) } else { Ok(None) }
    }

    pub(crate) fn sequence(&mut self) -> Result<Self, DerError> {
        self.expect(SEQUENCE).map(|element| element.reader())
    }

    /// Reads an INTEGER that is not negative and fits into 64 bits.
    pub(crate) fn unsigned(&mut self) -> Result<u64, DerError> {
        unsigned(self.expect(INTEGER)?.content)
    }

    pub(crate) fn end(&self) -> Result<(), DerError> {
        if self.0.is_empty() { Ok(()) } else { Err(DerError::Trailing) }
    }
}

/// The value of the content octets of an INTEGER.
pub(crate) fn unsigned(content: &[u8]) -> Result<u64, DerError> {
    Ok(AnyRef::new(Tag::Integer, content)?.decode_as()?)
}

/// Encodes one element with this tag around `content`.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let octets = length.to_be_bytes();
        let skip = octets.iter().take_while(|&&octet| octet == 0).count();
        out.push(0x80 | (octets.len() - skip) as u8);
        out.extend_from_slice(&octets[skip..]);
    }
    out.extend_from_slice(content);
    out
}

pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, &parts.concat())
}

pub(crate) fn integer(value: u64) -> Vec<u8> {
    let octets = value.to_be_bytes();
    let skip = octets.iter().take(7).take_while(|&&octet| octet == 0).count();
    let mut content = octets[skip..].to_vec();
    if content[0] & 0x80 != 0 {
        content.insert(0, 0);
    }
    element(INTEGER, &content)
}

/// Formats the content of an OBJECT IDENTIFIER as dotted numbers.
pub(crate) fn dotted(content: &[u8]) -> String {
    let mut out = String::new();
    let mut value: u64 = 0;
    for &octet in content {
        value = value << 7 | u64::from(octet & 0x7f);
        if octet & 0x80 != 0 {
            continue;
        }
        if out.is_empty() {
            let first = (value / 40).min(2);
            out = format!("{first}.{}", value - first * 40);
        } else {
            out.push('.');
            out.push_str(&value.to_string());
        }
        value = 0;
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writer_output_is_read_back() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let written = element(OCTET_STRING, &vec![7; length]);
            let mut reader = Reader::new(&written);
            assert_eq!(reader.expect(OCTET_STRING).unwrap().content.len(), length);
            reader.end().unwrap();
        }
        for value in [0, 1, 127, 128, 255, 256, u64::MAX] {
            assert_eq!(Reader::new(&integer(value)).unsigned().unwrap(), value);
        }
        assert_eq!(dotted(&[0x2b, 6, 1, 5, 5, 7, 1, 14]), "1.3.6.1.5.5.7.1.14");
    }

    proptest! {
        #[test]
        fn reader_on_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            while let Ok(element) = reader.any() {
                let _ = element.reader().any();
                let _ = unsigned(element.content);
                let _ = dotted(element.content);
            }
        }
    }
}
