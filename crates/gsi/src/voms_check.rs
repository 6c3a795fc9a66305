//! Verifies the claims of a VOMS attribute certificate: it must be signed by a server that may
//! speak for the virtual organisation, be issued to this holder, and be valid now.
//!
//! The file `vomsdir/VO/HOST.lsc` names the servers that may speak for it: the subject of the
//! server's certificate and then that of its issuer, one per line.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use openssl::hash::MessageDigest;
use openssl::sign::Verifier;
use openssl::x509::X509;

use crate::certificate::Details;
use crate::chain_error::ChainError;
use crate::der;
use crate::name;
use crate::oid;
use crate::time::Timestamp;
use crate::trust::Trust;
use crate::voms::VomsClaim;

/// Largest list of signers that is read, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub enum VomsError {
    #[error("it does not say which VOMS server made it")]
    NoAuthority,
    #[error("{path} is not there: this machine does not know who speaks for the virtual organisation")]
    NoSigners { path: PathBuf },
    #[error("{path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("it does not have the certificate of who signed it")]
    NoCertificate,
    #[error("it is signed by {subject} of {issuer}, which {path} does not name")]
    Signer { subject: String, issuer: String, path: PathBuf },
    #[error("who signed it is not believed: {0}")]
    Chain(#[from] ChainError),
    #[error("its signature is wrong")]
    Signature,
    #[error("it is signed in a way that is not known")]
    Algorithm,
    #[error("it was made for another certificate than that of {holder}")]
    Holder { holder: String },
    #[error("it is only for hosts that it names, which are not looked at here")]
    Targets,
    #[error("it has a critical extension that is not understood: {oid}")]
    CriticalExtension { oid: String },
    #[error("it is valid from {from} to {to}")]
    Time { from: Timestamp, to: Timestamp },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] openssl::error::ErrorStack),
}

impl VomsClaim {
    /// Verifies the claim. `holder` is the end-entity certificate of the proxy with the claim;
    /// `directory` is the `vomsdir`.
    ///
    /// # Errors
    /// The signers of the organisation are unknown. Or the signer is not one of them, is not
    /// trusted, or did not sign this claim. Or the claim is for another holder, another time or
    /// certain hosts, or has an unsupported critical extension.
    pub fn verify(
        &self,
        holder: &X509,
        directory: &Path,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<(), VomsError> {
        let path = self.signers_file(directory)?;
        let text = match ropewalk_files::read_text(&path, MAX_FILE) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(VomsError::NoSigners { path }),
            Err(source) => return Err(VomsError::Unreadable { path, source }),
        };
        let mut chain = Vec::new();
        for der in &self.evidence.signers {
            chain.push(X509::from_der(der)?);
        }
        let signer = chain.first().ok_or(VomsError::NoCertificate)?;
        let unreadable = |source| ChainError::Unreadable { index: 0, source };
        let subject = name::one_line(signer.subject_name()).map_err(unreadable)?;
        let issuer = name::one_line(signer.issuer_name()).map_err(unreadable)?;
        if !may_speak(&text, &subject, &issuer) {
            return Err(VomsError::Signer { subject, issuer, path });
        }
        trust.verify(&chain, now)?;
        let key = signer.public_key()?;
        let mut verifier = Verifier::new(digest(&self.evidence.algorithm)?, &key)?;
        // A signature that cannot be parsed counts as a wrong one.
        if !verifier.verify_oneshot(&self.evidence.signature, &self.evidence.info).unwrap_or(false) {
            return Err(VomsError::Signature);
        }
        let details = Details::of(holder).map_err(unreadable)?;
        let names = &self.evidence.holder_names;
        // Most VOMS servers identify the certificate by its issuer, some by its own subject.
        let named = names.contains(&details.issuer_der) || names.contains(&details.subject_der);
        if !named || self.evidence.holder_serial != details.serial {
            return Err(VomsError::Holder { holder: details.subject });
        }
        match self.evidence.critical.as_deref() {
            None => {}
            Some(oid::TARGETS) => return Err(VomsError::Targets),
            Some(other) => return Err(VomsError::CriticalExtension { oid: der::dotted(other) }),
        }
        if now < self.not_before || now > self.not_after {
            return Err(VomsError::Time { from: self.not_before, to: self.not_after });
        }
        Ok(())
    }

    /// Returns `VO/HOST.lsc` for `VO://HOST:PORT`.
    fn signers_file(&self, directory: &Path) -> Result<PathBuf, VomsError> {
        let authority = self.authority.as_deref().ok_or(VomsError::NoAuthority)?;
        let (organisation, rest) = authority.split_once("://").ok_or(VomsError::NoAuthority)?;
        let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
        // Both parts become file names.
        let fits = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty()
                && !text.starts_with('.')
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if !fits(organisation) || !fits(host) {
            return Err(VomsError::NoAuthority);
        }
        Ok(directory.join(organisation).join(format!("{host}.lsc")))
    }
}

/// Whether a chain of the list begins with these two subjects. Lines of hyphens separate the
/// chains.
fn may_speak(list: &str, subject: &str, issuer: &str) -> bool {
    let mut chains: Vec<Vec<&str>> = vec![Vec::new()];
    for line in list.lines().map(str::trim) {
        if line.starts_with("--") {
            chains.push(Vec::new());
        } else if line.starts_with('/')
            && let Some(chain) = chains.last_mut()
        {
            chain.push(line);
        }
    }
    chains.iter().any(|chain| match chain[..] {
        [first, second, ..] => name::same(first, subject) && name::same(second, issuer),
        _ => false,
    })
}

fn digest(algorithm: &[u8]) -> Result<MessageDigest, VomsError> {
    match algorithm {
        oid::SHA1_RSA => Ok(MessageDigest::sha1()),
        oid::SHA256_RSA | oid::SHA256_ECDSA => Ok(MessageDigest::sha256()),
        oid::SHA384_RSA => Ok(MessageDigest::sha384()),
        oid::SHA512_RSA => Ok(MessageDigest::sha512()),
        _ => Err(VomsError::Algorithm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn may_speak_matches_subject_and_issuer_of_one_chain() {
        let list = "/O=G/CN=voms one\n/O=G/CN=CA\n------ NEXT CHAIN ------\n/O=H/CN=v/E=a@b\n/O=H/CN=CA\n";
        assert!(may_speak(list, "/O=G/CN=voms one", "/O=G/CN=CA"));
        assert!(may_speak(list, "/O=H/CN=v/emailAddress=a@b", "/O=H/CN=CA"));
        assert!(!may_speak(list, "/O=G/CN=voms one", "/O=H/CN=CA"));
        assert!(!may_speak("/O=G/CN=voms one\n", "/O=G/CN=voms one", ""));
    }
}
