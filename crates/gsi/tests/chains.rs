//! Chains that must not be believed, each refused for its own reason, in words.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::OnceLock;

use common::Site;
use openssl::asn1::{Asn1Integer, Asn1Object, Asn1OctetString, Asn1Time};
use openssl::bn::BigNum;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::{X509, X509Builder, X509Extension, X509NameBuilder, X509NameRef};
use ropewalk_gsi::{ChainError, Credential, ProxyKind, ProxyTerms, Rights, Timestamp, Trust, create_proxy};

const PCI: &str = "1.3.6.1.5.5.7.1.14";
const INHERIT_ALL: &[u8] = &[0x30, 0x0c, 0x30, 0x0a, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1];
const UNKNOWN_LANGUAGE: &[u8] = &[0x30, 6, 0x30, 4, 6, 2, 0x2a, 3];
const HOUR: i64 = 3600;

/// Always the same: keys take long to make.
fn key() -> PKey<Private> {
    static KEY: OnceLock<PKey<Private>> = OnceLock::new();
    KEY.get_or_init(|| PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()).clone()
}

/// A certificate that no honest program would make.
struct Forged<'a> {
    issuer: &'a X509NameRef,
    signer: &'a PKey<Private>,
    /// Common names after the issuer's name.
    more: &'a [&'a str],
    extensions: &'a [(&'a str, bool, &'a [u8])],
    digest: MessageDigest,
}

impl<'a> Forged<'a> {
    fn proxy(issuer: &'a Credential) -> Self {
        Self {
            issuer: issuer.certificate().subject_name(),
            signer: issuer.key(),
            more: &["7"],
            extensions: &[(PCI, true, INHERIT_ALL)],
            digest: MessageDigest::sha256(),
        }
    }

    fn make(&self, key: &PKey<Private>) -> X509 {
        let mut name = X509NameBuilder::new().unwrap();
        for entry in self.issuer.entries() {
            name.append_entry(entry).unwrap();
        }
        for common in self.more {
            name.append_entry_by_text("CN", common).unwrap();
        }
        let now = Timestamp::now().0;
        let mut builder = X509Builder::new().unwrap();
        builder.set_version(2).unwrap();
        builder.set_serial_number(&Asn1Integer::from_bn(&BigNum::from_u32(7).unwrap()).unwrap()).unwrap();
        builder.set_issuer_name(self.issuer).unwrap();
        builder.set_subject_name(&name.build()).unwrap();
        builder.set_not_before(&Asn1Time::from_unix(now - HOUR).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::from_unix(now + HOUR).unwrap()).unwrap();
        builder.set_pubkey(key).unwrap();
        for (oid, critical, value) in self.extensions {
            let (oid, value) = (Asn1Object::from_str(oid), Asn1OctetString::new_from_bytes(value));
            let made = X509Extension::new_from_der(&oid.unwrap(), *critical, &value.unwrap()).unwrap();
            builder.append_extension(made).unwrap();
        }
        builder.sign(self.signer, self.digest).unwrap();
        builder.build()
    }

    fn below(&self, issuer: &Credential) -> Credential {
        let key = key();
        let mut chain = vec![issuer.certificate().clone()];
        chain.extend(issuer.chain().iter().cloned());
        Credential::new(self.make(&key), chain, key).unwrap()
    }
}

fn chain(credential: &Credential) -> Vec<X509> {
    let mut all = vec![credential.certificate().clone()];
    all.extend(credential.chain().iter().cloned());
    all
}

fn proxy(issuer: &Credential, rights: Rights, path_length: Option<u64>) -> Credential {
    let terms = ProxyTerms { kind: ProxyKind::Rfc3820(rights), path_length, ..ProxyTerms::default() };
    create_proxy(issuer, 2048, &terms, Timestamp::now()).unwrap()
}

fn refused(trust: &Trust, credential: &Credential) -> ChainError {
    let error = trust.verify(&chain(credential), Timestamp::now()).unwrap_err();
    eprintln!("{error}");
    error
}

#[test]
fn proxies() {
    let site = Site::new();
    let trust = site.trust();
    let user = site.user();
    let one = Forged::proxy(&user).below(&user);
    let peer = trust.verify(&chain(&one), Timestamp::now()).unwrap();
    assert_eq!((peer.identity.as_str(), peer.proxies), (user.subject(), 1));
    assert_eq!(peer.chain.len(), 3);

    let limited = proxy(&user, Rights::Limited, None);
    assert!(matches!(
        refused(&trust, &Forged::proxy(&limited).below(&limited)),
        ChainError::LimitedProxy { .. }
    ));
    let last = proxy(&user, Rights::All, Some(0));
    assert!(matches!(
        refused(&trust, &Forged::proxy(&last).below(&last)),
        ChainError::ProxyPathLength { .. }
    ));
    // The limit counts through those between that do not repeat it.
    let once = proxy(&user, Rights::All, Some(1));
    let second = Forged::proxy(&once).below(&once);
    trust.verify(&chain(&second), Timestamp::now()).unwrap();
    assert!(matches!(
        refused(&trust, &Forged::proxy(&second).below(&second)),
        ChainError::ProxyPathLength { .. }
    ));

    let two_names = Forged { more: &["7", "8"], ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &two_names.below(&user)), ChainError::ProxyName { .. }));
    let wrong_key = Forged { signer: &key(), ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &wrong_key.below(&user)), ChainError::BadSignature { .. }));
    let legacy = Forged { more: &["proxy"], extensions: &[], ..Forged::proxy(&one) };
    assert!(matches!(refused(&trust, &legacy.below(&one)), ChainError::MixedProxies { .. }));
    let language = Forged { extensions: &[(PCI, true, UNKNOWN_LANGUAGE)], ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &language.below(&user)), ChainError::RestrictedProxy { .. }));
    let extra = [(PCI, true, INHERIT_ALL), ("1.2.3.4", true, &[5, 0][..])];
    let critical = Forged { extensions: &extra, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &critical.below(&user)), ChainError::CriticalExtension { .. }));
    let names = [(PCI, true, INHERIT_ALL), ("2.5.29.17", false, &[0x30, 3, 0x82, 1, b'a'][..])];
    let named = Forged { extensions: &names, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &named.below(&user)), ChainError::MalformedProxy { .. }));
    let rights = [(PCI, true, INHERIT_ALL), ("2.5.29.19", true, &[0x30, 3, 1, 1, 0xff][..])];
    let authority = Forged { extensions: &rights, ..Forged::proxy(&user) };
    assert!(matches!(refused(&trust, &authority.below(&user)), ChainError::MalformedProxy { .. }));
    let twice = [(PCI, true, INHERIT_ALL), ("1.3.6.1.4.1.3536.1.222", true, INHERIT_ALL)];
    let two_marks = Forged { extensions: &twice, ..Forged::proxy(&user) }.make(&key());
    let error = trust.verify(&[two_marks, user.certificate().clone()], Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::Unreadable { index: 0, .. }), "{error}");
    let weak = Forged { digest: MessageDigest::md5(), ..Forged::proxy(&user) }.below(&user);
    assert!(matches!(refused(&trust, &weak), ChainError::WeakDigest { digest: "MD5", .. }));
    site.trust().allow_md5(true).verify(&chain(&weak), Timestamp::now()).unwrap();
    let small = PKey::from_rsa(Rsa::generate(768).unwrap()).unwrap();
    let small = [Forged::proxy(&user).make(&small), user.certificate().clone()];
    let error = trust.verify(&small, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::WeakKey { bits: 768, .. }), "{error}");
    let orphan = trust.verify(&[one.certificate().clone()], Timestamp::now()).unwrap_err();
    assert!(matches!(orphan, ChainError::ProxyIssuer { .. }), "{orphan}");
    let independent = proxy(&user, Rights::Independent, None);
    let peer = trust.verify(&chain(&independent), Timestamp::now()).unwrap();
    assert_eq!(peer.identity, independent.subject());
}

#[test]
fn long_chains_and_loops() {
    let site = Site::new();
    let user = site.user();
    let mut deep = vec![user.certificate().clone(); 100];
    let error = site.trust().verify(&deep, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::TooLong { length: 100, .. }), "{error}");
    assert!(matches!(site.trust().verify(&[], Timestamp::now()), Err(ChainError::Empty)));
    // One that names itself as its issuer.
    let own = key();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "proxy").unwrap();
    let name = name.build();
    let round = Forged {
        issuer: &name,
        signer: &own,
        more: &[],
        extensions: &[(PCI, true, INHERIT_ALL)],
        digest: MessageDigest::sha256(),
    }
    .make(&own);
    deep = vec![round.clone(), round.clone(), round];
    let error = site.trust().verify(&deep, Timestamp::now()).unwrap_err();
    assert!(matches!(error, ChainError::ProxyIssuer { .. }), "{error}");
}

#[test]
fn times() {
    let site = Site::new();
    let trust = site.trust();
    let user = site.user();
    let short = ProxyTerms { lifetime: 60, ..ProxyTerms::default() };
    let proxy = create_proxy(&user, 2048, &short, Timestamp::now()).unwrap();
    let now = Timestamp::now();
    let late = trust.verify(&chain(&proxy), Timestamp(now.0 + 120)).unwrap_err();
    assert!(
        late.to_string().contains(&format!("{} expired at {}", proxy.subject(), proxy.not_after())),
        "{late}"
    );
    let late = trust.verify(&chain(&user), Timestamp(now.0 + 11 * 24 * HOUR)).unwrap_err();
    assert!(matches!(&late, ChainError::Expired { subject, .. } if subject == user.subject()), "{late}");
    let early = trust.verify(&chain(&user), Timestamp(now.0 - HOUR)).unwrap_err();
    assert!(matches!(early, ChainError::NotYetValid { .. }), "{early}");
    assert!(create_proxy(&user, 2048, &short, Timestamp(now.0 + 11 * 24 * HOUR)).is_err());
}

#[test]
fn authorities() {
    let site = Site::new();
    let user = site.user();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let file = |end: &str| site.certificates().join(format!("{hash}.{end}"));

    let nowhere = Trust::directory(site.path("nowhere"));
    let error = refused(&nowhere, &user);
    assert!(error.to_string().contains(&format!("{hash}.0")), "{error}");
    // Same name, another key.
    let other = Site::new();
    assert!(matches!(
        refused(&other.trust(), &user),
        ChainError::BadSignature { .. } | ChainError::UnknownAuthority { .. }
    ));
    let own = key();
    let alone = Forged {
        issuer: user.certificate().subject_name(),
        signer: &own,
        more: &[],
        extensions: &[],
        digest: MessageDigest::sha256(),
    }
    .make(&own);
    let alone = Credential::new(alone, Vec::new(), own).unwrap();
    assert!(matches!(refused(&site.trust(), &alone), ChainError::SelfSigned { .. }));
    // Trusted as it is, whatever its signature.
    Trust::anchors(vec![alone.certificate().clone()]).verify(&chain(&alone), Timestamp::now()).unwrap();

    let policy = std::fs::read_to_string(file("signing_policy")).unwrap();
    std::fs::write(file("signing_policy"), policy.replace("OU=test/*", "OU=other/*")).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::SigningPolicy { .. }));
    std::fs::write(file("signing_policy"), "access_id_CA X509 '").unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::BadSigningPolicy { .. }));
    std::fs::remove_file(file("signing_policy")).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::NoSigningPolicy { .. }));
    site.trust().require_signing_policy(false).verify(&chain(&user), Timestamp::now()).unwrap();
}

#[test]
fn revocation() {
    let site = Site::new();
    let user = site.user();
    let hash = site.ca.install(&site.certificates(), 10).unwrap();
    let list = site.certificates().join(format!("{hash}.r0"));
    let now = Timestamp::now();
    let stale = site.trust().verify(&chain(&user), Timestamp(now.0 + 10 * 24 * HOUR + 600));
    assert!(matches!(stale, Err(ChainError::Expired { .. } | ChainError::ExpiredCrl { .. })), "{stale:?}");
    site.ca.install(&site.certificates(), 1).unwrap();
    let stale = site.trust().verify(&chain(&user), Timestamp(now.0 + 2 * 24 * HOUR)).unwrap_err();
    assert!(matches!(stale, ChainError::ExpiredCrl { .. }), "{stale}");
    site.ca.revoke(user.certificate()).unwrap();
    site.ca.revoke(user.certificate()).unwrap();
    site.ca.install(&site.certificates(), 10).unwrap();
    let error = refused(&site.trust(), &user);
    assert!(error.to_string().contains(user.subject()) && error.to_string().contains("revoked"), "{error}");
    assert!(matches!(refused(&site.trust(), &proxy(&user, Rights::All, None)), ChainError::Revoked { .. }));
    let other = Site::new();
    std::fs::copy(other.certificates().join(format!("{hash}.r0")), &list).unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::ForgedCrl { .. }));
    std::fs::write(&list, "nothing").unwrap();
    assert!(matches!(refused(&site.trust(), &user), ChainError::UnreadableCrl { .. }));
    std::fs::remove_file(&list).unwrap();
    site.trust().verify(&chain(&user), now).unwrap();
    assert!(matches!(refused(&site.trust().require_crl(true), &user), ChainError::NoCrl { .. }));
}
