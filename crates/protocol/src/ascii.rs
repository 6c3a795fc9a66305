//! TYPE A: lines end with CR LF on the wire and with LF in local text (RFC 959 section 3.1.1.1).
//!
//! Both directions work on a stream that is cut into chunks at any byte. Like GCT, the sender puts
//! a CR before every LF, and the receiver drops a CR only if an LF follows it.

/// Converts local text to the wire form. It keeps no state between chunks, because every LF gets
/// its CR.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToWire;

impl ToWire {
    /// Appends the wire form of `chunk` to `out`: at most twice the length of `chunk`.
    pub fn convert(self, chunk: &[u8], out: &mut Vec<u8>) {
        for line in chunk.split_inclusive(|b| *b == b'\n') {
            match line.split_last() {
                Some((b'\n', text)) => {
                    out.extend_from_slice(text);
                    out.extend_from_slice(b"\r\n");
                }
                _ => out.extend_from_slice(line),
            }
        }
    }
}

/// Converts the wire form to local text. A CR at the end of a chunk is held until the next byte is
/// known.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromWire {
    pending_cr: bool,
}

impl FromWire {
    /// Appends the local form of `chunk` to `out`: at most one byte longer than `chunk`.
    pub fn convert(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        for piece in chunk.split_inclusive(|b| *b == b'\r') {
            if self.pending_cr && piece[0] != b'\n' {
                out.push(b'\r');
            }
            self.pending_cr = piece.last() == Some(&b'\r');
            out.extend_from_slice(&piece[..piece.len() - usize::from(self.pending_cr)]);
        }
    }

    /// Ends the stream. A CR that was held belongs to the text, so it is appended to `out`.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.pending_cr) {
            out.push(b'\r');
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn receive<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let (mut state, mut out) = (FromWire::default(), Vec::new());
        for chunk in chunks {
            state.convert(chunk, &mut out);
        }
        state.finish(&mut out);
        out
    }

    #[test]
    fn to_wire_any_chunks_adds_cr_before_each_lf() {
        let mut out = Vec::new();
        for chunk in [&b"a\nb\r"[..], b"\n\n", b"", b"c"] {
            ToWire.convert(chunk, &mut out);
        }
        assert_eq!(out, b"a\r\nb\r\r\n\r\nc");
    }

    #[test]
    fn from_wire_any_chunks_drops_cr_only_before_lf() {
        assert_eq!(receive([&b"a\r\nb\r"[..], b"\nc\r", b"", b"\r", b"\n\rd\r"]), b"a\nb\nc\r\n\rd\r");
        assert_eq!(receive([&b"\n\r\r"[..]]), b"\n\r\r");
        assert_eq!(receive([]), b"");
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"ab\r\n".to_vec()), 0..60)
    }

    proptest! {
        #[test]
        fn from_wire_any_chunk_size_converts_alike(wire in text(), size in 1usize..5) {
            let expected = {
                let mut expected: Vec<u8> = Vec::new();
                for (i, b) in wire.iter().enumerate() {
                    if !(*b == b'\r' && wire.get(i + 1) == Some(&b'\n')) {
                        expected.push(*b);
                    }
                }
                expected
            };
            prop_assert_eq!(receive(wire.chunks(size)), expected);
        }

        #[test]
        fn from_wire_after_to_wire_restores_text(text in text(), size in 1usize..5) {
            let mut wire = Vec::new();
            for chunk in text.chunks(size) {
                ToWire.convert(chunk, &mut wire);
            }
            prop_assert_eq!(receive([&wire[..]]), text);
        }
    }
}
