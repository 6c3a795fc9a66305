//! A synthetic issuer: keys, their JWK sets, signed tokens.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sign::Signer;
use ropewalk_tokens::{Issuer, KeyPlace, Verifier};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const ISSUER: &str = "https://issuer.example/vo";
pub const AUDIENCE: &str = "gsiftp://data.example:2811";
/// The current time in all tests, in seconds since 1970.
pub const NOW: u64 = 1_700_000_000;

pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub struct Key {
    pub name: &'static str,
    pub algorithm: &'static str,
    pub key: PKey<Private>,
}

pub fn rsa() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::rsa("rsa", 2048))
}

pub fn ec256() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::ec("p256", "ES256", Nid::X9_62_PRIME256V1))
}

pub fn ec384() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::ec("p384", "ES384", Nid::SECP384R1))
}

pub fn ed25519() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key { name: "ed", algorithm: "EdDSA", key: PKey::generate_ed25519().unwrap() })
}

impl Key {
    pub fn rsa(name: &'static str, bits: u32) -> Self {
        Self { name, algorithm: "RS256", key: PKey::from_rsa(Rsa::generate(bits).unwrap()).unwrap() }
    }

    pub fn ec(name: &'static str, algorithm: &'static str, curve: Nid) -> Self {
        let group = EcGroup::from_curve_name(curve).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        Self { name, algorithm, key }
    }

    pub fn jwk(&self) -> Value {
        let mut jwk = match self.algorithm {
            "RS256" => {
                let rsa = self.key.rsa().unwrap();
                json!({"kty": "RSA", "n": encode(rsa.n().to_vec()), "e": encode(rsa.e().to_vec())})
            }
            "EdDSA" => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(self.key.raw_public_key().unwrap())})
            }
            algorithm => {
                let (curve, size) = if algorithm == "ES256" { ("P-256", 32) } else { ("P-384", 48) };
                let key = self.key.ec_key().unwrap();
                let (mut x, mut y) = (BigNum::new().unwrap(), BigNum::new().unwrap());
                let mut context = BigNumContext::new().unwrap();
                key.public_key().affine_coordinates(key.group(), &mut x, &mut y, &mut context).unwrap();
                let number = |n: &BigNum| encode(n.to_vec_padded(size).unwrap());
                json!({"kty": "EC", "crv": curve, "x": number(&x), "y": number(&y)})
            }
        };
        jwk["kid"] = self.name.into();
        jwk["use"] = "sig".into();
        jwk
    }

    pub fn sign(&self, signed: &[u8]) -> Vec<u8> {
        if self.algorithm == "EdDSA" {
            return Signer::new_without_digest(&self.key).unwrap().sign_oneshot_to_vec(signed).unwrap();
        }
        let digest =
            if self.algorithm == "ES384" { MessageDigest::sha384() } else { MessageDigest::sha256() };
        let signature = Signer::new(digest, &self.key).unwrap().sign_oneshot_to_vec(signed).unwrap();
        if self.algorithm == "RS256" {
            return signature;
        }
        let size = if self.algorithm == "ES256" { 32 } else { 48 };
        let pair = EcdsaSig::from_der(&signature).unwrap();
        [pair.r().to_vec_padded(size).unwrap(), pair.s().to_vec_padded(size).unwrap()].concat()
    }

    pub fn header(&self) -> Value {
        json!({"alg": self.algorithm, "kid": self.name, "typ": "JWT"})
    }

    pub fn token(&self, claims: &Value) -> String {
        self.token_of(&self.header().to_string(), &claims.to_string())
    }

    pub fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

pub fn key_set(keys: &[&Key]) -> Value {
    json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()})
}

/// Valid claims.
pub fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "ada", "aud": AUDIENCE, "wlcg.ver": "1.0", "jti": "t1",
        "iat": NOW - 60, "nbf": NOW - 60, "exp": NOW + 3600,
        "scope": "openid storage.read:/data storage.create:/up/",
        "wlcg.groups": ["/vo", "/vo/admins"],
    })
}

/// The valid claims with changes; `null` removes a claim.
pub fn with(changes: Value) -> Value {
    let mut claims = claims();
    let all = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            all.remove(name);
        } else {
            all.insert(name.clone(), value.clone());
        }
    }
    claims
}

pub fn issuer(keys: KeyPlace) -> Issuer {
    Issuer { url: ISSUER.into(), audiences: vec![AUDIENCE.into()], any_audience: true, keys }
}

/// A verifier with a key file.
pub struct Site {
    pub directory: TempDir,
    pub verifier: Verifier,
}

impl Site {
    pub fn new(keys: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.json");
        write(&file, &keys.to_string());
        let verifier = Verifier::new(vec![issuer(KeyPlace::File(file))]).unwrap();
        Self { directory, verifier }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path().join("keys.json")
    }

    /// The reason for which a token is refused. Panics if it is accepted.
    pub fn error(&self, token: &str) -> String {
        match self.verifier.verify(token.as_bytes(), now()) {
            Err(error) => error.to_string(),
            Ok(grant) => panic!("accepted: {grant:?}"),
        }
    }
}

pub fn write(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    // Replace the file by a new one, as editors do.
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::rename(new, path).unwrap();
}
