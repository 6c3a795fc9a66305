//! Tokens that are accepted, and the resulting grants.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, UNIX_EPOCH};

use common::*;
use openssl::nid::Nid;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_tokens::{KeyPlace, Profile, Right, Verifier};
use serde_json::json;

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

#[test]
fn verify_accepts_each_algorithm() {
    let keys = [rsa(), ec256(), ec384(), ed25519()];
    let site = Site::new(&key_set(&keys));
    for key in keys {
        let grant = site.verifier.verify(key.token(&claims()).as_bytes(), now()).unwrap();
        assert_eq!((grant.profile, grant.issuer.as_str()), (Profile::Wlcg, ISSUER), "{}", key.algorithm);
        assert_eq!((grant.subject.as_str(), grant.id.as_deref()), ("ada", Some("t1")));
        assert_eq!(grant.groups, ["/vo", "/vo/admins"]);
        assert_eq!(grant.expires, UNIX_EPOCH + Duration::from_secs(NOW + 3600));
        let rights: Vec<_> =
            grant.capabilities.iter().map(|c| (c.right, c.path.clone(), c.directory)).collect();
        assert_eq!(rights, [(Right::Read, path("/data"), false), (Right::Create, path("/up"), true)]);
    }
}

#[test]
fn verify_scitoken_grants_its_rights() {
    let site = Site::new(&key_set(&[ec256()]));
    let claims = with(json!({
        "wlcg.ver": null, "ver": "scitoken:2.0", "aud": "ANY", "scope": "read:/data write:/mine", "nbf": null,
    }));
    let grant = site.verifier.verify(ec256().token(&claims).as_bytes(), now()).unwrap();
    assert_eq!(grant.profile, Profile::SciTokens);
    assert!(grant.groups.is_empty());
    let can = &grant.capabilities;
    assert!(can.reads(&path("/data/x")) && !can.creates(&path("/data/x")));
    assert!(can.modifies(&path("/mine/x")) && can.creates(&path("/mine/x")) && !can.reads(&path("/mine/x")));
}

#[test]
fn verify_accepts_configured_audiences() {
    let site = Site::new(&key_set(&[ec256()]));
    for audience in [
        json!(AUDIENCE),
        json!(["https://other.example", AUDIENCE]),
        json!("https://wlcg.cern.ch/jwt/v1/any"),
        json!(["https://wlcg.cern.ch/jwt/v1/any"]),
    ] {
        let token = ec256().token(&with(json!({"aud": audience})));
        assert!(site.verifier.verify(token.as_bytes(), now()).is_ok(), "{audience}");
    }
    let strict = ropewalk_tokens::Issuer { any_audience: false, ..issuer(KeyPlace::File(site.file())) };
    let strict = Verifier::new(vec![strict]).unwrap();
    assert!(strict.verify(ec256().token(&claims()).as_bytes(), now()).is_ok());
    let any = ec256().token(&with(json!({"aud": "https://wlcg.cern.ch/jwt/v1/any"})));
    assert!(strict.verify(any.as_bytes(), now()).is_err());
}

#[test]
fn verify_within_leeway_of_clocks_succeeds() {
    let site = Site::new(&key_set(&[ec256()]));
    for changes in [
        json!({"exp": NOW - 59}),
        json!({"nbf": NOW + 60}),
        json!({"iat": NOW + 60}),
        json!({"exp": NOW as f64 + 0.5}),
    ] {
        let token = ec256().token(&with(changes.clone()));
        assert!(site.verifier.verify(token.as_bytes(), now()).is_ok(), "{changes}");
    }
}

#[test]
fn verify_without_kid_uses_only_fitting_key() {
    let header = r#"{"alg":"ES256"}"#;
    let token = ec256().token_of(header, &claims().to_string());
    assert!(Site::new(&key_set(&[ec256(), rsa()])).verifier.verify(token.as_bytes(), now()).is_ok());
    let other = Key::ec("other", "ES256", Nid::X9_62_PRIME256V1);
    assert!(Site::new(&key_set(&[ec256(), &other])).error(&token).contains("several"));
}

#[test]
fn verify_after_key_file_changed_uses_new_keys() {
    let site = Site::new(&key_set(&[ec256()]));
    let (old, new) = (ec256().token(&claims()), rsa().token(&claims()));
    assert!(site.verifier.verify(old.as_bytes(), now()).is_ok());
    assert!(site.error(&new).contains("no key \"rsa\""));
    write(&site.file(), &key_set(&[rsa()]).to_string());
    assert!(site.verifier.verify(new.as_bytes(), now()).is_ok());
    assert!(site.error(&old).contains("no key \"p256\""));
    write(&site.file(), "{");
    assert!(site.error(&new).contains("keys.json"));
    std::fs::remove_file(site.file()).unwrap();
    assert!(site.error(&new).contains("No such file"));
}
