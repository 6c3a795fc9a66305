//! Verification of certificate chains. Proxies are checked here (RFC 3820 and its predecessors),
//! the certificates above them by OpenSSL (RFC 5280). Signing policies and revocation lists are
//! checked last.
//!
//! Purposes (extended key usage) are not checked, because on data connections user certificates act
//! as servers.

use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::stack::Stack;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{CrlStatus, X509, X509Ref, X509StoreContext};
use ropewalk_tls::{forget_errors, is_signed_by};

use crate::certificate::{DIGITAL_SIGNATURE, Details};
use crate::chain_error::ChainError;
use crate::der;
use crate::keys;
use crate::name;
use crate::oid;
use crate::proxy_info::{ProxyKind, Rights};
use crate::time::Timestamp;
use crate::trust::Trust;

/// The longest accepted chain.
pub const MAX_CHAIN: usize = 32;

/// How many certificates with the name of a proxy's issuer are tried.
const NAMESAKES: usize = 3;

/// A peer whose chain was accepted.
#[derive(Clone, Debug)]
pub struct Peer {
    /// One-line subject without the common names that proxies added.
    pub identity: String,
    /// One-line subject of the first certificate.
    pub subject: String,
    /// Kind of the first certificate, if it is a proxy.
    pub proxy: Option<ProxyKind>,
    /// The time at which the first certificate of the chain expires.
    pub not_after: Timestamp,
    /// The chain from the peer's certificate to the trusted one.
    pub chain: Vec<X509>,
    /// How many certificates of `chain` are proxies.
    pub proxies: usize,
}

impl Peer {
    /// Whether the peer authenticated with a limited proxy.
    pub fn is_limited(&self) -> bool {
        self.proxy.is_some_and(ProxyKind::is_limited)
    }

    /// The end-entity certificate: the first that is not a proxy.
    pub fn end_entity(&self) -> Option<&X509> {
        self.chain.get(self.proxies)
    }
}

/// A certificate and its decoded fields.
struct Link {
    certificate: X509,
    details: Details,
}

impl Trust {
    /// Verifies a chain. `chain` has the peer's own certificate first; the rest may be in any
    /// order.
    ///
    /// # Errors
    /// The chain is empty or too long, or leads to no trusted authority. A certificate is invalid,
    /// weak, expired, not valid yet, revoked or against a signing policy. A proxy breaks a rule. Or
    /// the files of an authority cannot be used.
    pub fn verify(&self, chain: &[X509], now: Timestamp) -> Result<Peer, ChainError> {
        let believed = self.believe(chain, now);
        // Trying several issuers leaves failed signatures in OpenSSL's error queue.
        forget_errors();
        believed
    }

    fn believe(&self, chain: &[X509], now: Timestamp) -> Result<Peer, ChainError> {
        if chain.len() > MAX_CHAIN {
            return Err(ChainError::TooLong { length: chain.len(), most: MAX_CHAIN });
        }
        let mut pool = Vec::with_capacity(chain.len());
        for (index, certificate) in chain.iter().enumerate() {
            let details =
                Details::of(certificate).map_err(|source| ChainError::Unreadable { index, source })?;
            pool.push(Link { certificate: certificate.clone(), details });
        }
        if pool.is_empty() {
            return Err(ChainError::Empty);
        }
        let (path, rest) = path_to_end_entity(pool)?;
        self.check_proxies(&path, now)?;
        let Some(end) = path.last() else { return Err(ChainError::Empty) };
        let above = self.authorities(end, &rest, now)?;
        for link in path.iter().chain(&above) {
            let key = link.certificate.public_key()?;
            if let Some((bits, least)) = keys::weakness(&key) {
                return Err(ChainError::WeakKey { subject: link.details.subject.clone(), bits, least });
            }
        }
        let not_after = path.iter().map(|link| link.details.not_after);
        let not_after = not_after.chain(above.iter().map(|link| link.details.not_after)).min();
        let independent = |link: &&Link| link.details.proxy.is_none_or(|p| p.rights() == Rights::Independent);
        let identity = path.iter().find(independent).unwrap_or(end).details.subject.clone();
        let first = &path[0].details;
        Ok(Peer {
            identity,
            subject: first.subject.clone(),
            proxy: first.proxy,
            not_after: not_after.unwrap_or(now),
            proxies: path.len() - 1,
            chain: path.iter().chain(&above).map(|link| link.certificate.clone()).collect(),
        })
    }

    /// Checks the rules between each proxy and its issuer. `path` ends with the end entity.
    fn check_proxies(&self, path: &[Link], now: Timestamp) -> Result<(), ChainError> {
        // From the end entity down: how many proxies may still follow, and which certificate limits
        // them.
        let mut left: Option<(u64, u64, &str)> = None;
        for pair in path.windows(2).rev() {
            let ([proxy, above], Some(kind)) = (pair, pair[0].details.proxy) else { continue };
            let (below, issuer) = (&proxy.details, &above.details);
            let subject = || below.subject.clone();
            let names = || (below.subject.clone(), issuer.subject.clone());
            check_times(below, now)?;
            self.check_digest(below)?;
            let (subject_name, issuer_name) = names();
            if issuer.authority {
                return Err(ChainError::ProxyOfAuthority { subject: subject_name, issuer: issuer_name });
            }
            if !name::is_extended_by_common_name(&issuer.subject_der, &below.subject_der) {
                return Err(ChainError::ProxyName { subject: subject_name, issuer: issuer_name });
            }
            if issuer.key_usage.is_some_and(|usage| usage & DIGITAL_SIGNATURE == 0) {
                return Err(ChainError::ProxyUsage { subject: subject_name, issuer: issuer_name });
            }
            if let Some(parent) = issuer.proxy {
                if !parent.same_family(kind) {
                    return Err(ChainError::MixedProxies { subject: subject_name });
                }
                let rights = kind.rights();
                if parent.is_limited() && !matches!(rights, Rights::Limited | Rights::Independent) {
                    return Err(ChainError::LimitedProxy { subject: subject_name, issuer: issuer_name });
                }
            }
            if kind.rights() == Rights::Other {
                return Err(ChainError::RestrictedProxy { subject: subject() });
            }
            let unfit = |what| ChainError::MalformedProxy { subject: below.subject.clone(), what };
            if below.authority {
                return Err(unfit("the rights of an authority"));
            }
            if below.extension(oid::SUBJECT_ALT_NAME).is_some() {
                return Err(unfit("alternative names"));
            }
            check_critical(below)?;
            if let Some((remaining, allowed, by)) = left.as_mut() {
                if *remaining == 0 {
                    let issuer = (*by).to_owned();
                    return Err(ChainError::ProxyPathLength {
                        subject: subject(),
                        issuer,
                        allowed: *allowed,
                    });
                }
                *remaining -= 1;
            }
            if let Some(own) = below.path_length
                && left.is_none_or(|(remaining, ..)| own < remaining)
            {
                left = Some((own, own, &below.subject));
            }
        }
        Ok(())
    }

    fn check_digest(&self, details: &Details) -> Result<(), ChainError> {
        let digest = match details.signature_algorithm.as_slice() {
            oid::MD5_RSA if !self.allow_md5 => "MD5",
            oid::MD2_RSA => "MD2",
            _ => return Ok(()),
        };
        Err(ChainError::WeakDigest { subject: details.subject.clone(), digest })
    }

    /// Finds the authorities above the end entity and checks their policies and revocation lists.
    fn authorities(&self, end: &Link, rest: &[Link], now: Timestamp) -> Result<Vec<Link>, ChainError> {
        if !self.anchors.is_empty() {
            let store = store(&self.anchors, X509VerifyFlags::PARTIAL_CHAIN, now)?;
            let found = self.build(&store, end, rest);
            match (found, &self.directory) {
                (Ok(above), _) => {
                    let last = above.len();
                    for details in std::iter::once(end).chain(&above).map(|link| &link.details).take(last) {
                        self.check_digest(details)?;
                    }
                    return Ok(above);
                }
                (Err(e), None) => return Err(e),
                (Err(_), Some(_)) => {}
            }
        }
        let mut trusted: Vec<X509> = Vec::new();
        let mut search: Vec<X509> = vec![end.certificate.clone()];
        search.extend(rest.iter().map(|link| link.certificate.clone()));
        while let Some(certificate) = search.pop() {
            for issuer in self.issuers(&certificate)? {
                if trusted.len() < 2 * MAX_CHAIN && !trusted.contains(&issuer) {
                    trusted.push(issuer.clone());
                    search.push(issuer);
                }
            }
        }
        let store = store(&trusted, X509VerifyFlags::empty(), now)?;
        let above = self.build(&store, end, rest)?;
        let path: Vec<&Link> = std::iter::once(end).chain(&above).collect();
        for pair in path.windows(2) {
            let [below, authority] = pair else { continue };
            self.check_digest(&below.details)?;
            self.check_policy(&below.details, authority)?;
            self.check_revocation(below, authority, now)?;
        }
        Ok(above)
    }

    /// Builds and verifies the chain with OpenSSL (RFC 5280). Returns the certificates above `end`.
    fn build(&self, store: &X509Store, end: &Link, rest: &[Link]) -> Result<Vec<Link>, ChainError> {
        let mut untrusted = Stack::new()?;
        for link in rest {
            untrusted.push(link.certificate.clone())?;
        }
        let mut context = X509StoreContext::new()?;
        let chain = context.init(store, &end.certificate, &untrusted, |context| {
            if context.verify_cert()? {
                let chain = context.chain().map(|chain| chain.iter().map(X509Ref::to_owned).collect());
                return Ok(Ok(chain.unwrap_or_else(Vec::new)));
            }
            let at_fault = context.current_cert().map(X509Ref::to_owned);
            Ok(Err((context.error(), at_fault)))
        })?;
        let chain = match chain {
            Ok(chain) => chain,
            Err((error, at_fault)) => {
                let certificate = at_fault.unwrap_or_else(|| end.certificate.clone());
                return Err(self.explain(error.as_raw(), error.error_string(), &certificate));
            }
        };
        let mut above = Vec::new();
        for (index, certificate) in chain.into_iter().enumerate().skip(1) {
            let details =
                Details::of(&certificate).map_err(|source| ChainError::Unreadable { index, source })?;
            above.push(Link { certificate, details });
        }
        Ok(above)
    }

    /// Translates OpenSSL's error code.
    fn explain(&self, code: i32, text: &str, certificate: &X509Ref) -> ChainError {
        let details = match Details::of(certificate) {
            Ok(details) => details,
            Err(source) => return ChainError::Unreadable { index: 0, source },
        };
        let subject = details.subject;
        // The numbers are those of X509_verify_cert(3).
        match code {
            9 => ChainError::NotYetValid { subject, from: details.not_before },
            10 => ChainError::Expired { subject, since: details.not_after },
            18 | 19 => ChainError::SelfSigned { subject, place: self.place() },
            2 | 20 | 21 => ChainError::UnknownAuthority {
                subject,
                issuer: details.issuer,
                place: self.place(),
                hash: certificate.issuer_name_hash(),
            },
            7 => ChainError::BadSignature { subject },
            _ => ChainError::Other { subject, reason: text.to_owned() },
        }
    }

    fn check_policy(&self, below: &Details, authority: &Link) -> Result<(), ChainError> {
        if below.is_self_issued() {
            return Ok(());
        }
        let issuer = &authority.details.subject;
        let Some((policy, path)) = self.policy(&authority.certificate, issuer)? else { return Ok(()) };
        if policy.allows(issuer, &below.subject) {
            return Ok(());
        }
        Err(ChainError::SigningPolicy { authority: issuer.clone(), subject: below.subject.clone(), path })
    }

    fn check_revocation(&self, below: &Link, authority: &Link, now: Timestamp) -> Result<(), ChainError> {
        let issuer = || authority.details.subject.clone();
        let mut asked = false;
        for (list, path) in self.revocation_lists(&authority.certificate)? {
            if !is_signed_by(&list, &authority.certificate) {
                if self.is_list_of_namesake(&list, &authority.certificate)? {
                    continue;
                }
                return Err(ChainError::ForgedCrl { path, authority: issuer() });
            }
            asked = true;
            let from = timestamp(list.last_update())?;
            if from > now {
                return Err(ChainError::FutureCrl { path, from });
            }
            if let Some(next) = list.next_update() {
                let since = timestamp(next)?;
                if since < now {
                    return Err(ChainError::ExpiredCrl { path, authority: issuer(), since });
                }
            }
            if let CrlStatus::Revoked(entry) = list.get_by_cert(&below.certificate) {
                return Err(ChainError::Revoked {
                    subject: below.details.subject.clone(),
                    serial: below.details.serial_text(),
                    authority: issuer(),
                    since: timestamp(entry.revocation_date())?,
                });
            }
        }
        if !asked && self.require_crl && self.directory.is_some() {
            return Err(ChainError::NoCrl { authority: issuer(), place: self.place() });
        }
        Ok(())
    }
}

/// Returns the path from the first certificate through the issuers of its proxies to the end
/// entity, and the remaining certificates.
fn path_to_end_entity(mut pool: Vec<Link>) -> Result<(Vec<Link>, Vec<Link>), ChainError> {
    let mut path = vec![pool.remove(0)];
    while let Some(last) = path.last()
        && last.details.proxy.is_some()
    {
        let wanted = &last.details.issuer_der;
        let mut named = false;
        let mut issuer = None;
        let namesakes = pool.iter().enumerate().filter(|(_, link)| &link.details.subject_der == wanted);
        for (index, link) in namesakes.take(NAMESAKES) {
            named = true;
            let key = link.certificate.public_key()?;
            // Any peer can send such a key to make this side spend CPU time on it.
            if let Some((bits, most)) = keys::excess(&key) {
                return Err(ChainError::HugeKey { subject: link.details.subject.clone(), bits, most });
            }
            if last.certificate.verify(&key).unwrap_or(false) {
                issuer = Some(index);
                break;
            }
        }
        let (subject, missing) = (last.details.subject.clone(), last.details.issuer.clone());
        match issuer {
            // Each certificate is used once, so loops end.
            Some(index) => path.push(pool.remove(index)),
            None if named => return Err(ChainError::BadSignature { subject }),
            None => return Err(ChainError::ProxyIssuer { subject, issuer: missing }),
        }
    }
    Ok((path, pool))
}

fn check_times(details: &Details, now: Timestamp) -> Result<(), ChainError> {
    let subject = || details.subject.clone();
    if details.not_before > now {
        return Err(ChainError::NotYetValid { subject: subject(), from: details.not_before });
    }
    if details.not_after < now {
        return Err(ChainError::Expired { subject: subject(), since: details.not_after });
    }
    Ok(())
}

fn check_critical(details: &Details) -> Result<(), ChainError> {
    const KNOWN: [&[u8]; 6] = [
        oid::PROXY_CERT_INFO,
        oid::DRAFT_PROXY_CERT_INFO,
        oid::KEY_USAGE,
        oid::EXTENDED_KEY_USAGE,
        oid::BASIC_CONSTRAINTS,
        oid::CERTIFICATE_POLICIES,
    ];
    for extension in details.extensions.iter().filter(|extension| extension.critical) {
        if !KNOWN.contains(&extension.oid.as_slice()) {
            let (subject, oid) = (details.subject.clone(), der::dotted(&extension.oid));
            return Err(ChainError::CriticalExtension { subject, oid });
        }
    }
    Ok(())
}

fn store(trusted: &[X509], flags: X509VerifyFlags, now: Timestamp) -> Result<X509Store, ChainError> {
    let mut builder = X509StoreBuilder::new()?;
    for certificate in trusted {
        builder.add_cert(certificate.clone())?;
    }
    let mut parameters = X509VerifyParam::new()?;
    parameters.set_flags(flags)?;
    parameters.set_time(now.0);
    builder.set_param(&parameters)?;
    Ok(builder.build())
}

pub(crate) fn timestamp(time: &Asn1TimeRef) -> Result<Timestamp, ChainError> {
    let since = Asn1Time::from_unix(0)?.diff(time)?;
    Ok(Timestamp(i64::from(since.days) * 86_400 + i64::from(since.secs)))
}
