//! Scopes: the rights of a token, and the paths they apply to.

use std::fmt;

use ropewalk_protocol::path::VirtualPath;

use crate::claims::Profile;
use crate::shown::shown;

/// Maximum number of storage scopes in one token.
const MOST_SCOPES: usize = 256;
/// Maximum length of a path, in bytes.
const LONGEST_PATH: usize = 4096;

/// A right. Each right also permits reading the attributes of the paths it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// `storage.read`, `read`: read files and list directories.
    Read,
    /// `storage.create`: create files and directories, and rename, but neither overwrite nor remove
    /// anything.
    Create,
    /// `storage.modify`, `write`: also overwrite, change and remove.
    Modify,
    /// `storage.stage`: only see attributes, because no file here has to be staged from tape.
    See,
}

/// A right on a path and everything beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub right: Right,
    pub path: VirtualPath,
    /// Whether the scope's path ends with `/`: it names a directory, and a file of this name is not
    /// covered.
    pub directory: bool,
}

/// All rights of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    list: Vec<Capability>,
    stated: bool,
}

/// An invalid scope, because of which the token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    #[error("{0} has no path (for everything it would be /)")]
    NoPath(String),
    #[error("{scope} has a path that {reason}")]
    Path { scope: String, reason: &'static str },
    #[error("has more than {MOST_SCOPES} parts that are about storage")]
    Many,
    #[error("has a character that no scope may have (RFC 6749 section 3.3)")]
    Characters,
}

impl Capabilities {
    /// Parses the claim `scope` (RFC 8693 section 4.2). Scopes that are not about storage are
    /// ignored.
    ///
    /// # Errors
    /// A storage scope has no path, or an ambiguous one. Such a token is refused as a whole.
    pub fn parse(scopes: &str, profile: Profile) -> Result<Self, InvalidScope> {
        if !scopes.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\') {
            return Err(InvalidScope::Characters);
        }
        let mut capabilities = Self::default();
        let (mut count, list) = (0, &mut capabilities.list);
        for scope in scopes.split(' ') {
            let (name, path) = scope.split_once(':').map_or((scope, None), |(name, path)| (name, Some(path)));
            let right = match (profile, name) {
                (Profile::Wlcg, "storage.read") | (Profile::SciTokens, "read") => Some(Right::Read),
                (Profile::Wlcg, "storage.create") => Some(Right::Create),
                (Profile::Wlcg, "storage.modify") | (Profile::SciTokens, "write") => Some(Right::Modify),
                (Profile::Wlcg, "storage.stage") => Some(Right::See),
                // `storage.poll`, which asks for the location of copies of a file, has no
                // counterpart here. Scopes of later versions are unknown.
                (Profile::Wlcg, _) if name.starts_with("storage.") => None,
                (Profile::Wlcg, _) if name.starts_with("compute.") => {
                    capabilities.stated = true;
                    continue;
                }
                (Profile::SciTokens, "queue" | "execute") => {
                    capabilities.stated = true;
                    continue;
                }
                _ => continue,
            };
            capabilities.stated = true;
            count += 1;
            if count > MOST_SCOPES {
                return Err(InvalidScope::Many);
            }
            let path = path.ok_or_else(|| InvalidScope::NoPath(shown(scope)))?;
            let path_error = |reason| InvalidScope::Path { scope: shown(scope), reason };
            let (path, directory) = parse_path(path).map_err(path_error)?;
            if let Some(right) = right {
                list.push(Capability { right, path, directory });
            }
        }
        Ok(capabilities)
    }

    /// Whether the token grants no rights on storage.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the token has scopes that state rights, even for other services (`compute.create`).
    /// Groups then grant nothing (WLCG Common JWT Profiles 1.3 section 2.2.3).
    pub fn are_stated(&self) -> bool {
        self.stated
    }

    pub fn iter(&self) -> impl Iterator<Item = &Capability> {
        self.list.iter()
    }

    /// Moves all paths beneath `base`, the directory that is the root of the token's paths.
    pub fn beneath(mut self, base: &VirtualPath) -> Self {
        for capability in &mut self.list {
            capability.path = capability.path.beneath(base);
        }
        self
    }

    /// Whether the file may be read.
    pub fn reads(&self, path: &VirtualPath) -> bool {
        self.any(path, |right| right == Right::Read)
    }

    /// Whether something new may be created at the path.
    pub fn creates(&self, path: &VirtualPath) -> bool {
        self.any(path, |right| matches!(right, Right::Create | Right::Modify))
    }

    /// Whether a directory may be created at the path: at paths where something may be created, and
    /// above them, because missing parents may be created.
    pub fn makes_directory(&self, path: &VirtualPath) -> bool {
        self.creates(path)
            || self
                .list
                .iter()
                .any(|c| matches!(c.right, Right::Create | Right::Modify) && c.path.starts_with(path))
    }

    /// Whether an existing file or directory may be changed or removed.
    pub fn modifies(&self, path: &VirtualPath) -> bool {
        self.any(path, |right| right == Right::Modify)
    }

    /// Whether the checksum of a whole file may be read. It is an attribute (section 2.2.1 of the
    /// profile); a client that may only create needs it to check that its file has arrived.
    pub fn sums(&self, path: &VirtualPath) -> bool {
        self.any(path, |_| true)
    }

    /// Whether attributes of the path may be read. This is permitted for covered paths and for the
    /// directories above them.
    pub fn sees(&self, path: &VirtualPath) -> bool {
        self.list.iter().any(|c| path.starts_with(&c.path) || c.path.starts_with(path))
    }

    /// Whether a listing of the parent directory shows this path. It shows paths that may be read
    /// or changed, and those that lead to a covered path.
    pub fn shows(&self, path: &VirtualPath) -> bool {
        self.any(path, |right| matches!(right, Right::Read | Right::Modify))
            || self.list.iter().any(|c| c.path.starts_with(path))
    }

    /// Whether neither the path nor anything beneath it may be read.
    pub fn hides_tree(&self, path: &VirtualPath) -> bool {
        !self.reads(path) && !self.list.iter().any(|c| c.right == Right::Read && c.path.starts_with(path))
    }

    fn any(&self, path: &VirtualPath, right: impl Fn(Right) -> bool) -> bool {
        self.list.iter().any(|c| right(c.right) && c.covers(path))
    }
}

impl Capability {
    /// Compares whole components: `/foo` covers `/foo` and `/foo/bar`, but not `/foobar`.
    fn covers(&self, path: &VirtualPath) -> bool {
        path.starts_with(&self.path) && !(self.directory && *path == self.path)
    }
}

impl fmt::Display for Capabilities {
    /// Formats the rights for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Capability { right, path, directory }) in self.list.iter().enumerate() {
            let right = match right {
                Right::Read => "read",
                Right::Create => "create",
                Right::Modify => "modify",
                Right::See => "see",
            };
            let space = if i == 0 { "" } else { " " };
            let slash = if *directory { "/" } else { "" };
            write!(f, "{space}{right}:{}{slash}", path.as_bytes().escape_ascii())?;
        }
        Ok(())
    }
}

/// Parses the path of a scope; also returns whether it ends with `/`. The path must be in normal
/// form already: other software could understand a path in another form differently.
fn parse_path(text: &str) -> Result<(VirtualPath, bool), &'static str> {
    if !text.starts_with('/') {
        return Err("does not begin with /");
    }
    if text.len() > LONGEST_PATH {
        return Err("is too long");
    }
    let mut path = VirtualPath::root();
    let (text, directory) = match text.strip_suffix('/') {
        Some("") => return Ok((path, false)),
        Some(text) => (text, true),
        None => (text, false),
    };
    for component in text.split('/').skip(1) {
        let name = percent_decode(component)?;
        match &*name {
            b"" => return Err("has an empty component (//)"),
            b"." | b".." => return Err("has a component . or .."),
            _ => {}
        }
        path = path.child(&name).map_err(|_| "cannot be one")?;
    }
    Ok((path, directory))
}

/// Decodes RFC 3986 section 2.1 and requires the normal form (section 6.2.2.2): characters that
/// need no encoding must not be encoded.
fn percent_decode(component: &str) -> Result<Vec<u8>, &'static str> {
    let mut bytes = component.bytes();
    let mut name = Vec::with_capacity(component.len());
    while let Some(b) = bytes.next() {
        if b != b'%' {
            name.push(b);
            continue;
        }
        let mut digit = || (bytes.next()? as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("has a % without two hexadecimal digits (it would be %25)");
        };
        let decoded = (high * 16 + low) as u8;
        match decoded {
            b'/' => return Err("has an encoded / (%2F)"),
            0..=0x1f | 0x7f => return Err("has an encoded control character"),
            b'-' | b'.' | b'_' | b'~' => {
                return Err("encodes what is not to be encoded, such as %2E for a dot");
            }
            _ if decoded.is_ascii_alphanumeric() => return Err("encodes letters or digits"),
            _ => name.push(decoded),
        }
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn path(text: &str) -> VirtualPath {
        VirtualPath::parse(text.as_bytes()).unwrap()
    }

    fn wlcg(scopes: &str) -> Capabilities {
        Capabilities::parse(scopes, Profile::Wlcg).unwrap()
    }

    /// The permitted operations as letters: read, create, make a directory, modify, see attributes,
    /// be shown in listings, read checksums.
    fn may(can: &Capabilities, at: &str) -> String {
        let at = path(at);
        let all: [(bool, char); 7] = [
            (can.reads(&at), 'r'),
            (can.creates(&at), 'c'),
            (can.makes_directory(&at), 'd'),
            (can.modifies(&at), 'm'),
            (can.sees(&at), 'a'),
            (can.shows(&at), 's'),
            (can.sums(&at), 'k'),
        ];
        all.iter().filter(|(yes, _)| *yes).map(|(_, letter)| letter).collect()
    }

    #[test]
    fn capability_covers_whole_components() {
        let can = wlcg("storage.read:/foo/bar");
        for (at, rights) in [
            ("/foo/bar", "rask"),
            ("/foo/bar/qux", "rask"),
            ("/foo/bargain", ""),
            ("/foo", "as"),
            ("/", "as"),
            ("/foobar", ""),
            ("/fo", ""),
        ] {
            assert_eq!(may(&can, at), rights, "{at}");
        }
    }

    #[test]
    fn capabilities_permit_their_operations() {
        let can = wlcg("storage.create:/c storage.modify:/m storage.stage:/s storage.poll:/p storage.read:/");
        assert_eq!(may(&can, "/c/x"), "rcdask");
        assert_eq!(may(&can, "/m/x"), "rcdmask");
        assert_eq!(may(&can, "/s/x"), "rask");
        let can = wlcg("storage.create:/c/deep storage.stage:/s");
        assert_eq!(may(&can, "/c/deep/x"), "cdak");
        assert_eq!(may(&can, "/c"), "das");
        assert_eq!(may(&can, "/"), "das");
        assert_eq!(may(&can, "/s/x"), "ak");
        assert_eq!(may(&can, "/x"), "");
        assert_eq!(may(&wlcg("storage.modify:/"), "/any"), "cdmask");
    }

    #[test]
    fn scope_of_directory_does_not_cover_file() {
        let can = wlcg("storage.read:/d/ storage.create:/n/");
        assert_eq!(may(&can, "/d"), "as");
        assert_eq!(may(&can, "/d/x"), "rask");
        assert_eq!(may(&can, "/n"), "das");
        assert_eq!(may(&can, "/n/x"), "cdak");
    }

    #[test]
    fn parse_scopes_of_other_profile_are_ignored() {
        assert!(wlcg("read:/ write:/ openid compute.read").is_empty());
        let can = Capabilities::parse("storage.read:/ read:/r write:/w", Profile::SciTokens).unwrap();
        assert_eq!(can.to_string(), "read:/r modify:/w");
    }

    #[test]
    fn are_stated_with_scopes_of_other_services_is_true() {
        for scopes in
            ["compute.create", "compute.read:/x openid", "storage.poll:/tape", "storage.list:/later"]
        {
            let can = wlcg(scopes);
            assert!(can.is_empty() && can.are_stated() && !can.sees(&path("/tape/x")), "{scopes}");
        }
        for scopes in ["queue", "execute", "execute:/x"] {
            assert!(Capabilities::parse(scopes, Profile::SciTokens).unwrap().are_stated(), "{scopes}");
        }
        for scopes in ["", "openid profile", "host.auth", "wlcg.groups:/vo", "storagex.read:/", "read:/"] {
            assert!(!wlcg(scopes).are_stated(), "{scopes}");
        }
    }

    #[test]
    fn parse_encoded_path_decodes_it() {
        let can = wlcg("storage.read:/a%20b/%C3%A4/%25/");
        let place = VirtualPath::parse("/a b/ä/%/x".as_bytes()).unwrap();
        assert!(can.reads(&place));
        assert_eq!(can.to_string(), "read:/a b/\\xc3\\xa4/%/");
    }

    #[test]
    fn beneath_moves_all_paths() {
        let can = wlcg("storage.read:/ storage.modify:/mine").beneath(&path("/vo/data"));
        assert_eq!(may(&can, "/vo/data/x"), "rask");
        assert_eq!(may(&can, "/vo/data/mine/x"), "rcdmask");
        assert_eq!(may(&can, "/vo"), "das");
        assert_eq!(may(&can, "/mine"), "");
    }
}
