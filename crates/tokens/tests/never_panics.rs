//! Random input: the verifier always returns a result, and never accepts a token without a valid
//! signature.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::OnceLock;

use common::*;
use proptest::prelude::*;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_tokens::{Capabilities, Profile, Token};

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| Site::new(&key_set(&[ec256(), rsa()])))
}

fn good() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| rsa().token(&claims()))
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn verify_random_bytes_fails(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(site().verifier.verify(&bytes, now()).is_err());
        let _ = Token::new(&bytes);
    }

    #[test]
    fn verify_token_with_one_byte_changed_fails(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut token = good().as_bytes().to_vec();
        let at = at.index(token.len());
        prop_assume!(token[at] != to);
        token[at] = to;
        prop_assert!(site().verifier.verify(&token, now()).is_err());
    }

    #[test]
    fn verify_unsigned_random_token_fails(header in json(), claims in json(), signature in prop::collection::vec(any::<u8>(), 0..80)) {
        let token = format!("{}.{}.{}", encode(header.to_string()), encode(claims.to_string()), encode(&signature));
        prop_assert!(site().verifier.verify(token.as_bytes(), now()).is_err());
    }

    /// A signed token with one arbitrary claim.
    #[test]
    fn verify_random_claim_never_panics(
        name in prop::sample::select(vec!["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "scope", "wlcg.ver", "ver", "wlcg.groups"]),
        value in json(),
    ) {
        let mut claims = claims();
        claims[name] = value;
        let _ = site().verifier.verify(ec256().token(&claims).as_bytes(), now());
    }

    /// No scope covers a path outside of its own path.
    #[test]
    fn scope_covers_only_paths_beneath_its_own(text in "(storage\\.(read|modify|create)|read|write):[/a.%2eEfF~]{0,12}( [a-z.:/]{0,12})?", at in "(/[ab.]{1,3}){1,4}") {
        for profile in [Profile::Wlcg, Profile::SciTokens] {
            let Ok(can) = Capabilities::parse(&text, profile) else { continue };
            let path = VirtualPath::parse(at.as_bytes()).unwrap();
            for right in [can.reads(&path), can.creates(&path), can.modifies(&path)] {
                prop_assert!(!right || can.iter().any(|c| path.starts_with(&c.path)));
            }
            for capability in can.iter() {
                let text = capability.path.to_string();
                prop_assert!(text.starts_with('/') && !text.contains("//") && !text.split('/').any(|c| c == ".." || c == "."));
            }
        }
    }
}
