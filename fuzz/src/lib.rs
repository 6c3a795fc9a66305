//! Helpers that the harnesses in `tests/` share.

#![forbid(unsafe_code)]

// Instrumented code does not link without this crate.
#[cfg(test)]
use bolero as _;

/// Number of inputs of each harness in a normal test; `BOLERO_RANDOM_ITERATIONS` overrides it.
pub const ITERATIONS: usize = 5000;

/// Makes text of `input`: a byte below 128 is taken literally, any other stands for a word of the
/// dictionary.
pub fn soup(input: &[u8], words: &[&[u8]]) -> Vec<u8> {
    let mut text = Vec::with_capacity(input.len() * 2);
    for &b in input {
        match b.checked_sub(128) {
            None => text.push(b),
            Some(n) => text.extend_from_slice(words[usize::from(n) % words.len()]),
        }
    }
    text
}

/// Takes small decisions from `input`, one byte each; 0 after the end of the input.
pub struct Decisions<'a>(pub &'a [u8]);

impl Decisions<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// The next bytes, up to `n` of them.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        bytes.to_vec()
    }
}
