//! Distinguished names: the one-line form that grid software writes, and comparison of such lines.

use openssl::nid::Nid;
use openssl::x509::X509NameRef;

use crate::der::{self, DerError, Reader};
use crate::oid;

/// A subject as `/O=Grid/OU=site/CN=Somebody`, as OpenSSL's `X509_NAME_oneline` and hence GCT make it: short names of
/// attributes, bytes outside of printable ASCII as `\xHH`.
pub fn one_line(name: &X509NameRef) -> String {
    let mut out = String::new();
    for entry in name.entries() {
        out.push('/');
        let object = entry.object();
        match object.nid() {
            // An unknown one prints as dotted numbers.
            Nid::UNDEF => out.push_str(&object.to_string()),
            nid => match nid.short_name() {
                Ok(short) => out.push_str(short),
                Err(_) => out.push_str(&object.to_string()),
            },
        }
        out.push('=');
        for &byte in entry.data().as_slice() {
            if (b' '..=b'~').contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("\\x{byte:02X}"));
            }
        }
    }
    out
}

/// The relative names of an encoded Name, each as its encoding.
pub(crate) fn relative_names(name: &[u8]) -> Result<Vec<&[u8]>, DerError> {
    let mut outer = Reader::new(name);
    let mut inner = outer.sequence()?;
    outer.end()?;
    let mut out = Vec::new();
    while !inner.is_empty() {
        out.push(inner.expect(der::SET)?.whole);
    }
    Ok(out)
}

/// The value of a relative name that is one common name and nothing else.
pub(crate) fn common_name(relative: &[u8]) -> Option<&[u8]> {
    let mut set = Reader::new(relative).expect(der::SET).ok()?.reader();
    let mut pair = set.sequence().ok()?;
    set.end().ok()?;
    let kind = pair.expect(der::OID).ok()?;
    let value = pair.any().ok()?;
    (kind.content == oid::COMMON_NAME).then_some(value.content)
}

/// Whether `subject` is `issuer` and one common name more (RFC 3820 section 3.4). Both are encodings.
pub(crate) fn is_extended_by_common_name(issuer: &[u8], subject: &[u8]) -> bool {
    let (Ok(issuer), Ok(subject)) = (relative_names(issuer), relative_names(subject)) else { return false };
    let Some((last, rest)) = subject.split_last() else { return false };
    !issuer.is_empty() && rest == issuer && common_name(last).is_some()
}

/// `name` (encoded) with one common name more.
pub(crate) fn with_common_name(name: &[u8], value: &str) -> Result<Vec<u8>, DerError> {
    const PRINTABLE_STRING: u8 = 0x13;
    let mut content = relative_names(name)?.concat();
    let kind = der::element(der::OID, oid::COMMON_NAME);
    let value = der::element(PRINTABLE_STRING, value.as_bytes());
    content.extend(der::element(der::SET, &der::sequence(&[&kind, &value])));
    Ok(der::element(der::SEQUENCE, &content))
}

/// Whether two one-line names are the same to grid software: spellings of the e-mail and user id attributes are equal,
/// and attribute names may differ in case.
pub fn same(one: &str, other: &str) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// A one-line name with the usual spellings of its attributes.
pub fn canonical(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for (index, part) in line.split('/').enumerate() {
        if index > 0 {
            out.push('/');
        }
        match part.split_once('=') {
            Some((kind, value)) if index > 0 => {
                match kind.to_ascii_lowercase().as_str() {
                    "e" | "email" | "emailaddress" => out.push_str("emailAddress"),
                    "userid" | "uid" => out.push_str("UID"),
                    _ => out.push_str(&kind.to_ascii_uppercase()),
                }
                out.push('=');
                out.push_str(value);
            }
            _ => out.push_str(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use openssl::x509::X509NameBuilder;

    use super::*;

    #[test]
    fn one_line_as_openssl_writes_it() {
        let mut builder = X509NameBuilder::new().unwrap();
        builder.append_entry_by_text("DC", "org").unwrap();
        builder.append_entry_by_text("O", "Grid").unwrap();
        builder.append_entry_by_text("CN", "Zoë/x").unwrap();
        builder.append_entry_by_text("emailAddress", "a@b").unwrap();
        builder.append_entry_by_text("UID", "u").unwrap();
        builder.append_entry_by_text("1.2.3.4", "own").unwrap();
        let line = one_line(&builder.build());
        assert_eq!(line, "/DC=org/O=Grid/CN=Zo\\xC3\\xAB/x/emailAddress=a@b/UID=u/1.2.3.4=own");
    }

    #[test]
    fn spellings() {
        assert!(same("/O=G/CN=a/E=x@y", "/O=G/CN=a/emailAddress=x@y"));
        assert!(same("/O=G/USERID=u", "/O=G/uid=u"));
        assert!(!same("/O=G/CN=a", "/O=G/CN=A"));
        assert!(!same("/O=G/CN=a", "/O=G/CN=a/CN=b"));
    }

    #[test]
    fn one_name_more() {
        let mut builder = X509NameBuilder::new().unwrap();
        builder.append_entry_by_text("O", "Grid").unwrap();
        builder.append_entry_by_text("CN", "A").unwrap();
        let name = builder.build().to_der().unwrap();
        let longer = with_common_name(&name, "123").unwrap();
        assert!(is_extended_by_common_name(&name, &longer));
        assert!(!is_extended_by_common_name(&longer, &name));
        assert!(!is_extended_by_common_name(&name, &name));
        assert!(!is_extended_by_common_name(&[], &longer));
        assert_eq!(common_name(relative_names(&longer).unwrap()[2]).unwrap(), b"123");
    }
}
