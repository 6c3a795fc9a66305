//! Ropewalk's proxies and authorities against the programs of GCT and OpenSSL.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use common::{Site, have};
use ropewalk_gsi::{
    Credential, CredentialError, ProxyKind, ProxyTerms, Rights, Timestamp, ca, create_proxy, proxy_file,
};
use zeroize::Zeroizing;

fn none(_: &str) -> Option<Zeroizing<String>> {
    None
}

fn run(site: &Site, program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("X509_CERT_DIR", site.certificates())
        .env_remove("X509_USER_PROXY")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn grid_proxy_info_reads_ropewalk_proxies() {
    if !have("grid-proxy-info") {
        return;
    }
    let site = Site::new();
    let user = site.user();
    let path = site.path("proxy");
    let file = path.to_str().unwrap();
    for kind in [
        ProxyKind::Rfc3820(Rights::All),
        ProxyKind::Rfc3820(Rights::Limited),
        ProxyKind::Rfc3820(Rights::Independent),
        ProxyKind::Draft(Rights::All),
        ProxyKind::Draft(Rights::Limited),
        ProxyKind::Legacy { limited: false },
        ProxyKind::Legacy { limited: true },
    ] {
        let terms = ProxyTerms { kind, lifetime: 7200, path_length: None };
        let made = proxy_file::init(&user, &path, 2048, &terms).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let ask = |what: &str| text(&run(&site, "grid-proxy-info", &["-file", file, what])).trim().to_owned();
        assert_eq!(ask("-subject"), made.subject());
        assert_eq!(ask("-issuer"), user.subject());
        if kind.rights() != Rights::Independent {
            assert_eq!(ask("-identity"), user.subject());
        }
        assert_eq!(ask("-type"), kind.to_string());
        assert_eq!(ask("-strength"), "2048");
        let left: i64 = ask("-timeleft").parse().unwrap();
        assert!((7100..=7200).contains(&left), "{left}");
        let info = proxy_file::info(&path).unwrap();
        assert_eq!((info.kind, info.strength), (Some(kind), 2048));
    }
    assert!(proxy_file::destroy(&path).unwrap());
    assert!(!proxy_file::destroy(&path).unwrap());
}

#[test]
fn credential_loads_proxies_of_grid_proxy_init() {
    if !have("grid-proxy-init") {
        return;
    }
    let site = Site::new();
    let user = site.user();
    let (certificate, key, proxy) = (site.path("usercert.pem"), site.path("userkey.pem"), site.path("proxy"));
    ca::write_pair(&user, &certificate, &key).unwrap();
    let kinds: [(&[&str], ProxyKind, Option<u64>); 7] = [
        (&[], ProxyKind::Rfc3820(Rights::All), None),
        (&["-limited"], ProxyKind::Rfc3820(Rights::Limited), None),
        (&["-independent"], ProxyKind::Rfc3820(Rights::Independent), None),
        (&["-path-length", "2"], ProxyKind::Rfc3820(Rights::All), Some(2)),
        (&["-draft"], ProxyKind::Draft(Rights::All), None),
        (&["-draft", "-path-length", "2"], ProxyKind::Draft(Rights::All), Some(2)),
        (&["-old", "-limited"], ProxyKind::Legacy { limited: true }, None),
    ];
    for (words, kind, path_length) in kinds {
        let places = [&certificate, &key, &proxy].map(|path| path.to_str().unwrap());
        let mut arguments = vec!["-cert", places[0], "-key", places[1], "-out", places[2], "-bits", "2048"];
        arguments.extend(words);
        let output = run(&site, "grid-proxy-init", &arguments);
        assert!(output.status.success(), "{words:?}: {}", text(&output));
        let credential = Credential::load(&proxy, &mut none).unwrap();
        assert_eq!(credential.details().proxy, Some(kind), "{words:?}");
        assert_eq!(credential.details().path_length, path_length, "{words:?}");
        let mut chain = vec![credential.certificate().clone()];
        chain.extend(credential.chain().iter().cloned());
        let peer = site.trust().verify(&chain, Timestamp::now()).unwrap();
        assert_eq!(peer.identity, credential.identity());
        // It can also make further proxies, of its own kind.
        let terms = ProxyTerms { kind: ProxyKind::Rfc3820(kind.rights()), ..ProxyTerms::default() };
        let further = create_proxy(&credential, 2048, &terms, Timestamp::now()).unwrap();
        assert_eq!(further.details().proxy, Some(kind));
        chain.insert(0, further.certificate().clone());
        site.trust().verify(&chain, Timestamp::now()).unwrap();
    }
}

#[test]
fn openssl_verifies_ropewalk_proxies() {
    if !have("openssl") {
        return;
    }
    let site = Site::new();
    let proxy = create_proxy(&site.user(), 2048, &ProxyTerms::default(), Timestamp::now()).unwrap();
    let further = create_proxy(&proxy, 2048, &ProxyTerms::default(), Timestamp::now()).unwrap();
    let path = site.path("proxy");
    proxy_file::write(&further, &path).unwrap();
    let directory = site.certificates();
    let (file, directory) = (path.to_str().unwrap(), directory.to_str().unwrap());
    let words = ["verify", "-allow_proxy_certs", "-CApath", directory, "-untrusted", file, file];
    let output = run(&site, "openssl", &words);
    assert!(output.status.success(), "{}", text(&output));
    let user = site.path("user.pem");
    std::fs::write(&user, site.user().certificate().to_pem().unwrap()).unwrap();
    let words = ["verify", "-x509_strict", "-crl_check", "-CApath", directory, user.to_str().unwrap()];
    let output = run(&site, "openssl", &words);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn load_refuses_open_and_encrypted_keys() {
    let site = Site::new();
    let user = site.user();
    let (certificate, key) = (site.path("usercert.pem"), site.path("userkey.pem"));
    ca::write_pair(&user, &certificate, &key).unwrap();
    Credential::load_pair(&certificate, &key, &mut none).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    let error = Credential::load_pair(&certificate, &key, &mut none).unwrap_err();
    assert!(matches!(error, CredentialError::Permissions { mode: 0o640, .. }), "{error}");
    assert!(error.to_string().contains("chmod 600"));

    let phrase = |word: &'static str| move |_: &str| Some(Zeroizing::new(word.to_owned()));
    let cipher = openssl::symm::Cipher::aes_256_cbc();
    let locked = user.key().private_key_to_pem_pkcs8_passphrase(cipher, b"secret").unwrap();
    std::fs::write(&key, locked).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    Credential::load_pair(&certificate, &key, &mut phrase("secret")).unwrap();
    let wrong = Credential::load_pair(&certificate, &key, &mut phrase("other")).unwrap_err();
    assert!(matches!(wrong, CredentialError::Passphrase { .. }), "{wrong}");
    let silent = Credential::load_pair(&certificate, &key, &mut none).unwrap_err();
    assert!(matches!(silent, CredentialError::Encrypted { .. }), "{silent}");

    let mut sealed = openssl::pkcs12::Pkcs12::builder();
    sealed.pkey(user.key()).cert(user.certificate());
    std::fs::write(&key, sealed.build2("secret").unwrap().to_der().unwrap()).unwrap();
    assert_eq!(Credential::load_pkcs12(&key, &mut phrase("secret")).unwrap().subject(), user.subject());
    let wrong = Credential::load_pkcs12(&key, &mut phrase("other")).unwrap_err();
    assert!(matches!(wrong, CredentialError::Passphrase { .. }), "{wrong}");

    let other = site.ca.issue_user("Other", 1).unwrap();
    let mixed =
        [other.certificate().to_pem().unwrap(), user.key().private_key_to_pem_pkcs8().unwrap()].concat();
    let error = Credential::from_pem(&mixed, &mut none).unwrap_err();
    assert!(matches!(error, CredentialError::Mismatch { .. }), "{error}");
    let none = Credential::from_pem(&user.certificate().to_pem().unwrap(), &mut none).unwrap_err();
    assert!(matches!(none, CredentialError::NoKey { .. }), "{none}");
    let shown = format!("{user:?}");
    assert!(shown.contains("Test User") && !shown.contains("PRIVATE"));
}
