//! TLS of control connections (RFC 4217): when it is used, and which servers a run trusts.
//!
//! The setup of a run owns one [`Shared`] for all of its sessions. A server is trusted if a trusted
//! authority has signed its certificate, if the user has accepted the certificate before, or if the
//! user accepts it now; the decision is recorded in the file of accepted servers. A revoked
//! certificate, and a changed one of a server that the user has accepted, are refused with an error
//! that explains what to do.

use std::collections::HashMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use ropewalk_protocol::url::Scheme;
use ropewalk_tls::{Client, ClientSettings, Distrust, Established, Fingerprint, X509};

use crate::Options;
use crate::known_hosts::{Known, KnownHosts};
use crate::place::End;

/// The state that the sessions of a run share.
#[derive(Default)]
pub(crate) struct Shared {
    /// By the client's credential.
    clients: Mutex<HashMap<Option<PathBuf>, Result<Client, String>>>,
    /// Servers that were accepted in this run. The lock is held while the user is asked, because
    /// several sessions start at the same time.
    accepted: Mutex<HashMap<String, Fingerprint>>,
}

/// How TLS is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The connection starts with TLS.
    AtOnce,
    /// AUTH TLS is sent.
    Asked,
}

/// How the URL and the options ask for TLS; `None` means that it is not used.
pub(crate) fn begin(scheme: Scheme, options: &Options) -> Option<Begin> {
    match scheme {
        Scheme::Ftps => Some(Begin::AtOnce),
        Scheme::Ftpes => Some(Begin::Asked),
        Scheme::Ftp if options.login.tls => Some(Begin::Asked),
        _ => None,
    }
}

impl Shared {
    pub(crate) fn client(&self, options: &Options, end: Option<End>) -> Result<Client, String> {
        let credential = options.end(end).credential;
        let make = || {
            let settings = ClientSettings {
                authorities: options.trust.authorities.clone(),
                revocations: options.trust.revocations.clone(),
                credential: credential.clone(),
                ..ClientSettings::default()
            };
            Client::new(&settings).map_err(|e| e.to_string())
        };
        let mut clients = self.clients.lock();
        clients.entry(credential.clone()).or_insert_with(make).clone()
    }

    /// Whether the server that was reached as `host` is trusted. `name` is host and port, as in the
    /// file of accepted servers.
    pub(crate) fn believe(
        &self,
        established: &Established,
        host: &str,
        name: &str,
        options: &Options,
    ) -> Result<X509, String> {
        let certificate = established.certificate().ok_or_else(|| Distrust::None.to_string())?;
        let shown = Fingerprint::of(&certificate).map_err(|e| e.to_string())?;
        if let Some(wanted) = options.trust.fingerprint {
            return match wanted == shown {
                true => Ok(certificate),
                false => Err(format!(
                    "its certificate is not the one that was asked for with --fingerprint: it has {shown}, not {wanted}"
                )),
            };
        }
        let mut accepted = self.accepted.lock();
        if accepted.get(name) == Some(&shown) {
            return Ok(certificate);
        }
        let distrust = Client::distrust(established, host);
        judge(distrust.as_ref(), shown, name, options)?;
        accepted.insert(name.to_owned(), shown);
        Ok(certificate)
    }
}

/// Trusts a server on first use, unless a trusted authority has signed the certificate of a server
/// that is not known.
fn judge(
    distrust: Option<&Distrust>,
    shown: Fingerprint,
    name: &str,
    options: &Options,
) -> Result<(), String> {
    let file = KnownHosts::of(options.state_directory.as_deref());
    loop {
        let known = match &file {
            Some(file) => file.find(name).map_err(|e| e.to_string())?,
            None => None,
        };
        let Some(learned) = verdict(distrust, shown, known, name, file.as_ref(), options)? else {
            return Ok(());
        };
        let Some(file) = &file else { return Ok(()) };
        match file.remember(name, known.map(|(_, known)| known), learned) {
            Ok(true) => return Ok(()),
            // Another program has accepted the server at the same time, so its decision is checked
            // first.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "a server is not remembered");
                return Ok(());
            }
        }
    }
}

/// The new entry for a server that is trusted; `None` if its entry stays.
fn verdict(
    distrust: Option<&Distrust>,
    shown: Fingerprint,
    known: Option<(usize, Known)>,
    name: &str,
    file: Option<&KnownHosts>,
    options: &Options,
) -> Result<Option<Known>, String> {
    let place = |line: usize| {
        file.map_or_else(String::new, |file| format!("line {line} of {}", file.path().display()))
    };
    let Some(distrust) = distrust else {
        return match known {
            Some((_, Known::Authority)) => Ok(None),
            // An authority may sign a certificate for an impostor, so a changed certificate is
            // refused even if it is signed.
            Some((line, Known::Fingerprint(known))) if known != shown => Err(format!(
                "ITS CERTIFICATE HAS CHANGED. It has {shown} now, for which a trusted authority vouches, and had {known} \
                     when it was accepted. Either the server has a new certificate, or somebody stands between who has one, \
                     too. Ask its operator for the fingerprint; if it is right, `ropewalk known-hosts forget {name}` forgets \
                     the old one ({}); --fingerprint {shown} goes on without",
                place(line)
            )),
            Some((_, Known::Fingerprint(_))) | None => Ok(Some(Known::Authority)),
        };
    };
    if let Distrust::Revoked(_) = distrust {
        // A known server is refused, too, because its key may be in any hands.
        return Err(format!(
            "{distrust}. Its fingerprint is {shown}; go on only if its operator says that it is good all the same, with \
             --fingerprint {shown}"
        ));
    }
    match known {
        Some((_, Known::Fingerprint(known))) if known == shown => return Ok(None),
        Some((line, Known::Fingerprint(known))) => {
            return Err(format!(
                "ITS CERTIFICATE HAS CHANGED. It has {shown} now, and had {known} when it was accepted. Either the server has \
                 a new certificate, or somebody stands between. Ask its operator for the fingerprint; if it is right, `ropewalk \
                 known-hosts forget {name}` forgets the old one ({}); --fingerprint {shown} goes on without",
                place(line)
            ));
        }
        Some((line, Known::Authority)) => {
            return Err(format!(
                "NO AUTHORITY VOUCHES FOR IT ANY MORE: {distrust}. One did at an earlier time. Either an authority is not \
                 known here (--authorities), or somebody stands between. Ask the server's operator for the fingerprint; if it \
                 is {shown}, `ropewalk known-hosts forget {name}` forgets that ({}); --fingerprint {shown} goes on without",
                place(line)
            ));
        }
        None => {}
    }
    if !distrust.is_unknown() {
        return Err(format!(
            "{distrust}. If the server's operator says that its fingerprint is {shown}, go on with --fingerprint {shown}"
        ));
    }
    let accepted = options.trust.accept_new
        || options.prompts.confirm.as_ref().is_some_and(|confirm| {
            confirm.ask(&format!(
                "{name} is not known, and no trusted authority vouches for it: {distrust}.\nIts fingerprint is {shown}.\nIs \
                 this what its operator says?"
            ))
        });
    if !accepted {
        return Err(format!(
            "{distrust}, and it is not known from earlier. Its fingerprint is {shown}: if its operator says the same, accept \
             it with --fingerprint {shown}, or with --accept-new once, after which it is remembered"
        ));
    }
    if options.trust.accept_new {
        tracing::warn!(server = name, fingerprint = %shown, "accepted a server that was not known");
    }
    Ok(Some(Known::Fingerprint(shown)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NAME: &str = "localhost:2811";

    fn fingerprint(digit: u8) -> Fingerprint {
        format!("0{digit}").repeat(32).parse().unwrap()
    }

    fn options(state: &tempfile::TempDir) -> Options {
        Options::default().with(|o| o.state_directory = Some(state.path().to_owned()))
    }

    /// Another program writes the file between this one's read and write.
    #[test]
    fn who_accepts_at_the_same_time_does_not_overwrite_what_was_accepted() {
        for (theirs, believed) in [(1, false), (2, true)] {
            let state = tempfile::tempdir().unwrap();
            let hosts = || KnownHosts::of(Some(state.path())).unwrap();
            let directory = state.path().to_owned();
            let meanwhile = crate::Confirm::new(move |_| {
                let hosts = KnownHosts::of(Some(&directory)).unwrap();
                assert!(hosts.remember(NAME, None, Known::Fingerprint(fingerprint(theirs))).unwrap());
                true
            });
            let options = options(&state).with(|o| o.prompts.confirm = Some(meanwhile));
            let judged = judge(Some(&Distrust::SelfSigned), fingerprint(2), NAME, &options);
            assert_eq!(judged.is_ok(), believed, "{judged:?}");
            assert_eq!(hosts().find(NAME).unwrap(), Some((1, Known::Fingerprint(fingerprint(theirs)))));
        }
    }

    #[test]
    fn an_authority_does_not_speak_for_another_than_was_accepted() {
        let state = tempfile::tempdir().unwrap();
        let accepting = options(&state).with(|o| o.trust.accept_new = true);
        let known = || KnownHosts::of(Some(state.path())).unwrap().find(NAME).unwrap().unwrap().1;
        judge(Some(&Distrust::SelfSigned), fingerprint(1), NAME, &accepting).unwrap();
        for options in [options(&state), accepting] {
            let text = judge(None, fingerprint(2), NAME, &options).unwrap_err();
            assert!(
                text.contains("CERTIFICATE HAS CHANGED") && text.contains("a trusted authority vouches"),
                "{text}"
            );
            assert!(text.contains("`ropewalk known-hosts forget localhost:2811`"), "{text}");
            assert_eq!(known(), Known::Fingerprint(fingerprint(1)));
            judge(Some(&Distrust::SelfSigned), fingerprint(1), NAME, &options).unwrap();
        }
        // From then on the authority decides.
        judge(None, fingerprint(1), NAME, &options(&state)).unwrap();
        assert_eq!(known(), Known::Authority);
        judge(None, fingerprint(2), NAME, &options(&state)).unwrap();
        assert!(judge(Some(&Distrust::SelfSigned), fingerprint(1), NAME, &options(&state)).is_err());
    }
}
