//! Tokens that are refused, and the error messages.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use ropewalk_tokens::{Issuer, KeyPlace, SetupError, Verifier};
use serde_json::{Value, json};

fn site() -> Site {
    Site::new(&key_set(&[rsa(), ec256()]))
}

/// Changes claims, signs the token correctly, and checks the reason of the refusal.
fn refused(changes: Value, reason: &str) {
    let error = site().error(&ec256().token(&with(changes.clone())));
    assert!(error.contains(reason), "{changes}: {error}");
}

fn refused_header(header: &str, reason: &str) {
    let error = site().error(&ec256().token_of(header, &claims().to_string()));
    assert!(error.contains(reason), "{header}: {error}");
}

#[test]
fn verify_alg_none_fails() {
    let site = site();
    for name in ["none", "None", "NONE", "nOnE"] {
        let signed = format!("{}.{}", encode(json!({"alg": name}).to_string()), encode(claims().to_string()));
        assert!(site.error(&format!("{signed}.")).contains("only RS256"), "{name}");
        assert!(site.error(&format!("{signed}.AAAA")).contains("only RS256"), "{name}");
    }
    let good = ec256().token(&claims());
    let unsigned = &good[..=good.rfind('.').unwrap()];
    assert!(site.error(unsigned).contains("not signed"));
}

/// A well-known attack: the public key, which is no secret, is used as the secret of a symmetric
/// signature.
#[test]
fn verify_hs256_with_public_key_as_secret_fails() {
    let site = site();
    let secrets = [
        rsa().key.public_key_to_pem().unwrap(),
        rsa().key.public_key_to_der().unwrap(),
        rsa().jwk().to_string().into(),
    ];
    for secret in secrets {
        let key = PKey::hmac(&secret).unwrap();
        for (name, digest) in [("HS256", MessageDigest::sha256()), ("HS512", MessageDigest::sha512())] {
            let header = json!({"alg": name, "kid": "rsa"}).to_string();
            let signed = format!("{}.{}", encode(header), encode(claims().to_string()));
            let mac = Signer::new(digest, &key).unwrap().sign_oneshot_to_vec(signed.as_bytes()).unwrap();
            assert!(site.error(&format!("{signed}.{}", encode(mac))).contains("only RS256"));
        }
    }
}

#[test]
fn verify_algorithm_of_another_key_type_fails() {
    refused_header(r#"{"alg":"RS256","kid":"p256"}"#, "not one for RS256");
    refused_header(r#"{"alg":"ES384","kid":"p256"}"#, "not one for ES384");
    refused_header(r#"{"alg":"ES256","kid":"rsa"}"#, "not one for ES256");
    refused_header(r#"{"alg":"EdDSA"}"#, "not one for EdDSA");
    refused_header(r#"{"alg":"es256","kid":"p256"}"#, "only RS256");
    refused_header(r#"{"alg":"RS512","kid":"p256"}"#, "only RS256");
    // The key states its algorithm.
    let mut jwk = rsa().jwk();
    jwk["alg"] = "PS256".into();
    let site = Site::new(&json!({"keys": [jwk, ec256().jwk()]}));
    assert!(site.error(&rsa().token(&claims())).contains("no key"));
}

#[test]
fn verify_unknown_or_malformed_kid_fails() {
    let long = json!({"alg": "ES256", "kid": "x".repeat(300)}).to_string();
    for header in [
        r#"{"alg":"ES256","kid":"../../../../dev/null"}"#,
        r#"{"alg":"ES256","kid":"p256\u0000"}"#,
        r#"{"alg":"ES256","kid":"x' UNION SELECT 'key"}"#,
        r#"{"alg":"ES256","kid":"P256"}"#,
        r#"{"alg":"ES256","kid":"https://evil.example/jwks"}"#,
    ] {
        refused_header(header, "has no key");
    }
    for header in [
        r#"{"alg":"ES256","kid":""}"#,
        r#"{"alg":"ES256","kid":["p256"]}"#,
        r#"{"alg":"ES256","kid":null}"#,
        &long,
    ] {
        refused_header(header, "kid is no string");
    }
    // The token brings its own keys.
    let ours = Key::ec("ours", "ES256", Nid::X9_62_PRIME256V1);
    let header = json!({"alg": "ES256", "kid": "ours", "jwk": ours.jwk(), "jku": "https://evil.example/", "x5u": "https://evil.example/"});
    assert!(
        site().error(&ours.token_of(&header.to_string(), &claims().to_string())).contains("no key \"ours\"")
    );
    // The token has our own key under the name of the issuer's key.
    let header = json!({"alg": "ES256", "kid": "p256", "jwk": ours.jwk()});
    assert!(
        site()
            .error(&ours.token_of(&header.to_string(), &claims().to_string()))
            .contains("signature is wrong")
    );
}

#[test]
fn verify_invalid_header_fails() {
    refused_header(r#"{"alg":"ES256","kid":"p256","crit":["b64"],"b64":false}"#, "crit");
    refused_header(r#"{"alg":"ES256","kid":"p256","typ":"secevent+jwt"}"#, "no access token");
    refused_header(r#"{"alg":"ES256","kid":"p256","typ":7}"#, "typ is no string");
    refused_header(r#"{"kid":"p256"}"#, "no alg");
    refused_header(r#"{"alg":["ES256"],"kid":"p256"}"#, "no alg");
    refused_header(r#"{"alg":"none","alg":"ES256","kid":"p256"}"#, "twice");
    refused_header("[]", "no object");
    refused_header("", "header");
}

#[test]
fn verify_changed_signature_fails() {
    let site = site();
    for key in [rsa(), ec256()] {
        let good = key.token(&claims());
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let claims_of_another = encode(with(json!({"sub": "eve"})).to_string());
        let header = signed.split('.').next().unwrap();
        assert!(
            site.error(&format!("{header}.{claims_of_another}.{signature}")).contains("signature is wrong")
        );
        let mut bytes = key.sign(signed.as_bytes());
        bytes[20] ^= 1;
        assert!(site.error(&format!("{signed}.{}", encode(&bytes))).contains("signature is wrong"));
        bytes[20] ^= 1;
        bytes.push(0);
        assert!(site.error(&format!("{signed}.{}", encode(&bytes))).contains("signature is wrong"));
        assert!(site.error(&format!("{signed}.{}", encode(&bytes[..10]))).contains("signature is wrong"));
        assert!(site.error(&format!("{signed}.{}", encode([0; 64]))).contains("signature is wrong"));
    }
}

#[test]
fn verify_invalid_issuer_or_subject_fails() {
    refused(json!({"iss": "https://evil.example"}), "not one that this server trusts");
    refused(json!({"iss": format!("{ISSUER}/")}), "not one that this server trusts");
    refused(json!({"iss": "https://ISSUER.example/vo"}), "not one that this server trusts");
    refused(json!({"iss": "http://issuer.example/vo"}), "not one that this server trusts");
    refused(json!({"iss": null}), "iss is missing");
    refused(json!({"iss": [ISSUER]}), "iss is wrong: expected a string");
    refused(json!({"sub": null}), "sub is missing");
    refused(json!({"sub": ""}), "sub is wrong: it is empty");
    refused(json!({"sub": "a\nuser=root"}), "control characters");
    refused(json!({"sub": "a".repeat(256)}), "longer than 255");
    refused(json!({"jti": 7}), "jti is wrong");
    refused(json!({"wlcg.groups": "/vo"}), "wlcg.groups is wrong");
    refused(json!({"wlcg.groups": ["/vo", 1]}), "wlcg.groups is wrong");
    refused(json!({"wlcg.groups": vec!["/vo"; 1001]}), "more than 1000");
}

#[test]
fn verify_other_audience_fails() {
    refused(
        json!({"aud": "https://other.example"}),
        "it is for \"https://other.example\", and this server is",
    );
    refused(json!({"aud": ["https://other.example", "x"]}), "it is for");
    refused(json!({"aud": format!("{AUDIENCE}/")}), "it is for");
    // The audience of the other profile.
    refused(json!({"aud": "ANY"}), "it is for \"ANY\"");
    refused(
        json!({"wlcg.ver": null, "ver": "scitoken:2.0", "aud": "https://wlcg.cern.ch/jwt/v1/any", "scope": "read:/"}),
        "it is for",
    );
    refused(json!({"aud": null}), "aud is missing");
    refused(json!({"aud": []}), "it is for nobody");
    refused(json!({"aud": {"a": AUDIENCE}}), "aud is wrong");
    refused(json!({"aud": [AUDIENCE, 7]}), "aud is wrong");
    refused(json!({"aud": vec![AUDIENCE; 65]}), "more than 64");
}

#[test]
fn verify_outside_of_lifetime_fails() {
    refused(json!({"exp": NOW - 60}), "expired 60 s ago");
    refused(json!({"exp": NOW - 86_400}), "expired 24 h ago");
    refused(json!({"nbf": NOW + 61}), "not valid before 61 s from now");
    refused(json!({"iat": NOW + 600}), "issued 10 min from now");
    refused(json!({"exp": null}), "exp is missing");
    for value in [json!("1800000000"), json!(-1), json!(1e300), json!([NOW + 60]), json!(true)] {
        refused(json!({"exp": value}), "expected seconds since 1970");
    }
    refused(json!({"nbf": "now"}), "nbf is wrong");
}

#[test]
fn verify_unknown_version_fails() {
    refused(json!({"wlcg.ver": null}), "it has none of them");
    refused(json!({"ver": "scitoken:2.0"}), "it has both");
    refused(json!({"wlcg.ver": "2.0"}), "wlcg.ver is \"2.0\"");
    refused(json!({"wlcg.ver": "1."}), "wlcg.ver is");
    refused(json!({"wlcg.ver": 1.0}), "no string");
    refused(json!({"wlcg.ver": null, "ver": "scitoken:1.0"}), "ver is \"scitoken:1.0\"");
}

#[test]
fn verify_ambiguous_path_in_scope_fails() {
    for (path, reason) in [
        ("", "does not begin with /"),
        ("data", "does not begin with /"),
        ("~/data", "does not begin with /"),
        ("/data/../private", "component . or .."),
        ("/..", "component . or .."),
        ("/data/.", "component . or .."),
        ("/data/./x", "component . or .."),
        ("//data", "empty component"),
        ("/data//x", "empty component"),
        ("/data//", "empty component"),
        ("//", "empty component"),
        ("/data/%2e%2e/private", "such as %2E"),
        ("/data/%2E./private", "such as %2E"),
        ("/%64ata", "encodes letters"),
        ("/data%2f..%2fprivate", "encoded / (%2F)"),
        ("/data%00", "control character"),
        ("/data%0d%0aDELE", "control character"),
        ("/data%", "% without two"),
        ("/data%4", "% without two"),
        ("/data%zz", "% without two"),
    ] {
        for name in
            ["storage.read", "storage.create", "storage.modify", "storage.stage", "storage.poll", "storage.x"]
        {
            refused(json!({"scope": format!("storage.read:/good {name}:{path}")}), reason);
        }
    }
    refused(json!({"scope": "storage.read"}), "has no path");
    refused(json!({"scope": "storage.read:/x storage.modify"}), "has no path");
    refused(json!({"scope": "storage.read:/x storage.poll"}), "has no path");
    refused(json!({"scope": "storage.read:/x storage.later"}), "has no path");
    refused(json!({"scope": "storage.read:/x\\y"}), "a character that no scope may have");
    refused(json!({"scope": "storage.read:/\u{e4}"}), "a character that no scope may have");
    refused(json!({"scope": "storage.read:/x\u{0}"}), "a character that no scope may have");
    refused(json!({"scope": format!("storage.read:/{}", "x".repeat(4096))}), "too long");
    refused(json!({"scope": ["storage.read:/x"]}), "scope is wrong");
    let many: Vec<String> = (0..257).map(|n| format!("storage.read:/{n}")).collect();
    refused(json!({"scope": many.join(" ")}), "more than 256");
}

#[test]
fn verify_truncated_or_oversized_token_fails() {
    let site = site();
    let good = rsa().token(&claims());
    for length in 0..good.len() {
        let error = site.error(&good[..length]);
        assert!(!error.contains(&good[length / 2..length]) || length < 40, "{error}");
    }
    assert!(site.error(&format!("{good}.")).contains("three parts"));
    assert!(site.error(&format!("{good}.{good}")).contains("three parts"));
    assert!(site.error(&format!("{good}=")).contains("base64url"));
    assert!(site.error(&format!(" {good}")).contains("base64url"));
    assert!(site.error(&good.replace('.', "..")).contains("three parts"));
    assert!(site.error(&"a".repeat((16 << 10) + 1)).contains("longer than 16384"));
    let wide = with(json!({"wlcg.groups": vec!["/vo"; 1000], "more": vec![1; 1000]}));
    assert!(site.error(&ec256().token(&wide)).contains("too many values"));
    let deep =
        claims().to_string().replacen('{', &format!("{{\"x\":{}1{},", "[".repeat(9), "]".repeat(9)), 1);
    assert!(site.error(&ec256().token_of(&ec256().header().to_string(), &deep)).contains("nested"));
}

#[test]
fn verify_duplicate_claim_fails() {
    let site = site();
    let text = claims().to_string();
    for twice in [
        r#"{"sub":"eve","#,
        r#"{"\u0073ub":"eve","#,
        r#"{"exp":9999999999,"#,
        r#"{"scope":"storage.modify:/","#,
    ] {
        let token = ec256().token_of(&ec256().header().to_string(), &text.replacen('{', twice, 1));
        assert!(site.error(&token).contains("twice"), "{twice}");
    }
    for text in ["[]", "7", "\"x\"", "{}{}", "{\"iss\":\"\\ud800\"}", "{\"iss\":", "nul"] {
        let token = ec256().token_of(&ec256().header().to_string(), text);
        assert!(site.error(&token).contains("claims"), "{text}");
    }
}

#[test]
fn verifier_with_unusable_key_set_fails() {
    let place = |keys: &Value| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.json");
        write(&file, &keys.to_string());
        let made = Verifier::new(vec![issuer(KeyPlace::File(file))]);
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let changed = |key: &Key, name: &str, value: Value| {
        let mut jwk = key.jwk();
        jwk[name] = value;
        json!({"keys": [jwk]})
    };
    for keys in [
        json!({"keys": []}),
        json!({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}),
        changed(rsa(), "use", "enc".into()),
        changed(rsa(), "key_ops", json!(["sign"])),
        changed(rsa(), "e", "AQ".into()),
        changed(rsa(), "e", "Ag".into()),
        changed(rsa(), "n", "!".into()),
        changed(ec256(), "x", encode([1; 32]).into()),
        changed(ec256(), "crv", "P-521".into()),
        changed(ed25519(), "x", encode([1; 31]).into()),
        key_set(&[&Key::rsa("small", 1024)]),
    ] {
        assert!(place(&keys).contains("none of its keys"), "{keys}");
    }
    assert!(place(&json!({"keys": {}})).contains("no list"));
    assert!(place(&json!([])).contains("no object"));
    assert!(place(&json!({"keys": vec![rsa().jwk(); 65]})).contains("more than 64"));
}

#[test]
fn verify_with_key_file_writable_by_others_fails() {
    use std::os::unix::fs::PermissionsExt;
    let site = site();
    std::fs::set_permissions(site.file(), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(site.error(&ec256().token(&claims())).contains("others may change it"));
}

#[test]
fn verifier_with_invalid_issuer_fails() {
    let site = site();
    let make = |url: &str| {
        let issuer = Issuer { url: url.into(), ..issuer(KeyPlace::File(site.file())) };
        Verifier::new(vec![issuer]).err().map(|e| e.to_string()).unwrap_or_default()
    };
    for url in [
        "",
        "http://issuer.example",
        "https://",
        "https://a@b",
        "https://a/?x",
        "https://a/#x",
        "https://a b",
    ] {
        assert!(make(url).contains("cannot be an issuer"), "{url}");
    }
    assert_eq!(make(ISSUER), "");
    let twice = vec![issuer(KeyPlace::File(site.file())); 2];
    assert_eq!(Verifier::new(twice).err(), Some(SetupError::Twice(ISSUER.into())));
    let nobody = Issuer { audiences: vec![], any_audience: false, ..issuer(KeyPlace::File(site.file())) };
    assert!(matches!(Verifier::new(vec![nobody]), Err(SetupError::NoAudience(_))));
}
