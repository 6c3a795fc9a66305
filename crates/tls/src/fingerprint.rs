//! The SHA-256 fingerprint of a certificate, as `openssl x509 -fingerprint -sha256` and FTP clients
//! show it.

use std::fmt;
use std::str::FromStr;

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::x509::X509Ref;

/// Written as `SHA256:AB:CD:…`. It is parsed in upper or lower case, with or without the colons and
/// `SHA256:`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

/// The text is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no SHA-256 fingerprint: expected SHA256: and 64 hexadecimal digits, with or without colons"
)]
pub struct NoFingerprint(String);

impl Fingerprint {
    /// Computes the fingerprint of a certificate.
    ///
    /// # Errors
    /// OpenSSL has no SHA-256.
    pub fn of(certificate: &X509Ref) -> Result<Self, ErrorStack> {
        let digest = certificate.digest(MessageDigest::sha256())?;
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.get(..32).unwrap_or(&[0; 32]));
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SHA256")?;
        self.0.iter().try_for_each(|byte| write!(f, ":{byte:02X}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let wrong = || NoFingerprint(text.to_owned());
        let digits = match text.get(..7) {
            Some(label) if label.eq_ignore_ascii_case("sha256:") => &text[7..],
            _ => text,
        };
        let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b':').collect();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(wrong()) };
            *byte = (high * 16 + low) as u8;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parse_accepts_all_notations() {
        let text = format!("SHA256:{}", ["A0"; 32].join(":"));
        let one: Fingerprint = text.parse().unwrap();
        assert_eq!(one.to_string(), text);
        assert_eq!("a0".repeat(32).parse::<Fingerprint>().unwrap(), one);
        assert_eq!(format!("sha256:{}", "a0".repeat(32)).parse::<Fingerprint>().unwrap(), one);
        for wrong in ["", "SHA256:", "a0", &"a0".repeat(31), &"a0".repeat(33), &"ag".repeat(32), "é"] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
