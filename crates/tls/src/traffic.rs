//! The keys of one direction of TLS 1.3, and the protection of single records with them (RFC 8446
//! sections 5.2, 5.3, 7.1-7.3). Keys, secrets and IVs are cleared when they are dropped. No
//! sequence number is used twice with one key.

use openssl::error::ErrorStack;
use openssl::md::{Md, MdRef};
use openssl::pkey::Id;
use openssl::pkey_ctx::{HkdfMode, PkeyCtx};
use ring::aead::{self, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroizing;

use crate::keylog::Secret;
use crate::sys::Cleared;

/// Length of the header of a record in bytes: type, version, length (RFC 8446 section 5.2).
pub(crate) const HEADER: usize = 5;
/// Length of the authentication tag in bytes, with every suite.
pub(crate) const TAG: usize = 16;
/// Length of nonces in bytes, with every suite.
const NONCE: usize = 12;

/// The supported suites of RFC 8446 appendix B.4, which are all that peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Suite {
    /// Finds a suite by OpenSSL's name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "TLS_AES_128_GCM_SHA256" => Some(Self::Aes128Gcm),
            "TLS_AES_256_GCM_SHA384" => Some(Self::Aes256Gcm),
            "TLS_CHACHA20_POLY1305_SHA256" => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// `ring` computes AES-GCM twice as fast as OpenSSL before 3.1 because it uses the processor's
    /// wide instructions.
    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    fn digest(self) -> &'static MdRef {
        match self {
            Self::Aes256Gcm => Md::sha384(),
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => Md::sha256(),
        }
    }
}

/// Why a record could not be protected or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The tag does not match the bytes.
    #[error("the tag of a record is wrong")]
    Forged,
    #[error("2^64 records were protected with one key")]
    Exhausted,
    #[error("a record could not be sealed")]
    Unsealed,
}

/// A direction's traffic secret, and the keys derived from it.
pub(crate) struct Keys {
    suite: Suite,
    secret: Secret,
    key: Cleared<LessSafeKey>,
    iv: Zeroizing<[u8; NONCE]>,
    /// The number of records so far with this key (RFC 8446 section 5.3).
    sequence: u64,
}

impl Keys {
    /// Returns `None` if the secret does not have this suite's length.
    pub(crate) fn new(suite: Suite, secret: Secret) -> Result<Option<Self>, ErrorStack> {
        if secret.len() != suite.digest().size() {
            return Ok(None);
        }
        // The derivation of RFC 8446 section 7.3.
        let key = expand_label(suite, &secret, "key", suite.algorithm().key_len())?;
        let Ok(key) = UnboundKey::new(suite.algorithm(), &key) else { return Ok(None) };
        let mut iv = Zeroizing::new([0; NONCE]);
        iv.copy_from_slice(&expand_label(suite, &secret, "iv", NONCE)?);
        Ok(Some(Self { suite, secret, key: Cleared::new(LessSafeKey::new(key)), iv, sequence: 0 }))
    }

    /// Replaces the keys by those after a key update (RFC 8446 section 7.2).
    pub(crate) fn renew(&mut self) -> Result<(), ErrorStack> {
        let secret = expand_label(self.suite, &self.secret, "traffic upd", self.secret.len())?;
        *self = Self::new(self.suite, secret)?.ok_or_else(ErrorStack::get)?;
        Ok(())
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The nonce of the next record (RFC 8446 section 5.3). The sequence number is used up even if
    /// the record fails, so that no nonce is used twice.
    fn nonce(&mut self) -> Result<Nonce, Failure> {
        let sequence = self.sequence;
        self.sequence = sequence.checked_add(1).ok_or(Failure::Exhausted)?;
        let mut nonce = *self.iv;
        for (byte, number) in nonce[NONCE - 8..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= number;
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Fills `out` with a record. `plain` returns the content in chunks; its argument is the
    /// maximum length of the next chunk. `out` has the record's length: header, content, its type,
    /// tag.
    pub(crate) fn seal<'a>(
        &mut self,
        content_type: u8,
        mut plain: impl FnMut(usize) -> &'a [u8],
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let nonce = self.nonce()?;
        let (header, body) = out.split_at_mut(HEADER);
        header.copy_from_slice(&head(body.len()));
        let (content, tag) = body.split_at_mut(body.len() - TAG);
        let (text, inner_type) = content.split_at_mut(content.len() - 1);
        let mut at = 0;
        while at < text.len() {
            let piece = plain(text.len() - at);
            text[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        inner_type[0] = content_type;
        match self.key.get().seal_in_place_separate_tag(nonce, Aad::from(&*header), content) {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            Err(_) => {
                // The content must not be sent in clear, whatever the caller does.
                content.fill(0);
                return Err(Failure::Unsealed);
            }
        }
        Ok(())
    }

    /// Decrypts a record's body in place. The body must be longer than the tag. Returns content,
    /// type and padding.
    pub(crate) fn open<'a>(&mut self, header: &[u8], body: &'a mut [u8]) -> Result<&'a [u8], Failure> {
        let nonce = self.nonce()?;
        let (content, tag) = body.split_at_mut(body.len() - TAG);
        let tag = Tag::try_from(&*tag).map_err(|_| Failure::Forged)?;
        match self.key.get().open_in_place_separate_tag(nonce, Aad::from(header), tag, content, 0..) {
            Ok(text) => Ok(text),
            Err(_) => Err(Failure::Forged),
        }
    }
}

/// The header of a record whose protected part has `length` bytes (RFC 8446 section 5.2).
fn head(length: usize) -> [u8; HEADER] {
    let [high, low] = (length as u16).to_be_bytes();
    [crate::record13::APPLICATION_DATA, 3, 3, high, low]
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand_label(suite: Suite, secret: &[u8], label: &str, length: usize) -> Result<Secret, ErrorStack> {
    let mut info = Vec::with_capacity(32);
    info.extend_from_slice(&(length as u16).to_be_bytes());
    info.push((b"tls13 ".len() + label.len()) as u8);
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label.as_bytes());
    info.push(0);
    let mut context = PkeyCtx::new_id(Id::HKDF)?;
    context.derive_init()?;
    context.set_hkdf_mode(HkdfMode::EXPAND_ONLY)?;
    context.set_hkdf_md(suite.digest())?;
    context.set_hkdf_key(secret)?;
    context.add_hkdf_info(&info)?;
    let mut out = Zeroizing::new(vec![0; length]);
    context.derive(Some(&mut out))?;
    Ok(out)
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
