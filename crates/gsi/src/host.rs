//! Checks that a peer is the expected one, by host name or by subject, with GCT's comparison rules
//! (RFC 2818 section 3.1). The chain of the peer must have been verified before.

use std::net::IpAddr;

use openssl::nid::Nid;
use openssl::x509::X509Ref;

use crate::name;
use crate::verify::Peer;

/// How host names are compared (`NAME_COMPATIBILITY` of gsi.conf).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameCompatibility {
    /// Alternative names are ignored; `host-anything.site` matches `host.site`.
    StrictGt2,
    /// Both other ways are allowed.
    Hybrid,
    /// Alternative names are compared; the common name only if there are none.
    #[default]
    StrictRfc2818,
}

/// The identity that the peer must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any trusted peer.
    Anybody,
    /// A host, by its name or address.
    Host { name: String, compatibility: NameCompatibility },
    /// This identity, in one-line form.
    Subject(String),
}

/// The peer is not the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongPeer {
    #[error("the server is not {expected}: its certificate, {subject}, is for {names}")]
    Host { expected: String, subject: String, names: String },
    #[error(
        "the server is not {expected}: {subject} is an independent proxy, which stands for nobody but itself"
    )]
    Independent { expected: String, subject: String },
    #[error("the peer is {found}, not {expected}")]
    Subject { expected: String, found: String },
}

impl Expected {
    /// A host under the default rules.
    pub fn host(name: impl Into<String>) -> Self {
        Self::Host { name: name.into(), compatibility: NameCompatibility::default() }
    }

    /// Checks that the peer is the expected one.
    ///
    /// # Errors
    /// The peer has another identity. If a host is expected, the peer's certificate is for other
    /// hosts, or the peer is an independent proxy.
    pub fn check(&self, peer: &Peer) -> Result<(), WrongPeer> {
        match self {
            Self::Anybody => Ok(()),
            Self::Subject(expected) if name::same(expected, &peer.identity) => Ok(()),
            Self::Subject(expected) => {
                Err(WrongPeer::Subject { expected: expected.clone(), found: peer.identity.clone() })
            }
            Self::Host { name, compatibility } => {
                let certificate = peer.end_entity();
                // RFC 3820 section 3.8.2: an independent proxy has none of the rights of the
                // certificate above it.
                if certificate
                    .is_some_and(|one| name::one_line(one.subject_name()).as_ref() != Ok(&peer.identity))
                {
                    let (expected, subject) = (name.clone(), peer.identity.clone());
                    return Err(WrongPeer::Independent { expected, subject });
                }
                if certificate.is_some_and(|certificate| is_host(certificate, name, *compatibility)) {
                    return Ok(());
                }
                let names = certificate.map(|certificate| Names::of(certificate).list()).unwrap_or_default();
                Err(WrongPeer::Host { expected: name.clone(), subject: peer.identity.clone(), names })
            }
        }
    }
}

/// The names of a host in its certificate.
struct Names {
    dns: Vec<String>,
    addresses: Vec<IpAddr>,
    /// From the last common name: the service before the slash, and the host.
    common: Option<(Option<String>, String)>,
}

impl Names {
    fn of(certificate: &X509Ref) -> Self {
        let mut names = Self { dns: Vec::new(), addresses: Vec::new(), common: None };
        for general in certificate.subject_alt_names().iter().flatten() {
            if let Some(dns) = general.dnsname() {
                names.dns.push(dns.to_owned());
            } else if let Some(address) = general.ipaddress() {
                match address.len() {
                    4 => names.addresses.extend(<[u8; 4]>::try_from(address).map(IpAddr::from)),
                    16 => names.addresses.extend(<[u8; 16]>::try_from(address).map(IpAddr::from)),
                    _ => {}
                }
            }
        }
        let last = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).last();
        // Other programs would end a name at its first zero byte.
        let text = last.and_then(|entry| String::from_utf8(entry.data().as_slice().to_vec()).ok());
        names.common = text.filter(|text| !text.contains('\0')).map(|text| match text.split_once('/') {
            Some((service, host)) => (Some(service.to_owned()), host.to_owned()),
            None => (None, text),
        });
        names
    }

    fn list(&self) -> String {
        let mut all = self.dns.clone();
        all.extend(self.addresses.iter().map(IpAddr::to_string));
        if all.is_empty() {
            all.extend(self.common.iter().map(|(_, host)| host.clone()));
        }
        if all.is_empty() { "no host".to_owned() } else { all.join(", ") }
    }
}

/// Whether a certificate is for this host.
pub fn is_host(certificate: &X509Ref, host: &str, compatibility: NameCompatibility) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    let names = Names::of(certificate);
    let alternatives = compatibility != NameCompatibility::StrictGt2;
    if let Ok(address) = host.parse::<IpAddr>()
        && alternatives
        && names.addresses.contains(&address)
    {
        return true;
    }
    if alternatives && names.dns.iter().any(|pattern| matches_dns(pattern, host)) {
        return true;
    }
    if compatibility == NameCompatibility::StrictRfc2818 && !names.dns.is_empty() {
        return false;
    }
    match &names.common {
        Some((service, common)) => {
            let service = service.as_deref().unwrap_or("host");
            let wanted =
                compatibility != NameCompatibility::StrictRfc2818 || service.eq_ignore_ascii_case("host");
            let hyphens = compatibility != NameCompatibility::StrictRfc2818;
            wanted && (common.eq_ignore_ascii_case(host) || hyphens && same_interface(common, host))
        }
        None => false,
    }
}

/// A `*` matches the first label or the end of it. It never matches more than one label, and never
/// all names under a top-level domain.
fn matches_dns(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let (Some((first, rest)), Some((label, domain))) = (pattern.split_once('.'), host.split_once('.')) else {
        return false;
    };
    let Some(start) = first.strip_suffix('*') else { return false };
    let begins = label.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
    let address = host.parse::<IpAddr>().is_ok();
    begins && !label.is_empty() && rest.contains('.') && !address && rest.eq_ignore_ascii_case(domain)
}

/// GT2's rule for hosts with several interfaces: the text after a hyphen in the first label of one
/// of the names is not compared.
fn same_interface(one: &str, other: &str) -> bool {
    let split = |name: &str| {
        let (label, domain) = name.split_once('.').unwrap_or((name, ""));
        let stem = label.split_once('-').map(|(stem, _)| stem.to_ascii_lowercase());
        (label.to_ascii_lowercase(), stem, domain.to_ascii_lowercase())
    };
    let ((label, stem, domain), (other_label, other_stem, other_domain)) = (split(one), split(other));
    domain == other_domain && (stem.as_ref() == Some(&other_label) || other_stem.as_ref() == Some(&label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_dns_accepts_wildcards_in_the_first_label_only() {
        assert!(matches_dns("*.site.org", "a.site.org"));
        assert!(matches_dns("data*.site.org", "DATA12.site.org"));
        assert!(!matches_dns("*.site.org", "a.b.site.org"));
        assert!(!matches_dns("*.site.org", "site.org"));
        assert!(!matches_dns("*.org", "site.org"));
        assert!(!matches_dns("a.*.org", "a.site.org"));
        assert!(!matches_dns("*.0.0.1", "127.0.0.1"));
        assert!(!matches_dns("é*.site.org", "e.site.org"));
    }

    #[test]
    fn same_interface_ignores_the_suffix_of_one_name() {
        assert!(same_interface("host.site.org", "host-eth1.site.org"));
        assert!(same_interface("host-eth1.site.org", "host.site.org"));
        assert!(!same_interface("host-eth1.site.org", "host-eth2.site.org"));
        assert!(!same_interface("host.site.org", "host-eth1.other.org"));
    }
}
