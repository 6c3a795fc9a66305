//! `SITE DATAKEY number secret`, a Ropewalk extension: a one-time key for the next data channel.
//! With it, the connections of the channel prove to each other that they belong to it.
//!
//! The server accepts the command only on a protected control connection. A key serves one channel:
//! that of the next PASV, EPSV, SPAS, PORT, EPRT or SPOR. The key's number is sent in clear over
//! the data connections and identifies the channel. It is higher than the numbers of all earlier
//! keys of the session, so that a server has to remember only one number to refuse a key that was
//! already used.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::command::arguments::Arguments;

/// Length of the secret in bytes.
pub const SECRET: usize = 32;
/// Length of the number in bytes.
const NUMBER: usize = 8;

/// A one-time key for a data channel. `Debug` never shows its secret, and the secret is cleared on
/// drop.
#[derive(Clone)]
pub struct DataKey {
    number: u64,
    /// On the heap, so that moving the key leaves no copy of the secret behind.
    secret: Box<Zeroizing<[u8; SECRET]>>,
}

impl DataKey {
    /// Makes a key of a `secret`, which has to be random.
    pub fn new(number: u64, secret: &[u8; SECRET]) -> Self {
        Self { number, secret: Box::new(Zeroizing::new(*secret)) }
    }

    /// Makes a key whose secret `make` writes in place; `make` returns the number.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn made_by<E>(make: impl FnOnce(&mut [u8; SECRET]) -> Result<u64, E>) -> Result<Self, E> {
        let mut secret = Box::new(Zeroizing::new([0; SECRET]));
        let number = make(&mut secret)?;
        Ok(Self { number, secret })
    }

    /// The number of the key. It is public, and higher than the numbers of all earlier keys of the
    /// session.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The secret, from which the proof of a connection is derived.
    pub fn secret(&self) -> &[u8; SECRET] {
        &self.secret
    }

    /// Parses 16 hexadecimal digits, a space, and 64 hexadecimal digits.
    pub(crate) fn parse(mut args: Arguments<'_>) -> Option<Self> {
        let number: [u8; NUMBER] = bytes(args.word().ok()?)?;
        let mut secret: [u8; SECRET] = bytes(args.word().ok()?)?;
        let key = args.is_empty().then(|| Self::new(u64::from_be_bytes(number), &secret));
        secret.zeroize();
        key
    }

    /// Prints the form that [`Self::parse`] reads.
    pub(crate) fn print(&self) -> Zeroizing<String> {
        // The full capacity is reserved, because a string that grows would leave copies of the
        // secret behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * NUMBER + 1 + 2 * SECRET));
        push_hex(&mut text, &self.number.to_be_bytes());
        text.push(' ');
        push_hex(&mut text, self.secret());
        text
    }
}

/// Compares in constant time, wherever the keys differ.
impl PartialEq for DataKey {
    fn eq(&self, other: &Self) -> bool {
        let differing = self.secret().iter().zip(other.secret()).fold(0, |all, (a, b)| all | (a ^ b));
        (self.number == other.number) & (differing == 0)
    }
}

impl Eq for DataKey {}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey({:016x} ***)", self.number)
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    text.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]));
}

/// Decodes exactly `N` bytes from hexadecimal digits.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = char::from(*digit).to_digit(16)?;
            *byte = *byte << 4 | value as u8;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bstr::ByteSlice;
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Option<DataKey> {
        DataKey::parse(Arguments::new(text))
    }

    #[test]
    fn data_key_accepts_only_the_exact_form() {
        let secret = "5a".repeat(SECRET);
        let good = format!("00000000000000ff {secret}");
        assert_eq!(read(good.as_bytes()), Some(DataKey::new(255, &[0x5a; SECRET])));
        assert!(read(format!(" 00000000000000FF  {} ", secret.to_uppercase()).as_bytes()).is_some());
        for wrong in [
            String::new(),
            "00000000000000ff".into(),
            format!("ff {secret}"),
            format!("+0000000000000ff {secret}"),
            format!("000000000000000ff {secret}"),
            format!("00000000000000fg {secret}"),
            format!("00000000000000ff {}", &secret[1..]),
            format!("00000000000000ff {secret}0"),
            format!("{good} x"),
            format!("00000000000000ff {}zz", &secret[2..]),
        ] {
            assert_eq!(read(wrong.as_bytes()), None, "{}", wrong.as_bytes().as_bstr());
        }
    }

    #[test]
    fn data_key_debug_hides_the_secret() {
        let key = DataKey::new(7, &[0xab; SECRET]);
        assert_eq!(format!("{key:?}"), "DataKey(0000000000000007 ***)");
    }

    #[test]
    fn data_key_equality_compares_number_and_secret() {
        let key = DataKey::new(7, &[1; SECRET]);
        let mut other = [1; SECRET];
        other[31] = 2;
        assert!(key == key.clone() && key != DataKey::new(8, &[1; SECRET]) && key != DataKey::new(7, &other));
    }

    proptest! {
        #[test]
        fn data_key_printed_is_parsed_back(number: u64, secret: [u8; SECRET]) {
            let key = DataKey::new(number, &secret);
            prop_assert_eq!(read(key.print().as_bytes()), Some(key));
        }

        #[test]
        fn data_key_on_any_input_does_not_panic(text: Vec<u8>) {
            let _ = read(&text);
        }
    }
}
