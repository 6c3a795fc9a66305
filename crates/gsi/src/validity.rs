//! Checks certificates and revocation lists by themselves, before a peer sends a chain. The server
//! uses it to report problems of its configuration: certificates and lists that have expired or
//! expire soon, and files that cannot be read. The results are messages; nothing is refused here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use openssl::x509::{X509, X509CrlRef, X509Ref};

use crate::certificate::Details;
use crate::chain_error::ChainError;
use crate::name::one_line;
use crate::signing_policy::MAX_FILE;
use crate::time::Timestamp;
use crate::trust::{self, Trust};
use crate::verify::timestamp;

/// Certificates are reported if they expire within this many seconds.
const SOON: u64 = 7 * 86_400;
/// The largest file, in bytes; lists of large authorities have several megabytes.
const MOST: u64 = 64 * MAX_FILE as u64;

/// Describes what is wrong with one certificate now: it has expired, is not valid yet, or expires
/// within a week.
pub fn of_certificate(certificate: &X509Ref, now: Timestamp) -> Option<String> {
    let details = match Details::of(certificate) {
        Ok(details) => details,
        Err(error) => return Some(format!("a certificate cannot be read: {error}")),
    };
    let (subject, from, end) = (details.subject, details.not_before, details.not_after);
    if end <= now {
        Some(format!("the certificate of {subject} expired at {end}"))
    } else if from > now {
        Some(format!("the certificate of {subject} is valid only from {from} on"))
    } else if end.left_at(now) < SOON {
        Some(format!("the certificate of {subject} ends soon, at {end}"))
    } else {
        None
    }
}

/// The same checks for each certificate in a PEM file. Each message begins with the file name.
pub fn of_certificates(path: &Path, now: Timestamp) -> Vec<String> {
    let found = read(path).and_then(|text| X509::stack_from_pem(&text).map_err(|e| e.to_string()));
    let told = match found {
        Ok(all) => all.iter().filter_map(|certificate| of_certificate(certificate, now)).collect(),
        Err(error) => vec![error],
    };
    told.into_iter().map(|text| format!("{}: {text}", path.display())).collect()
}

/// Checks the revocation lists in a file, or in the files `HASH.r0` of a directory, and reports
/// those that have expired, are not valid yet, or cannot be read.
pub fn of_revocation_lists(place: &Path, now: Timestamp) -> Vec<String> {
    let files = if place.is_dir() {
        hashed(place).into_iter().filter(|(_, list)| *list).map(|(path, _)| path).collect()
    } else {
        vec![place.to_owned()]
    };
    files.iter().flat_map(|path| of_lists(path, now)).collect()
}

fn of_lists(path: &Path, now: Timestamp) -> Vec<String> {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => return vec![format!("{}: {error}", path.display())],
    };
    let Some(lists) = ropewalk_tls::revocation_lists(&text) else {
        return vec![ChainError::UnreadableCrl { path: path.to_owned() }.to_string()];
    };
    lists.iter().filter_map(|list| of_list(list, path, now)).map(|error| error.to_string()).collect()
}

/// The authority that issued a list, for messages.
fn issuer(list: &X509CrlRef) -> String {
    one_line(list.issuer_name())
        .unwrap_or_else(|error| format!("an authority whose name is invalid ({error})"))
}

fn of_list(list: &X509CrlRef, path: &Path, now: Timestamp) -> Option<ChainError> {
    let path = path.to_owned();
    match (timestamp(list.last_update()), list.next_update().map(timestamp)) {
        (Err(error), _) | (_, Some(Err(error))) => Some(error),
        (Ok(from), _) if from > now => Some(ChainError::FutureCrl { path, from }),
        (_, Some(Ok(since))) if since < now => {
            Some(ChainError::ExpiredCrl { path, authority: issuer(list), since })
        }
        _ => None,
    }
}

impl Trust {
    /// Reports why authorities of the directory cannot be trusted now: certificates and revocation
    /// lists that have expired or are not valid yet, lists of another authority, and missing or
    /// invalid signing policies.
    pub fn doubts(&self, now: Timestamp) -> Vec<String> {
        let mut told = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let anchors = self.anchors.iter().filter_map(|anchor| of_certificate(anchor, now));
        told.extend(anchors.map(|text| format!("{text} (GLOBUS_GFS_EXTRA_CA_CERTS)")));
        let Some(directory) = &self.directory else { return told.into_iter().collect() };
        for (path, _) in hashed(directory).into_iter().filter(|(_, list)| !*list) {
            // One authority has two file names if the directory has hashes of both the old and the
            // new kind.
            if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                continue;
            }
            let found = trust::read(&path).map(Option::unwrap_or_default);
            let found = found.map(|text| X509::stack_from_pem(&text).unwrap_or_default());
            match found {
                Ok(all) if all.is_empty() => {
                    told.insert(format!("{}: there is no certificate in it", path.display()));
                }
                Ok(all) => {
                    for authority in all {
                        told.extend(self.of_authority(&authority, &path, now));
                    }
                }
                Err(error) => {
                    told.insert(error.to_string());
                }
            }
        }
        told.into_iter().collect()
    }

    fn of_authority(&self, authority: &X509, path: &Path, now: Timestamp) -> Vec<String> {
        let subject = match one_line(authority.subject_name()) {
            Ok(subject) => subject,
            Err(error) => return vec![format!("{}: {error}", path.display())],
        };
        let mut told = Vec::new();
        if let Some(text) = of_certificate(authority, now) {
            told.push(format!("{}: {text}", path.display()));
        }
        // The list of an expired authority does not matter.
        if authority_ended(authority, now) {
            return told;
        }
        told.extend(self.policy(authority, &subject).err().map(|error| error.to_string()));
        match self.revocation_lists(authority) {
            Ok(lists) => told.extend(lists.iter().filter_map(|(list, path)| {
                self.of_list_by(authority, &subject, list, path, now).map(|error| error.to_string())
            })),
            Err(error) => told.push(error.to_string()),
        }
        told
    }

    fn of_list_by(
        &self,
        authority: &X509,
        subject: &str,
        list: &X509CrlRef,
        path: &Path,
        now: Timestamp,
    ) -> Option<ChainError> {
        if ropewalk_tls::is_signed_by(list, authority) {
            return of_list(list, path, now);
        }
        match self.is_list_of_namesake(list, authority) {
            // The list is reported with the other authority.
            Ok(true) => None,
            Ok(false) => Some(ChainError::ForgedCrl { path: path.to_owned(), authority: subject.to_owned() }),
            Err(error) => Some(error),
        }
    }
}

fn authority_ended(authority: &X509, now: Timestamp) -> bool {
    timestamp(authority.not_after()).is_ok_and(|end| end <= now)
}

/// Files of a directory named like the certificates (`HASH.0`) or the revocation lists (`HASH.r0`,
/// with `true`) of an authority, in the order of their names.
fn hashed(directory: &Path) -> Vec<(PathBuf, bool)> {
    let names = directory.read_dir().into_iter().flatten().flatten();
    let mut found: Vec<_> = names
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (hash, index) = name.split_once('.')?;
            let list = index.starts_with('r');
            let index = index.strip_prefix('r').unwrap_or(index);
            let fits = hash.len() == 8
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
                && index.len() == 1
                && index.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| (entry.path(), list))
        })
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    ropewalk_files::read(path, MOST).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;
    use crate::testing::Site;

    const DAY: i64 = 86_400;

    fn site() -> (tempfile::TempDir, Site, String) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path());
        let hash = format!("{:08x}", site.ca.certificate().subject_name_hash());
        (directory, site, hash)
    }

    fn after(days: i64) -> Timestamp {
        Timestamp(Timestamp::now().0 + days * DAY)
    }

    #[test]
    fn doubts_report_expired_authorities_and_lists() {
        let (_directory, site, hash) = site();
        assert_eq!(site.trust().doubts(after(0)), [""; 0]);
        // The list is valid for ten days, the authority for thirty.
        let told = site.trust().doubts(after(11));
        assert!(told.len() == 1 && told[0].contains(&format!("{hash}.r0 expired at")), "{told:?}");
        assert!(told[0].contains("/CN=Test CA is not believed"), "{told:?}");
        assert!(site.trust().doubts(after(25)).concat().contains("Test CA ends soon"));
        let told = site.trust().doubts(after(31));
        assert!(told.len() == 1 && told[0].contains("Test CA expired at"), "{told:?}");
        assert!(site.trust().doubts(after(-1)).concat().contains("only from"));
    }

    #[test]
    fn doubts_report_invalid_lists_and_policies() {
        let (_directory, site, hash) = site();
        let (_other_directory, other, _) = self::site();
        let at = |end: &str| site.certificates().join(format!("{hash}.{end}"));
        let told = |part: &str| {
            let told = site.trust().doubts(after(0));
            assert!(told.len() == 1 && told[0].contains(part), "{part}: {told:?}");
        };
        let list = fs::read(at("r0")).unwrap();
        fs::write(at("r0"), other.ca.revocation_list(10).unwrap()).unwrap();
        told("is not signed by");
        fs::write(at("r0"), "nothing").unwrap();
        told("is no revocation list");
        fs::write(at("r0"), list).unwrap();
        let policy = fs::read(at("signing_policy")).unwrap();
        fs::write(at("signing_policy"), "access_id_CA").unwrap();
        told("signing_policy: line 1");
        fs::remove_file(at("signing_policy")).unwrap();
        told("has no signing policy");
        fs::write(at("signing_policy"), policy).unwrap();
        fs::write(site.certificates().join("00000000.0"), "nothing").unwrap();
        told("00000000.0: there is no certificate in it");
    }

    #[test]
    fn certificates_and_lists_in_files_are_checked() {
        let (_directory, site, hash) = site();
        let host = site.path("host.pem");
        fs::write(&host, site.host().certificate().to_pem().unwrap()).unwrap();
        assert_eq!(of_certificates(&host, after(0)), [""; 0]);
        assert!(of_certificates(&host, after(4))[0].contains("host.pem: the certificate of"));
        assert!(of_certificates(&host, after(11))[0].contains("expired at"));
        assert!(of_certificates(&site.path("missing"), after(0))[0].contains("No such file"));
        let list = site.certificates().join(format!("{hash}.r0"));
        for place in [&list, &site.certificates()] {
            assert_eq!(of_revocation_lists(place, after(0)), [""; 0]);
            assert!(of_revocation_lists(place, after(11))[0].contains("expired at"));
        }
        let both = [fs::read(&list).unwrap(), site.ca.revocation_list(1).unwrap()].concat();
        fs::write(site.path("both"), both).unwrap();
        assert_eq!(of_revocation_lists(&site.path("both"), after(2)).len(), 1);
        assert!(of_revocation_lists(&host, after(0))[0].contains("is no revocation list"));
    }
}
