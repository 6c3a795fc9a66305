//! Paths that name files at other servers.
//!
//! A path has lost one of the slashes after the scheme: `/ftp:/HOST:PORT/data/f`. The rest of it
//! may again name a server, which the next relay connects to.

use bstr::ByteSlice;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::url::{Scheme, Url};

/// The schemes of servers that a relay can use.
const SCHEMES: [Scheme; 4] = [Scheme::Ftp, Scheme::Ftps, Scheme::Ftpes, Scheme::Gsiftp];
/// Schemes of other servers, for a precise refusal.
const OTHERS: [&[u8]; 9] =
    [b"sshftp:", b"sftp:", b"http:", b"https:", b"file:", b"s3:", b"davs:", b"root:", b"xroot:"];

/// A file at another server.
#[derive(Debug, PartialEq)]
pub(super) struct Name {
    pub(super) url: Url,
    pub(super) path: VirtualPath,
    /// How much of the path in this store names the server.
    pub(super) prefix: usize,
    /// The servers that the rest of the path leads to.
    pub(super) beyond: Vec<Url>,
}

impl Name {
    /// `None` if the path is one of the store itself.
    ///
    /// # Errors
    /// Why no relay goes there.
    pub(super) fn of(path: &VirtualPath, hops: usize) -> Option<Result<Self, String>> {
        let first = path.components().next()?;
        if OTHERS.contains(&first.as_ref()) {
            let text = format!("{first}// is not relayed: only ftp, ftps, ftpes and gsiftp are");
            return Some(Err(text));
        }
        is_scheme(first).then(|| Self::parse(path, hops))
    }

    fn parse(path: &VirtualPath, hops: usize) -> Result<Self, String> {
        let parts: Vec<&[u8]> = path.components().map(AsRef::as_ref).collect();
        let (mut servers, mut beyond) = (Vec::new(), Vec::new());
        for pair in parts.chunks(2) {
            let [scheme, rest @ ..] = pair else { break };
            if !is_scheme(scheme) {
                break;
            }
            let Some(server) = rest.first() else {
                return Err("a server is missing after its scheme".to_owned());
            };
            if server.contains(&b'@') {
                return Err("a path must not contain a user name or password".to_owned());
            }
            let server = server.to_ascii_lowercase();
            if servers.contains(&server) {
                let server = String::from_utf8_lossy(&server).into_owned();
                return Err(format!("the path leads to {server} twice"));
            }
            if !servers.is_empty() {
                // An invalid name is refused by the relay that would connect to it.
                beyond.extend(Url::parse(&format!("{}//{}/", scheme.as_bstr(), server.as_bstr())));
            }
            servers.push(server);
            if servers.len() > hops {
                return Err(format!("the path leads through more than {hops} relays"));
            }
        }
        let (scheme, server) = (parts[0], parts.get(1).copied().unwrap_or_default());
        let text = [scheme, b"//", server, b"/"].concat();
        let text = String::from_utf8(text).map_err(|_| "the name of a server is not text".to_owned())?;
        let url = Url::parse(&text).map_err(|error| error.to_string())?;
        let prefix = 2 + scheme.len() + server.len();
        let rest = path.as_bytes().get(prefix..).filter(|rest| !rest.is_empty()).unwrap_or(b"/");
        let rest = VirtualPath::parse(rest).map_err(|error| error.to_string())?;
        Ok(Self { url, path: rest, prefix, beyond })
    }
}

fn is_scheme(part: &[u8]) -> bool {
    let name = part.strip_suffix(b":");
    name.is_some_and(|name| SCHEMES.iter().any(|scheme| name.eq_ignore_ascii_case(scheme.name().as_bytes())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn name(path: &str) -> Option<Result<Name, String>> {
        Name::of(&VirtualPath::parse(path.as_bytes()).unwrap(), 8)
    }

    #[test]
    fn path_with_a_scheme_names_a_server_and_a_path_there() {
        for (path, url, rest) in [
            ("/ftp://h:99/data/f", "ftp://h:99/", "/data/f"),
            ("/gsiftp:/h", "gsiftp://h/", "/"),
            ("/FTP://h/", "ftp://h/", "/"),
            ("/gsiftp://b:1/ftp://a:2/f", "gsiftp://b:1/", "/ftp:/a:2/f"),
            ("/ftp://[::1]:99/f", "ftp://[::1]:99/", "/f"),
        ] {
            let name = name(path).unwrap().unwrap();
            assert_eq!(
                (name.url, name.path.to_string()),
                (Url::parse(url).unwrap(), rest.to_owned()),
                "{path}"
            );
        }
        for path in ["/", "/data/ftp:/h/f", "/ftp/h", "/gsiftp"] {
            assert!(name(path).is_none(), "{path}");
        }
    }

    #[test]
    fn path_that_is_not_relayed_is_refused_with_the_reason() {
        let chain = |n: usize| (0..n).map(|i| format!("/ftp://h{i}")).collect::<String>() + "/f";
        for (path, reason) in [
            ("/http://h/f".to_owned(), "http:// is not relayed"),
            ("/sshftp://h/f".to_owned(), "sshftp:// is not relayed"),
            ("/ftp://".to_owned(), "a server is missing"),
            ("/ftp://ada:secret@h/f".to_owned(), "must not contain a user name"),
            ("/ftp://a/ftp://ada@b/f".to_owned(), "must not contain a user name"),
            ("/ftp://a:1/gsiftp://b/ftp://A:1/f".to_owned(), "leads to a:1 twice"),
            ("/ftp://h:99999/f".to_owned(), ""),
            (chain(9), "more than 8 relays"),
            (chain(50), "more than 8 relays"),
        ] {
            let text = name(&path).unwrap().unwrap_err();
            assert!(text.contains(reason) && !text.contains("secret"), "{path}: {text}");
        }
        assert!(name(&chain(8)).unwrap().is_ok());
    }

    proptest! {
        #[test]
        fn any_path_is_judged_without_panic(parts in proptest::collection::vec("(ftp:|gsiftp:|[a-z:@%0-9]{0,6})", 0..20)) {
            if let Ok(path) = VirtualPath::parse(format!("/{}", parts.join("/")).as_bytes())
                && let Some(Ok(name)) = Name::of(&path, 8)
            {
                prop_assert!(name.prefix <= path.as_bytes().len());
            }
        }
    }
}
