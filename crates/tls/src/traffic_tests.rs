//! Tests with the traces of RFC 8448 section 3.
#![allow(clippy::unwrap_used)]

use super::*;

const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";

fn bytes(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let value = |digit: u8| char::from(digit).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

fn keys(secret: &str) -> Keys {
    Keys::new(Suite::Aes128Gcm, Zeroizing::new(bytes(secret))).unwrap().unwrap()
}

fn sealed(keys: &mut Keys, content_type: u8, plain: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; HEADER + plain.len() + 1 + TAG];
    keys.seal(content_type, |most| &plain[plain.len() - most..], &mut out).unwrap();
    out
}

fn opened(keys: &mut Keys, record: &[u8]) -> Result<(u8, Vec<u8>), Failure> {
    let (header, body) = record.split_at(HEADER);
    let mut body = body.to_vec();
    let text = keys.open(header, &mut body)?;
    Ok((text[text.len() - 1], text[..text.len() - 1].to_vec()))
}

#[test]
fn expand_label_derives_the_keys_of_the_trace() {
    let derived =
        |secret, label, length| expand_label(Suite::Aes128Gcm, &bytes(secret), label, length).unwrap();
    assert_eq!(*derived(SERVER_SECRET, "key", 16), bytes("9f02283b6c9c07efc26bb9f2ac92e356"));
    assert_eq!(*derived(SERVER_SECRET, "iv", 12), bytes("cf782b88dd83549aadf1e984"));
    assert_eq!(*derived(CLIENT_SECRET, "key", 16), bytes("17422dda596ed5d9acd890e3c63f5051"));
    assert_eq!(*derived(CLIENT_SECRET, "iv", 12), bytes("5b78923dee08579033e523d9"));
}

#[test]
fn seal_and_open_match_the_trace() {
    let plain: Vec<u8> = (0..50).collect();
    let mut client = keys(CLIENT_SECRET);
    let data = bytes(
        "17030300 43a23f70 54b62c94 d0affafe 8228ba55 cbefacea 42f914aa 66bcab3f 2b9819a8 a5b46b39 5bd54a9a 20441e2b
         62974e1f 5a6292a2 977014bd 1e3deae6 3aeebb21 694915e4",
    );
    assert_eq!(sealed(&mut client, 23, &plain), data);
    let end = bytes("17030300 13c98727 60655666 b74d7ff1 153efd6d b6d0b0e3");
    assert_eq!(sealed(&mut client, 21, &[1, 0]), end);
    let mut reader = keys(CLIENT_SECRET);
    assert_eq!(opened(&mut reader, &data).unwrap(), (23, plain.clone()));
    assert_eq!(opened(&mut reader, &end).unwrap(), (21, vec![1, 0]));
    // The server's first record with these keys is a ticket.
    let mut server = keys(SERVER_SECRET);
    sealed(&mut server, 22, b"ticket");
    let data = bytes(
        "17030300 432e937e 11ef4ac7 40e538ad 36005fc4 a46932fc 3225d05f 82aa1b36 e30efaf9 7d90e6df fc602dcb 501a59a8
         fcc49c4b f2e5f0a2 1c0047c2 abf33254 0dd032e1 67c2955d",
    );
    assert_eq!(sealed(&mut server, 23, &plain), data);
    let end = bytes("17030300 13b58fd6 7166ebf5 99d24720 cfbe7efa 7a8864a9");
    assert_eq!(sealed(&mut server, 21, &[1, 0]), end);
}

#[test]
fn keys_refuse_secrets_of_another_length() {
    for (suite, length) in [(Suite::Aes128Gcm, 32), (Suite::ChaCha20Poly1305, 32), (Suite::Aes256Gcm, 48)] {
        for other in [0, 31, 32, 33, 48] {
            let keys = Keys::new(suite, Zeroizing::new(vec![1; other])).unwrap();
            assert_eq!(keys.is_some(), other == length, "{suite:?} {other}");
        }
    }
}

#[test]
fn sequence_never_repeats_and_restarts_with_new_keys() {
    let mut keys = keys(CLIENT_SECRET);
    assert!(opened(&mut keys, &[0; HEADER + TAG + 1]).is_err());
    assert_eq!(keys.sequence(), 1, "also where it failed");
    keys.renew().unwrap();
    assert_eq!(keys.sequence(), 0);
    keys.sequence = u64::MAX;
    assert!(matches!(opened(&mut keys, &[0; HEADER + TAG + 1]), Err(Failure::Exhausted)));
}
