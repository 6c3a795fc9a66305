//! Keys that an issuer publishes on an HTTPS server on loopback, whose certificate is from a
//! synthetic authority.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::*;
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslAcceptor, SslMethod};
use openssl::x509::extension::{BasicConstraints, KeyUsage, SubjectAlternativeName};
use openssl::x509::{X509, X509Name, X509NameBuilder};
use parking_lot::Mutex;
use ropewalk_tokens::{Issuer, KeyPlace, Verifier};
use serde_json::json;
use tempfile::TempDir;

struct Pair {
    certificate: X509,
    key: PKey<Private>,
}

fn name(text: &str) -> X509Name {
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", text).unwrap();
    name.build()
}

/// Makes an authority if `issuer` is `None`, otherwise a server certificate.
fn certificate(subject: &str, hosts: &[&str], issuer: Option<&Pair>) -> Pair {
    let key = Key::ec("", "ES256", Nid::X9_62_PRIME256V1).key;
    let mut made = X509::builder().unwrap();
    made.set_version(2).unwrap();
    let serial = BigNum::from_u32(1 + hosts.len() as u32).unwrap();
    made.set_serial_number(&serial.to_asn1_integer().unwrap()).unwrap();
    made.set_subject_name(&name(subject)).unwrap();
    made.set_issuer_name(issuer.map_or(&*name(subject), |issuer| issuer.certificate.subject_name())).unwrap();
    made.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    made.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    made.set_pubkey(&key).unwrap();
    if issuer.is_none() {
        made.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        made.append_extension(KeyUsage::new().critical().key_cert_sign().build().unwrap()).unwrap();
    } else {
        let mut names = SubjectAlternativeName::new();
        hosts.iter().for_each(|host| {
            names.ip(host);
        });
        let names = names.build(&made.x509v3_context(None, None)).unwrap();
        made.append_extension(names).unwrap();
    }
    made.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
    Pair { certificate: made.build(), key }
}

/// For each path the whole response; with `None` the server does not answer.
type Pages = Arc<Mutex<BTreeMap<String, Option<Vec<u8>>>>>;

struct Web {
    address: SocketAddr,
    pages: Pages,
    requests: Arc<AtomicUsize>,
    directory: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Web {
    fn new(hosts: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = certificate("Test CA", &[], None);
        std::fs::write(directory.path().join("ca.pem"), authority.certificate.to_pem().unwrap()).unwrap();
        let other = certificate("Other CA", &[], None);
        std::fs::write(directory.path().join("other.pem"), other.certificate.to_pem().unwrap()).unwrap();
        let own = certificate("server", hosts, Some(&authority));
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
        acceptor.set_certificate(&own.certificate).unwrap();
        acceptor.set_private_key(&own.key).unwrap();
        let acceptor = acceptor.build();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (pages, requests, stop) =
            (Pages::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (pages, requests, stop) = (Arc::clone(&pages), Arc::clone(&requests), Arc::clone(&stop));
            move || {
                for stream in listener.incoming().flatten() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    // A client that does not trust the certificate closes the connection.
                    if let Ok(stream) = acceptor.accept(stream) {
                        requests.fetch_add(1, Ordering::SeqCst);
                        answer(stream, &pages);
                    }
                }
            }
        });
        Self { address, pages, requests, directory, stop, thread: Some(thread) }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    fn put(&self, path: &str, body: &str) {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.raw(path, Some((head + body).into_bytes()));
    }

    fn raw(&self, path: &str, response: Option<Vec<u8>>) {
        self.pages.lock().insert(path.to_owned(), response);
    }

    fn document(&self, keys: &str) -> String {
        json!({"issuer": self.url("/vo"), "jwks_uri": keys}).to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn verifier(&self, authorities: Option<&Path>) -> Verifier {
        let keys = KeyPlace::Discovery { authorities: authorities.map(Path::to_owned) };
        Verifier::new(vec![Issuer { url: self.url("/vo"), ..issuer(keys) }]).unwrap()
    }

    fn token(&self, key: &Key) -> String {
        key.token(&with(json!({"iss": self.url("/vo")})))
    }

    fn result(&self, verifier: &Verifier, key: &Key) -> String {
        match verifier.verify(self.token(key).as_bytes(), now()) {
            Ok(grant) => grant.subject,
            Err(error) => error.to_string(),
        }
    }

    /// Verifies a token with a new verifier.
    fn once(&self) -> String {
        self.result(&self.verifier(Some(&self.file("ca.pem"))), ec256())
    }

    fn requests(&self) -> usize {
        self.requests.swap(0, Ordering::SeqCst)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn answer(mut stream: impl Read + Write, pages: &Pages) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(n) => request.extend_from_slice(&buffer[..n]),
        }
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default();
    let page = pages.lock().get(path).cloned();
    match page {
        Some(Some(response)) => drop(stream.write_all(&response)),
        // Wait until the client gives up.
        Some(None) => while stream.read(&mut buffer).is_ok_and(|n| n > 0) {},
        None => drop(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")),
    }
}

const OPENID: &str = "/vo/.well-known/openid-configuration";

#[test]
fn verify_with_published_keys_fetches_them_once() {
    let web = Web::new(&["127.0.0.1"]);
    web.put(OPENID, &web.document(&web.url("/jwks")));
    web.put("/jwks", &key_set(&[ec256()]).to_string());
    let verifier = web.verifier(Some(&web.file("ca.pem")));
    for _ in 0..20 {
        assert_eq!(web.result(&verifier, ec256()), "ada");
    }
    assert_eq!(web.requests(), 2);
    // An unknown key is requested only once in a while.
    for _ in 0..20 {
        assert!(web.result(&verifier, rsa()).contains("no key \"rsa\""));
    }
    assert!(web.requests() <= 2);
    // Threads that start at the same time cause one request.
    let verifier = web.verifier(Some(&web.file("ca.pem")));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(web.result(&verifier, ec256()), "ada"));
        }
    });
    assert_eq!(web.requests(), 2);
}

#[test]
fn verify_with_oauth_document_finds_keys() {
    let web = Web::new(&["127.0.0.1"]);
    web.put("/vo/.well-known/oauth-authorization-server", &web.document(&web.url("/jwks")));
    web.put("/jwks", &key_set(&[ec256()]).to_string());
    assert_eq!(web.once(), "ada");
    assert_eq!(web.requests(), 3);
}

#[test]
fn verify_with_untrusted_server_fails() {
    let web = Web::new(&["127.0.0.1"]);
    web.put(OPENID, &web.document(&web.url("/jwks")));
    web.put("/jwks", &key_set(&[ec256()]).to_string());
    for authorities in [None, Some(web.file("other.pem"))] {
        let error = web.result(&web.verifier(authorities.as_deref()), ec256());
        assert!(error.contains("certificate verify failed") || error.contains("self-signed"), "{error}");
    }
    let elsewhere = Web::new(&["127.0.0.2"]);
    elsewhere.put(OPENID, &elsewhere.document(&elsewhere.url("/jwks")));
    elsewhere.put("/jwks", &key_set(&[ec256()]).to_string());
    assert!(elsewhere.once().contains("keys of its issuer cannot be had"));
    assert_eq!(elsewhere.requests(), 0);
}

#[test]
fn verify_with_invalid_response_fails() {
    let web = Web::new(&["127.0.0.1"]);
    let keys = key_set(&[ec256()]).to_string();
    web.put("/jwks", &keys);
    let redirect =
        format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", web.url("/other"));
    web.put("/other", &web.document(&web.url("/jwks")));
    web.raw(OPENID, Some(redirect.into_bytes()));
    assert!(web.once().contains("status 302"));
    web.raw(OPENID, Some(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec()));
    assert!(web.once().contains("status 500"));
    web.raw(OPENID, Some(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()));
    assert!(web.once().contains("cannot be had"));
    // The response does not end.
    let endless = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), vec![b' '; 300 << 10]].concat();
    web.raw(OPENID, Some(endless));
    assert!(web.once().contains("cannot be had"));
    web.put(OPENID, &web.document(&format!("http://{}/jwks", web.address)));
    assert!(web.once().contains("does not begin with https://"));
    web.put(OPENID, &web.document(&web.url("/missing")));
    assert!(web.once().contains("no such document"));
    web.put(OPENID, &web.document(&web.url("/jwks")));
    assert_eq!(web.once(), "ada");
}

#[test]
fn verify_when_issuer_hangs_times_out() {
    let web = Web::new(&["127.0.0.1"]);
    web.raw(OPENID, None);
    let verifier = web.verifier(Some(&web.file("ca.pem")));
    assert!(web.result(&verifier, ec256()).contains("cannot be had"));
    // Afterwards, no call asks the issuer, so none waits for it.
    assert_eq!(web.requests(), 1);
    assert!(web.result(&verifier, ec256()).contains("cannot be had"));
    assert_eq!(web.requests(), 0);
}

#[test]
fn verifier_with_unusable_authorities_fails() {
    let web = Web::new(&["127.0.0.1"]);
    let make = |path: PathBuf| {
        let keys = KeyPlace::Discovery { authorities: Some(path) };
        Verifier::new(vec![issuer(keys)]).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(make(web.file("missing")).contains("No such file"));
    std::fs::write(web.file("empty"), "").unwrap();
    assert!(make(web.file("empty")).contains("no certificate"));
}
