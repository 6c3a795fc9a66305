//! Headers of tokens: RFC 2743 section 3.1 for the initial token, RFC 4121 section 4.2.6.2 for
//! messages.

use crate::{KerberosError, SessionError};

/// 1.2.840.113554.1.2.2 without tag and length.
pub(crate) const KRB5: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
const SPNEGO: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x02];

const APPLICATION: u8 = 0x60;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// Whether an initiator's first token is a GSSAPI token that names its mechanism, rather than a TLS
/// record (GSI).
pub fn is_gss_token(token: &[u8]) -> bool {
    token.first() == Some(&APPLICATION)
}

/// Checks that an initiator's first token is complete and for Kerberos 5.
pub(crate) fn check_first(token: &[u8]) -> Result<(), KerberosError> {
    let wrong = KerberosError::Framing;
    let Some((&APPLICATION, rest)) = token.split_first() else {
        return Err(wrong("it does not begin with 0x60"));
    };
    let (length, rest) = length(rest).ok_or(wrong("its length is not DER"))?;
    if rest.len() < length {
        return Err(wrong("it is cut off"));
    }
    if rest.len() > length {
        return Err(wrong("there is more behind it"));
    }
    let [OBJECT_IDENTIFIER, size, rest @ ..] = rest else { return Err(wrong("it names no mechanism")) };
    let Some(oid) = rest.get(..usize::from(*size)).filter(|oid| !oid.is_empty() && *size < 0x80) else {
        return Err(wrong("it names no mechanism"));
    };
    match oid {
        KRB5 => Ok(()),
        SPNEGO => Err(KerberosError::Mechanism { found: "SPNEGO".into() }),
        other => Err(KerberosError::Mechanism { found: dotted(other) }),
    }
}

/// Parses a definite DER length; returns it and the bytes behind it.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((first.into(), rest));
    }
    let count = usize::from(first & 0x7f);
    if !(1..=4).contains(&count) || rest.len() < count {
        return None;
    }
    let (digits, rest) = rest.split_at(count);
    let value = digits.iter().fold(0, |value, digit| value << 8 | usize::from(*digit));
    Some((value, rest))
}

fn dotted(oid: &[u8]) -> String {
    let mut numbers: Vec<u64> = Vec::new();
    let mut number = 0u64;
    for byte in oid.iter().take(40) {
        number = number << 7 & (u64::MAX >> 1) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.extend([first, number - 40 * first]);
            } else {
                numbers.push(number);
            }
            number = 0;
        }
    }
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

/// The sequence number of a wrapped message, which the message's checksum covers.
pub(crate) fn number(token: &[u8]) -> Result<u64, SessionError> {
    let Some(header) = token.first_chunk::<16>() else { return Err(SessionError::Truncated) };
    let [0x05, 0x04, _, 0xff, _, _, _, _, number @ ..] = header else { return Err(SessionError::Outdated) };
    Ok(u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn first(oid: &[u8], body: &[u8]) -> Vec<u8> {
        let size = 2 + oid.len() + body.len();
        let mut token = vec![APPLICATION, 0x82];
        token.extend(u16::try_from(size).unwrap().to_be_bytes());
        token.extend([OBJECT_IDENTIFIER, u8::try_from(oid.len()).unwrap()]);
        token.extend(oid);
        token.extend(body);
        token
    }

    #[test]
    fn check_first_other_mechanism_or_damage_fails() {
        assert_eq!(check_first(&first(KRB5, &[1, 0, 9, 9])), Ok(()));
        let refused = |token: &[u8]| check_first(token).unwrap_err().to_string();
        assert!(refused(&first(SPNEGO, &[])).contains("SPNEGO"));
        // NTLM.
        let ntlm = [0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x02, 0x0a];
        assert!(refused(&first(&ntlm, &[])).contains("1.3.6.1.4.1.311.2.2.10"));
        let good = first(KRB5, &[1, 0]);
        for end in 0..good.len() {
            assert!(matches!(check_first(&good[..end]), Err(KerberosError::Framing(_))), "{end}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(refused(&longer).contains("more behind"));
        assert!(refused(&[0x16, 3, 1]).contains("0x60"));
        assert!(refused(&[0x60, 0x85, 1, 1, 1, 1, 1]).contains("DER"));
        assert!(refused(&[0x60, 0x80, 0, 0]).contains("DER"));
        assert!(refused(&[0x60, 0x84, 0xff, 0xff, 0xff, 0xff]).contains("cut off"));
        assert!(refused(&first(&[], &[])).contains("no mechanism"));
        assert!(!is_gss_token(&[]) && !is_gss_token(&[0x16]) && is_gss_token(&good));
    }

    #[test]
    fn number_of_message_is_read_from_header() {
        let token = [5, 4, 6, 0xff, 0, 0, 0, 28, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 9];
        assert_eq!(number(&token), Ok(0x1234_5678));
        assert_eq!(number(&token[..15]), Err(SessionError::Truncated));
        assert_eq!(number(&[0x60; 40]), Err(SessionError::Outdated));
    }
}
