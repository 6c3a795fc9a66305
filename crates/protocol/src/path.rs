//! Absolute paths of a session: raw bytes, normalised without access to the file system.

use std::fmt;

use bstr::{BStr, BString, ByteSlice};

/// An absolute path: it begins with `/`, has no empty, `.` or `..` component, and ends with `/`
/// only if it is the root. Components are raw bytes: any byte but `/` and NUL may occur.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualPath(BString);

/// The path is not valid: it is empty or contains a NUL byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path is empty or contains a NUL byte")]
pub struct InvalidPath;

impl VirtualPath {
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Resolves `given` relative to this directory. `..` does not leave the root.
    ///
    /// # Errors
    /// `given` is empty or contains a NUL byte.
    pub fn join(&self, given: &[u8]) -> Result<Self, InvalidPath> {
        if given.is_empty() || given.contains(&0) {
            return Err(InvalidPath);
        }
        let mut components: Vec<&[u8]> = Vec::new();
        let base: &[u8] = if given.starts_with(b"/") { b"" } else { &self.0 };
        for component in base.split_str("/").chain(given.split_str("/")) {
            match component {
                b"" | b"." => {}
                b".." => {
                    components.pop();
                }
                name => components.push(name),
            }
        }
        let mut path = BString::from("/");
        path.extend_from_slice(&bstr::join("/", components));
        Ok(Self(path))
    }

    /// Resolves `given` relative to the root.
    ///
    /// # Errors
    /// The errors of [`Self::join`].
    pub fn parse(given: &[u8]) -> Result<Self, InvalidPath> {
        Self::root().join(given)
    }

    /// The entry `name` of this directory; `name` must be one component.
    ///
    /// # Errors
    /// `name` is empty, `.` or `..`, or contains a slash or a NUL byte.
    pub fn child(&self, name: &[u8]) -> Result<Self, InvalidPath> {
        if name.contains(&b'/') || name == b"." || name == b".." {
            return Err(InvalidPath);
        }
        self.join(name)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&BStr> {
        let at = self.0.rfind_byte(b'/')?;
        let name = &self.0[at + 1..];
        (!name.is_empty()).then(|| name.as_bstr())
    }

    /// The parent directory; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let at = self.0.rfind_byte(b'/')?;
        Some(Self(if at == 0 { "/".into() } else { self.0[..at].into() }))
    }

    pub fn components(&self) -> impl Iterator<Item = &BStr> {
        self.0.split_str("/").filter(|c| !c.is_empty()).map(ByteSlice::as_bstr)
    }

    /// Whether this path is `ancestor` or beneath it, by whole components.
    pub fn starts_with(&self, ancestor: &Self) -> bool {
        ancestor.is_root()
            || self.0.strip_prefix(ancestor.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// The path relative to `ancestor`, which becomes the root; `None` if the path is not beneath
    /// it.
    pub fn relative_to(&self, ancestor: &Self) -> Option<Self> {
        if !self.starts_with(ancestor) {
            return None;
        }
        if ancestor.is_root() {
            return Some(self.clone());
        }
        let rest = &self.0[ancestor.0.len()..];
        Some(Self(if rest.is_empty() { "/".into() } else { rest.into() }))
    }

    /// The path relative to `directory`, in the form of a relative symbolic link in that directory.
    pub fn way_from(&self, directory: &Self) -> BString {
        let (from, to): (Vec<_>, Vec<_>) = (directory.components().collect(), self.components().collect());
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let up = from[common..].iter().map(|_| BStr::new(".."));
        let way: Vec<&BStr> = up.chain(to[common..].iter().copied()).collect();
        if way.is_empty() { ".".into() } else { bstr::join("/", way).into() }
    }

    /// This path beneath `root`. This is the inverse of [`Self::relative_to`].
    pub fn beneath(&self, root: &Self) -> Self {
        if root.is_root() {
            return self.clone();
        }
        if self.is_root() {
            return root.clone();
        }
        let mut path = root.0.clone();
        path.extend_from_slice(&self.0);
        Self(path)
    }
}

impl fmt::Display for VirtualPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> VirtualPath {
        VirtualPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn join_resolves_components_without_leaving_root() {
        let home = path("/home/user");
        for (given, meant) in [
            ("x", "/home/user/x"),
            ("x y/", "/home/user/x y"),
            ("..", "/home"),
            ("../../../../etc", "/etc"),
            ("./a//b/./../c", "/home/user/a/c"),
            ("/", "/"),
            ("/..", "/"),
            ("/a/../../b", "/b"),
            ("...", "/home/user/..."),
            ("~", "/home/user/~"),
        ] {
            assert_eq!(home.join(given.as_bytes()).unwrap().to_string(), meant, "{given}");
        }
        assert_eq!(home.join(b""), Err(InvalidPath));
        assert_eq!(home.join(b"a\0b"), Err(InvalidPath));
    }

    #[test]
    fn path_parts_are_returned() {
        let file = path("/a/b c");
        assert_eq!((file.file_name().unwrap(), file.parent().unwrap()), ("b c".into(), path("/a")));
        assert_eq!(path("/a").parent().unwrap(), VirtualPath::root());
        assert!(VirtualPath::root().parent().is_none() && VirtualPath::root().file_name().is_none());
        assert!(VirtualPath::root().is_root() && !file.is_root());
        assert_eq!(file.components().collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!(VirtualPath::root().components().count(), 0);
        assert_eq!(path("/a").child(b"b"), Ok(path("/a/b")));
        for name in ["", ".", "..", "b/c", "/", "\0"] {
            assert_eq!(path("/a").child(name.as_bytes()), Err(InvalidPath), "{name:?}");
        }
    }

    #[test]
    fn path_relation_to_ancestor_counts_whole_components() {
        let (root, a) = (VirtualPath::root(), path("/a"));
        assert!(path("/a/b").starts_with(&a) && a.starts_with(&a) && a.starts_with(&root));
        assert!(!path("/ab").starts_with(&a) && !root.starts_with(&a));
        assert_eq!(path("/a/b").relative_to(&a), Some(path("/b")));
        assert_eq!(a.relative_to(&a), Some(root.clone()));
        assert_eq!(a.relative_to(&root), Some(a.clone()));
        assert_eq!(path("/ab").relative_to(&a), None);
        assert_eq!(path("/b").beneath(&a), path("/a/b"));
        assert_eq!(root.beneath(&a), a);
        assert_eq!(a.beneath(&root), a);
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"ab/.\xff ".to_vec()), 1..24)
    }

    proptest! {
        #[test]
        fn join_of_any_paths_is_normalised(base in texts(), given in texts()) {
            let path = VirtualPath::parse(&base).unwrap().join(&given).unwrap();
            prop_assert!(path.as_bytes().starts_with(b"/"));
            prop_assert!(path.is_root() || !path.as_bytes().ends_with(b"/"));
            prop_assert!(path.as_bytes()[1..].split(|b| *b == b'/').all(|c| path.is_root() || !c.is_empty()));
            prop_assert!(path.components().all(|c| c != "." && c != ".."));
            prop_assert_eq!(VirtualPath::parse(path.as_bytes()).unwrap(), path.clone());
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                prop_assert_eq!(parent.child(name).unwrap(), path.clone());
            }
        }

        #[test]
        fn beneath_is_reversed_by_relative_to(root in texts(), inner in texts()) {
            let (root, inner) = (VirtualPath::parse(&root).unwrap(), VirtualPath::parse(&inner).unwrap());
            let outer = inner.beneath(&root);
            prop_assert!(outer.starts_with(&root));
            prop_assert_eq!(outer.relative_to(&root), Some(inner));
        }
    }

    #[test]
    fn way_from_directory_is_a_relative_link() {
        let path = |text: &str| VirtualPath::parse(text.as_bytes()).unwrap();
        for (directory, to, way) in [
            ("/a/b", "/a/b/c", "c"),
            ("/a/b", "/a/x/y", "../x/y"),
            ("/", "/a", "a"),
            ("/a/b", "/", "../.."),
            ("/a", "/a", "."),
        ] {
            assert_eq!(path(to).way_from(&path(directory)), way);
        }
    }
}
