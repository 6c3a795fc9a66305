//! Bearer tokens: from the argument of PASS to the rights of a session.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::pkey::{Id, PKey, Private};
use openssl::sign::Signer;
use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_tokens::{Capabilities, Issuer, KeyPlace, Profile, Verifier};

const ISSUER: &str = "https://issuer.example";
const NOW: u64 = 1_700_000_000;

const HEADER_WORDS: &[&[u8]] = &[
    b"{\"alg\":\"EdDSA\",\"kid\":\"key\"}",
    b"{\"alg\":\"",
    b"\"kid\":\"",
    b"none",
    b"EdDSA",
    b"HS256",
    b"RS256",
    b"\"typ\":\"JWT\"",
    b"\"crit\":[",
    b"\",",
    b"\"}",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\u0000",
];

const CLAIM_WORDS: &[&[u8]] = &[
    b"\"iss\":\"https://issuer.example\",",
    b"\"aud\":\"here\",",
    b"\"aud\":[\"x\",\"https://wlcg.cern.ch/jwt/v1/any\"],",
    b"\"wlcg.ver\":\"1.0\",",
    b"\"ver\":\"scitoken:2.0\",",
    b"\"exp\":1700003600,",
    b"\"nbf\":1699999999,",
    b"\"sub\":\"ada\",",
    b"\"scope\":\"",
    b"storage.read:/data ",
    b"storage.modify:/",
    b"read:/a/b/",
    b"write:/",
    b"%2e",
    b"..",
    b"\",",
    b"\"wlcg.groups\":[\"/vo\"],",
    b"\"jti\":\"1\",",
    b"[[[[[[[[",
    b"1e999",
    b"-1",
    b"null,",
    b"\"",
    b"\\ud800",
];

const SCOPE_WORDS: &[&[u8]] = &[
    b"storage.read:/",
    b"storage.create:/",
    b"storage.modify:/",
    b"storage.stage:/",
    b"read:/",
    b"write:/",
    b"data",
    b"/",
    b"..",
    b".",
    b"%2e",
    b"%2F",
    b"%00",
    b"%25",
    b"%20",
    b" ",
    b":",
];

struct Site {
    key: PKey<Private>,
    verifier: Verifier,
}

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        // The key of RFC 8037 appendix A.1.
        let secret = URL_SAFE_NO_PAD.decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").unwrap();
        let key = PKey::private_key_from_raw_bytes(&secret, Id::ED25519).unwrap();
        let x = URL_SAFE_NO_PAD.encode(key.raw_public_key().unwrap());
        let keys = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"key","x":"{x}"}}]}}"#);
        // The verifier checks this file for each token. Its content is always the same.
        let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = directory.join("fuzz-token-keys.json");
        let mut new = tempfile::NamedTempFile::new_in(directory).unwrap();
        new.write_all(keys.as_bytes()).unwrap();
        new.persist(&file).unwrap();
        let issuer = Issuer {
            url: ISSUER.into(),
            audiences: vec!["here".into()],
            any_audience: true,
            keys: KeyPlace::File(file),
        };
        let verifier = Verifier::new(vec![issuer]).unwrap();
        Site { key, verifier }
    })
}

/// These tokens have no valid signature, so all are refused.
#[test]
fn unsigned_token() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        assert!(site().verifier.verify(input, now).is_err());
        let mut choose = Decisions(input);
        let cut = choose.below(64);
        let header = soup(&choose.bytes(cut), HEADER_WORDS);
        let cut = choose.below(256);
        let claims = soup(&choose.bytes(cut), CLAIM_WORDS);
        let token = [header, claims, choose.0.to_vec()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        assert!(site().verifier.verify(token.as_bytes(), now).is_err());
    });
}

/// Random claims, signed by a trusted issuer: an accepted token has an expiry time, a subject that
/// fits on one line of a log, and the right issuer.
#[test]
fn signed_claims() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut claims = b"{".to_vec();
        claims.extend(soup(input, CLAIM_WORDS));
        if claims.ends_with(b",") {
            claims.pop();
        }
        claims.push(b'}');
        let signed = [br#"{"alg":"EdDSA","kid":"key"}"#.to_vec(), claims]
            .map(|part| URL_SAFE_NO_PAD.encode(part))
            .join(".");
        let signature =
            Signer::new_without_digest(&site().key).unwrap().sign_oneshot_to_vec(signed.as_bytes()).unwrap();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        match site().verifier.verify(token.as_bytes(), now) {
            Ok(grant) => {
                assert_eq!(grant.issuer, ISSUER);
                assert!(grant.expires + Duration::from_secs(60) > now);
                assert!(!grant.subject.is_empty() && !grant.subject.contains(char::is_control));
            }
            Err(error) => assert!(!error.to_string().contains(char::is_control)),
        }
    });
}

/// A scope permits only paths beneath its own, by whole components, and paths are in normal form.
#[test]
fn scopes() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let cut = choose.below(16);
        let Ok(at) = VirtualPath::parse(&soup(&choose.bytes(cut), SCOPE_WORDS)) else { return };
        let text = soup(choose.0, SCOPE_WORDS);
        let Ok(text) = std::str::from_utf8(&text) else { return };
        for profile in [Profile::Wlcg, Profile::SciTokens] {
            let Ok(can) = Capabilities::parse(text, profile) else { continue };
            let covered = can.iter().any(|c| at.starts_with(&c.path));
            assert!(covered || !(can.reads(&at) || can.creates(&at) || can.modifies(&at)));
            assert!(can.creates(&at) || !can.modifies(&at));
            assert!(!(can.reads(&at) && can.hides_tree(&at)));
            for capability in can.iter() {
                assert_eq!(VirtualPath::parse(capability.path.as_bytes()).as_ref(), Ok(&capability.path));
                assert!(capability.path.components().all(|c| !matches!(&**c, b"" | b"." | b"..")));
            }
        }
    });
}
