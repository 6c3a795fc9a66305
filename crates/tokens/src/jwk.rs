//! Public keys of an issuer: a JWK set (RFC 7517, RFC 7518 section 6, RFC 8037), and the
//! verification of signatures with them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::rsa::Rsa;
use openssl::sign::Verifier;

use crate::error::TokenError;
use crate::json::{Object, Value};
use crate::jws::{Algorithm, LONGEST_KEY_NAME, Unverified};
use crate::shown::shown;

/// Maximum length of a JWK set, in bytes.
pub(crate) const LONGEST_SET: usize = 256 << 10;
/// Maximum number of keys in a set; issuers have one to five.
const MOST_KEYS: usize = 64;
const MOST_VALUES: usize = 4000;
/// Accepted sizes of RSA keys, in bits: smaller ones are not safe (RFC 7518 section 3.3), larger
/// ones are slow.
const RSA_BITS: std::ops::RangeInclusive<i32> = 2048..=8192;

pub(crate) struct KeySet(Vec<Key>);

struct Key {
    name: Option<String>,
    algorithm: Algorithm,
    key: PKey<Public>,
}

impl KeySet {
    /// Parses a JWK set. Keys of unknown types or for other uses are ignored, as RFC 7517 section 5
    /// requires; a set without any usable key is an error.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > LONGEST_SET {
            return Err(format!("it is longer than {LONGEST_SET} bytes"));
        }
        let set = Object::parse(text, MOST_VALUES).map_err(|e| format!("it is no set of keys: {e}"))?;
        let Some(Value::Array(keys)) = set.get("keys") else {
            return Err("it is no set of keys: there is no list \"keys\"".into());
        };
        if keys.len() > MOST_KEYS {
            return Err(format!("it has more than {MOST_KEYS} keys"));
        }
        let keys: Vec<Key> = keys.iter().filter_map(Key::parse).collect();
        if keys.is_empty() {
            return Err("none of its keys can verify RS256, ES256, ES384 or EdDSA".into());
        }
        Ok(Self(keys))
    }

    /// Whether the set may contain the key: true if the token names no key, or a key in the set has
    /// this name.
    pub(crate) fn knows(&self, name: Option<&str>) -> bool {
        name.is_none() || self.0.iter().any(|key| key.name.as_deref() == name)
    }

    pub(crate) fn verify(&self, token: &Unverified<'_>) -> Result<(), TokenError> {
        let fits = |key: &&Key| key.algorithm == token.algorithm;
        let key = match token.key.as_deref() {
            Some(name) => {
                let named = || self.0.iter().filter(|key| key.name.as_deref() == Some(name));
                if named().next().is_none() {
                    return Err(TokenError::UnknownKey(shown(name)));
                }
                named().find(fits).ok_or(TokenError::KeyType(token.algorithm))?
            }
            None => {
                let mut fitting = self.0.iter().filter(fits);
                match (fitting.next(), fitting.next()) {
                    (Some(key), None) => key,
                    (None, _) => return Err(TokenError::KeyType(token.algorithm)),
                    (Some(_), Some(_)) => return Err(TokenError::AmbiguousKey),
                }
            }
        };
        match key.verify(token.signed, &token.signature) {
            Ok(true) => Ok(()),
            // A signature that OpenSSL cannot parse is also invalid.
            Ok(false) | Err(_) => Err(TokenError::Signature),
        }
    }
}

impl Key {
    fn parse(value: &Value) -> Option<Self> {
        let Value::Object(jwk) = value else { return None };
        let signs = jwk.get("use").is_none_or(|usage| *usage == Value::String("sig".into()));
        let verifies = match jwk.get("key_ops") {
            None => true,
            Some(Value::Array(operations)) => operations.contains(&Value::String("verify".into())),
            Some(_) => false,
        };
        if !signs || !verifies {
            return None;
        }
        let (algorithm, key) = Self::public(jwk)?;
        // If the key names an algorithm, it must be the key's own: a key is for one algorithm only
        // (RFC 8725 section 3.1).
        if jwk.get("alg").is_some() && jwk.string("alg").and_then(Algorithm::of_name) != Some(algorithm) {
            return None;
        }
        let name = match jwk.get("kid") {
            None => None,
            Some(Value::String(name)) if name.len() <= LONGEST_KEY_NAME => Some(name.clone()),
            Some(_) => return None,
        };
        Some(Self { name, algorithm, key })
    }

    /// Builds the public key. Its type determines the algorithm.
    fn public(jwk: &Object) -> Option<(Algorithm, PKey<Public>)> {
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(jwk.string(name)?).ok();
        let number = |name: &str| BigNum::from_slice(&bytes(name)?).ok();
        match (jwk.string("kty")?, jwk.string("crv")) {
            ("RSA", _) => {
                let (n, e) = (number("n")?, number("e")?);
                // With an exponent of 1, each message would be its own signature.
                let sane =
                    RSA_BITS.contains(&n.num_bits()) && e.is_bit_set(0) && (2..=64).contains(&e.num_bits());
                let key = Rsa::from_public_components(n, e).and_then(PKey::from_rsa).ok()?;
                sane.then_some((Algorithm::Rs256, key))
            }
            ("EC", Some(curve)) => {
                let (nid, algorithm) = match curve {
                    "P-256" => (Nid::X9_62_PRIME256V1, Algorithm::Es256),
                    "P-384" => (Nid::SECP384R1, Algorithm::Es384),
                    _ => return None,
                };
                let group = EcGroup::from_curve_name(nid).ok()?;
                // This fails for a point that is not on the curve.
                let key =
                    EcKey::from_public_key_affine_coordinates(&group, &*number("x")?, &*number("y")?).ok()?;
                key.check_key().ok()?;
                Some((algorithm, PKey::from_ec_key(key).ok()?))
            }
            ("OKP", Some("Ed25519")) => {
                let key = PKey::public_key_from_raw_bytes(&bytes("x")?, Id::ED25519).ok()?;
                Some((Algorithm::EdDsa, key))
            }
            // Other types are ignored, most importantly symmetric keys.
            _ => None,
        }
    }

    fn verify(&self, signed: &[u8], signature: &[u8]) -> Result<bool, ErrorStack> {
        let digest = match self.algorithm {
            Algorithm::EdDsa => {
                return Verifier::new_without_digest(&self.key)?.verify_oneshot(signature, signed);
            }
            Algorithm::Rs256 | Algorithm::Es256 => MessageDigest::sha256(),
            Algorithm::Es384 => MessageDigest::sha384(),
        };
        let mut verifier = Verifier::new(digest, &self.key)?;
        verifier.update(signed)?;
        let half = match self.algorithm {
            Algorithm::Es256 => 32,
            Algorithm::Es384 => 48,
            Algorithm::Rs256 | Algorithm::EdDsa => return verifier.verify(signature),
        };
        // The signature is two numbers of fixed length (RFC 7518 section 3.4), but OpenSSL expects
        // DER.
        if signature.len() != 2 * half {
            return Ok(false);
        }
        let (r, s) = signature.split_at(half);
        let pair = EcdsaSig::from_private_components(BigNum::from_slice(r)?, BigNum::from_slice(s)?)?;
        verifier.verify(&pair.to_der()?)
    }
}
