//! Distinguished names: the one-line form that grid software writes, and comparison of such lines.
//! The one-line form is ambiguous (a value may contain slashes), so proxies are compared by their
//! encoded names.

use openssl::nid::Nid;
use openssl::x509::X509NameRef;

use crate::der::{self, DerError, Reader};
use crate::oid;

/// Formats a subject as `/O=Grid/OU=site/CN=Somebody`, as OpenSSL's `X509_NAME_oneline` and hence
/// GCT do: short names of attributes, bytes outside printable ASCII as `\xHH`, and a plus between
/// the attributes of one relative name.
///
/// # Errors
/// The name is not encoded as DER wants it. OpenSSL reads other encodings too, but which attributes
/// belong together is read here, and a wrong separator would make it the name of another holder.
pub fn one_line(name: &X509NameRef) -> Result<String, DerError> {
    let encoded = name.to_der().map_err(|_| DerError::Value)?;
    let separators = separators(&encoded)?;
    if separators.len() != name.entries().count() {
        return Err(DerError::Value);
    }
    let mut out = String::new();
    for (entry, separator) in name.entries().zip(separators) {
        out.push(separator);
        let object = entry.object();
        match object.nid() {
            // An unknown attribute is written as dotted numbers.
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
    Ok(out)
}

/// The separators before the attributes of an encoded Name: a slash before the first one of a
/// relative name, a plus before the others.
fn separators(name: &[u8]) -> Result<Vec<char>, DerError> {
    let mut out = Vec::new();
    for relative in relative_names(name)? {
        let mut set = Reader::new(relative).expect(der::SET)?.reader();
        set.any()?;
        out.push('/');
        while !set.is_empty() {
            set.any()?;
            out.push('+');
        }
    }
    Ok(out)
}

/// Splits an encoded Name into its encoded relative names.
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

/// The value of a relative name that consists of one common name and nothing else.
pub(crate) fn common_name(relative: &[u8]) -> Option<&[u8]> {
    let mut set = Reader::new(relative).expect(der::SET).ok()?.reader();
    let mut pair = set.sequence().ok()?;
    set.end().ok()?;
    let kind = pair.expect(der::OID).ok()?;
    let value = pair.any().ok()?;
    (kind.content == oid::COMMON_NAME).then_some(value.content)
}

/// Whether `subject` is `issuer` plus one common name (RFC 3820 section 3.4). Both are encodings.
pub(crate) fn is_extended_by_common_name(issuer: &[u8], subject: &[u8]) -> bool {
    let (Ok(issuer), Ok(subject)) = (relative_names(issuer), relative_names(subject)) else { return false };
    let Some((last, rest)) = subject.split_last() else { return false };
    !issuer.is_empty() && rest == issuer && common_name(last).is_some()
}

/// Appends one common name to the encoded `name`.
pub(crate) fn with_common_name(name: &[u8], value: &str) -> Result<Vec<u8>, DerError> {
    const PRINTABLE_STRING: u8 = 0x13;
    let mut content = relative_names(name)?.concat();
    let kind = der::element(der::OID, oid::COMMON_NAME);
    let value = der::element(PRINTABLE_STRING, value.as_bytes());
    content.extend(der::element(der::SET, &der::sequence(&[&kind, &value])));
    Ok(der::element(der::SEQUENCE, &content))
}

/// Whether two one-line names are equal for grid software: spellings of the e-mail and user id
/// attributes are equal, and attribute names may differ in case.
pub fn same(one: &str, other: &str) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// The form for comparisons in signing policies and gridmaps, which ignore case in values too.
pub(crate) fn folded(line: &str) -> String {
    canonical(line).to_ascii_lowercase()
}

/// Rewrites a one-line name with the usual spellings of its attributes.
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
    fn one_line_writes_names_as_openssl_does() {
        let mut builder = X509NameBuilder::new().unwrap();
        builder.append_entry_by_text("DC", "org").unwrap();
        builder.append_entry_by_text("O", "Grid").unwrap();
        builder.append_entry_by_text("CN", "Zoë/x").unwrap();
        builder.append_entry_by_text("emailAddress", "a@b").unwrap();
        builder.append_entry_by_text("UID", "u").unwrap();
        builder.append_entry_by_text("1.2.3.4", "own").unwrap();
        let line = one_line(&builder.build()).unwrap();
        assert_eq!(line, "/DC=org/O=Grid/CN=Zo\\xC3\\xAB/x/emailAddress=a@b/UID=u/1.2.3.4=own");
    }

    /// Two attributes in one set, and two sets of one attribute each.
    #[test]
    fn one_line_joins_attributes_of_one_relative_name_with_plus() {
        let attribute = |oid: &[u8], value: &[u8]| {
            der::sequence(&[&der::element(der::OID, oid), &der::element(0x0c, value)])
        };
        let (name, id) = (
            attribute(oid::COMMON_NAME, b"A"),
            attribute(&[9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], b"u"),
        );
        let sets = |sets: &[&[u8]]| {
            let sets: Vec<_> = sets.iter().map(|set| der::element(der::SET, set)).collect();
            let encoded = der::element(der::SEQUENCE, &sets.concat());
            one_line(&openssl::x509::X509Name::from_der(&encoded).unwrap()).unwrap()
        };
        assert_eq!(sets(&[&[name.clone(), id.clone()].concat()]), "/CN=A+UID=u");
        assert_eq!(sets(&[&name, &id]), "/CN=A/UID=u");
    }

    /// OpenSSL reads lengths that are longer than necessary. If they hid that two attributes belong
    /// together, the name would be that of another holder.
    #[test]
    fn one_line_of_name_with_long_form_lengths_is_refused() {
        let attribute = |oid: &[u8], value: &[u8]| {
            der::sequence(&[&der::element(der::OID, oid), &der::element(0x0c, value)])
        };
        let long = |element: &[u8]| [&element[..1], &[0x81], &element[1..]].concat();
        let (one, other) = (attribute(oid::COMMON_NAME, b"bob"), attribute(&[0x55, 4, 11], b"x"));
        let line = |set: Vec<u8>| {
            let encoded = der::element(der::SEQUENCE, &set);
            one_line(&openssl::x509::X509Name::from_der(&encoded).unwrap())
        };
        let set = der::element(der::SET, &[one.clone(), other.clone()].concat());
        assert_eq!(line(set.clone()).unwrap(), "/CN=bob+OU=x");
        assert!(line(long(&set)).is_err());
        assert!(line(der::element(der::SET, &[long(&one), other].concat())).is_err());
    }

    #[test]
    fn same_accepts_other_spellings_of_attributes() {
        assert!(same("/O=G/CN=a/E=x@y", "/O=G/CN=a/emailAddress=x@y"));
        assert!(same("/O=G/USERID=u", "/O=G/uid=u"));
        assert!(!same("/O=G/CN=a", "/O=G/CN=A"));
        assert!(!same("/O=G/CN=a", "/O=G/CN=a/CN=b"));
    }

    #[test]
    fn with_common_name_appends_one_common_name() {
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
