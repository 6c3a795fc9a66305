//! Kinds of proxy certificates, and the extension that says what their bearer may do (RFC 3820
//! section 3.8).

use crate::der::{self, DerError, Reader};
use crate::oid;

/// The rights that a proxy has of those of its issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All rights ("impersonation").
    All,
    /// The rights that data transfers need; services that start jobs refuse such proxies.
    Limited,
    /// No rights; the proxy is an identity of its own.
    Independent,
    /// A policy in an unknown language.
    Other,
}

/// How a proxy certificate is marked as a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// By the extension of RFC 3820.
    Rfc3820(Rights),
    /// By the extension of the drafts before it ("GSI 3").
    Draft(Rights),
    /// By its last common name, `proxy` or `limited proxy` ("GSI 2").
    Legacy { limited: bool },
}

impl ProxyKind {
    pub fn rights(self) -> Rights {
        match self {
            Self::Rfc3820(rights) | Self::Draft(rights) => rights,
            Self::Legacy { limited: false } => Rights::All,
            Self::Legacy { limited: true } => Rights::Limited,
        }
    }

    pub fn is_limited(self) -> bool {
        self.rights() == Rights::Limited
    }

    /// The same kind of mark with other rights.
    pub fn with_rights(self, rights: Rights) -> Self {
        match self {
            Self::Rfc3820(_) => Self::Rfc3820(rights),
            Self::Draft(_) => Self::Draft(rights),
            Self::Legacy { .. } => Self::Legacy { limited: rights == Rights::Limited },
        }
    }

    /// Whether both have the same kind of mark.
    pub fn same_family(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl std::fmt::Display for ProxyKind {
    /// Uses the names of `grid-proxy-info -type`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rights = match self.rights() {
            Rights::All => "impersonation",
            Rights::Limited => "limited",
            Rights::Independent => "independent",
            Rights::Other => "restricted",
        };
        match self {
            Self::Rfc3820(_) => write!(f, "RFC 3820 compliant {rights} proxy"),
            Self::Draft(_) => write!(f, "Proxy draft (pre-RFC) compliant {rights} proxy"),
            Self::Legacy { limited: false } => f.write_str("full legacy globus proxy"),
            Self::Legacy { limited: true } => f.write_str("limited legacy globus proxy"),
        }
    }
}

/// Content of a proxyCertInfo extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyPolicy {
    pub rights: Rights,
    pub path_length: Option<u64>,
}

/// In the drafts, the path length follows the policy and is wrapped in this tag.
const DRAFT_LENGTH: u8 = 0xa1;

impl ProxyPolicy {
    /// Parses the form of the RFC and that of the drafts.
    pub(crate) fn parse(value: &[u8]) -> Result<Self, DerError> {
        let mut outer = Reader::new(value);
        let mut info = outer.sequence()?;
        outer.end()?;
        let mut path_length = match info.optional(der::INTEGER)? {
            Some(length) => Some(der::unsigned(length.content)?),
            None => None,
        };
        let mut policy = info.sequence()?;
        if let Some(length) = info.optional(DRAFT_LENGTH)? {
            path_length = Some(length.reader().unsigned()?);
        }
        info.end()?;
        let rights = match policy.expect(der::OID)?.content {
            oid::INHERIT_ALL => Rights::All,
            oid::LIMITED => Rights::Limited,
            oid::INDEPENDENT => Rights::Independent,
            _ => Rights::Other,
        };
        // The languages inherit-all and independent have no policy text (RFC 3820 section 3.8.2).
        let text = policy.optional(der::OCTET_STRING)?;
        policy.end()?;
        if text.is_some() && matches!(rights, Rights::All | Rights::Independent) {
            return Err(DerError::Value);
        }
        Ok(Self { rights, path_length })
    }

    pub(crate) fn encode(self, draft: bool) -> Vec<u8> {
        let language = match self.rights {
            Rights::Limited => oid::LIMITED,
            Rights::Independent => oid::INDEPENDENT,
            Rights::All | Rights::Other => oid::INHERIT_ALL,
        };
        let policy = der::sequence(&[&der::element(der::OID, language)]);
        let length = self.path_length.map(der::integer).unwrap_or_default();
        match (draft, self.path_length) {
            (true, Some(_)) => der::sequence(&[&policy, &der::element(DRAFT_LENGTH, &length)]),
            _ => der::sequence(&[&length, &policy]),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn encoded_policy_is_parsed_back() {
        for rights in [Rights::All, Rights::Limited, Rights::Independent] {
            for path_length in [None, Some(0), Some(3), Some(200)] {
                let policy = ProxyPolicy { rights, path_length };
                assert_eq!(ProxyPolicy::parse(&policy.encode(false)).unwrap(), policy);
                assert_eq!(ProxyPolicy::parse(&policy.encode(true)).unwrap(), policy);
            }
        }
        // GCT's acceptor puts these bytes into its requests.
        let seen = [0x30, 0x0c, 0x30, 0x0a, 6, 8, 0x2b, 6, 1, 5, 5, 7, 0x15, 1];
        assert_eq!(ProxyPolicy::parse(&seen).unwrap().rights, Rights::All);
        assert_eq!(ProxyPolicy { rights: Rights::All, path_length: None }.encode(false), seen);
    }

    #[test]
    fn parse_refuses_negative_lengths_and_keeps_unknown_languages() {
        let negative = der::sequence(&[
            &der::element(der::INTEGER, &[0xff]),
            &der::sequence(&[&der::element(der::OID, oid::INHERIT_ALL)]),
        ]);
        assert!(ProxyPolicy::parse(&negative).is_err());
        let unknown = der::sequence(&[&der::sequence(&[&der::element(der::OID, &[0x2a, 3])])]);
        assert_eq!(ProxyPolicy::parse(&unknown).unwrap().rights, Rights::Other);
    }
}
