//! `signing_policy` files say which subjects an authority may certify (the EACL syntax of the
//! Globus Toolkit). A file has entries for authorities with positive and negative grants. A subject
//! is allowed if a positive grant matches it and no negative grant does. A file that cannot be
//! parsed allows nothing.

use crate::name;

/// The largest file that is read, in bytes.
pub(crate) const MAX_FILE: usize = 1 << 20;

/// Why a file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct PolicyError {
    pub line: usize,
    pub reason: &'static str,
}

/// The rules of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningPolicy {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// Subject in one-line form; `None` for any authority.
    authority: Option<String>,
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    positive: bool,
    patterns: Vec<String>,
}

impl SigningPolicy {
    /// Parses lines with `access_id_CA`, `pos_rights`, `neg_rights` and `cond_subjects`. Comments
    /// begin with `#`.
    ///
    /// # Errors
    /// A quote is not closed, a line lacks words or is in the wrong place, an authority is of
    /// another type than X509, or rights have no `cond_subjects`.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        let mut open: Option<Entry> = None;
        // The rights line that waits for its condition, if it concerns signing.
        let mut right: Option<(bool, bool)> = None;
        for (index, line) in text.lines().enumerate() {
            let fail = |reason| PolicyError { line: index + 1, reason };
            let words = words(line).map_err(fail)?;
            let Some((head, rest)) = words.split_first() else { continue };
            match head.to_ascii_lowercase().as_str() {
                "access_id_ca" | "access_id_anybody" => {
                    if right.is_some() {
                        return Err(fail("rights without cond_subjects stand before it"));
                    }
                    policy.entries.extend(open.take());
                    let any = head.eq_ignore_ascii_case("access_id_anybody");
                    let authority = match rest {
                        _ if any => None,
                        [kind, _] if !kind.eq_ignore_ascii_case("x509") => {
                            return Err(fail("only authorities of type X509 are known"));
                        }
                        [_, subject] => Some(subject.clone()),
                        _ => return Err(fail("access_id_CA wants a type and a subject")),
                    };
                    open = Some(Entry { authority, grants: Vec::new() });
                }
                "pos_rights" | "neg_rights" => {
                    if open.is_none() {
                        return Err(fail("rights stand before any access_id"));
                    }
                    let [_, value] = rest else { return Err(fail("rights want an authority and a value")) };
                    let signing = value.eq_ignore_ascii_case("CA:sign");
                    right = Some((head.eq_ignore_ascii_case("pos_rights"), signing));
                }
                "cond_subjects" => {
                    let Some((positive, signing)) = right.take() else {
                        return Err(fail("cond_subjects stands without rights"));
                    };
                    let Some(entry) = open.as_mut() else {
                        return Err(fail("conditions stand before any access_id"));
                    };
                    let [_, lists @ ..] = rest else { return Err(fail("cond_subjects wants a list")) };
                    if lists.is_empty() {
                        return Err(fail("cond_subjects wants a list"));
                    }
                    let mut patterns = Vec::new();
                    for list in lists {
                        patterns.extend(subjects(list).map_err(fail)?);
                    }
                    if signing {
                        entry.grants.push(Grant { positive, patterns });
                    }
                }
                // Other conditions and identities of the syntax do not concern signing.
                _ => {}
            }
        }
        if right.is_some() {
            return Err(PolicyError { line: text.lines().count(), reason: "rights without cond_subjects" });
        }
        policy.entries.extend(open);
        Ok(policy)
    }

    /// Whether the file has rules for this authority.
    pub fn mentions(&self, authority: &str) -> bool {
        self.entries.iter().any(|entry| entry.is_about(authority))
    }

    /// Whether `authority` may certify `subject` (both in one-line form). A denial overrides all
    /// grants.
    pub fn allows(&self, authority: &str, subject: &str) -> bool {
        let subject = name::folded(subject);
        let mut allowed = false;
        for entry in self.entries.iter().filter(|entry| entry.is_about(authority)) {
            for grant in &entry.grants {
                if grant.patterns.iter().any(|pattern| matches(&name::folded(pattern), &subject)) {
                    if !grant.positive {
                        return false;
                    }
                    allowed = true;
                }
            }
        }
        allowed
    }

    /// Writes the file for an authority that may certify subjects that match these patterns.
    pub fn write(authority: &str, patterns: &[String]) -> String {
        let list: Vec<_> = patterns.iter().map(|pattern| format!("\"{pattern}\"")).collect();
        format!(
            "access_id_CA   X509    '{authority}'\npos_rights     globus  CA:sign\ncond_subjects  globus  '{}'\n",
            list.join(" ")
        )
    }
}

impl Entry {
    fn is_about(&self, authority: &str) -> bool {
        self.authority.as_deref().is_none_or(|named| name::folded(named) == name::folded(authority))
    }
}

/// Splits a line into words. A word in single or double quotes may contain blanks and the other
/// kind of quote.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut out = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        match first {
            '#' => break,
            '\'' | '"' => {
                let body = &rest[1..];
                let end = body.find(first).ok_or("a quote is not closed")?;
                out.push(body[..end].to_owned());
                rest = &body[end + 1..];
            }
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                out.push(rest[..end].to_owned());
                rest = &rest[end..];
            }
        }
        rest = rest.trim_start();
    }
    Ok(out)
}

/// The subjects of a condition: each in double quotes, or the whole text as one subject.
fn subjects(list: &str) -> Result<Vec<String>, &'static str> {
    if list.contains('"') { words(list) } else { Ok(vec![list.trim().to_owned()]) }
}

/// `*` matches any run of characters. Every other character matches only itself, as in GCT.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // The state to return to if the text after the last star does not match: the star then takes
    // one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, from)) = retry else { return false };
                retry = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const CA: &str = "/O=Grid/OU=site/CN=Site CA";

    #[test]
    fn parse_of_simple_ca_file_allows_its_subjects() {
        let text = "# comment\n access_id_CA  X509  '/O=Grid/OU=site/CN=Site CA'\n\n pos_rights globus CA:sign\n \
                    cond_subjects globus '\"/O=Grid/OU=site/*\" \"/O=Other/*\"'\n";
        let policy = SigningPolicy::parse(text).unwrap();
        assert!(policy.mentions(CA));
        assert!(policy.allows(CA, "/O=Grid/OU=site/CN=x"));
        assert!(policy.allows(CA, "/O=Other/CN=y"));
        assert!(!policy.allows(CA, "/O=Grid/OU=sites/CN=x"));
        assert!(!policy.allows("/CN=Another", "/O=Other/CN=y"));
        assert!(policy.allows("/o=Grid/OU=site/CN=site ca", "/O=GRID/OU=site/CN=x"));
        let literal = SigningPolicy::parse(&SigningPolicy::write(CA, &["/O=Gri?/*".to_owned()])).unwrap();
        assert!(literal.allows(CA, "/O=Gri?/CN=x") && !literal.allows(CA, "/O=Grid/CN=x"));
    }

    #[test]
    fn allows_respects_denials_and_single_subjects() {
        let text = "access_id_anybody\npos_rights globus CA:sign\ncond_subjects globus '/O=Grid/*'\n\
                    neg_rights globus CA:sign\ncond_subjects globus \"/O=Grid/CN=bad\"\n";
        let policy = SigningPolicy::parse(text).unwrap();
        assert!(policy.allows(CA, "/O=Grid/CN=good"));
        assert!(!policy.allows(CA, "/O=Grid/CN=bad"));
        let email = SigningPolicy::write(CA, &["/O=Grid/E=*".to_owned()]);
        assert!(SigningPolicy::parse(&email).unwrap().allows(CA, "/O=Grid/emailAddress=a@b"));
    }

    #[test]
    fn parse_refuses_incomplete_files() {
        for text in [
            "pos_rights globus CA:sign",
            "cond_subjects globus '/*'",
            "access_id_CA X509 '/CN=a",
            "access_id_CA X509",
            "access_id_CA X509 '/CN=a'\npos_rights globus CA:sign",
            "access_id_CA kerberos a",
        ] {
            assert!(SigningPolicy::parse(text).is_err(), "{text}");
        }
        let other = "access_id_CA X509 '/CN=a'\npos_rights globus CA:read\ncond_subjects globus '*'\n";
        assert!(!SigningPolicy::parse(other).unwrap().allows("/CN=a", "/CN=b"));
    }

    proptest! {
        #[test]
        fn parse_any_text_does_not_panic(text in "(access_id_CA|pos_rights|cond_subjects|X509|globus|CA:sign|['\"#*? \n]|.){0,60}") {
            if let Ok(policy) = SigningPolicy::parse(&text) {
                policy.allows("/CN=a", &text);
            }
        }

        #[test]
        fn parse_of_written_policy_allows_the_subject_only(name in "[A-Za-z0-9 .@-]{1,20}") {
            let text = SigningPolicy::write(CA, &[format!("/O=Grid/CN={name}")]);
            let policy = SigningPolicy::parse(&text).unwrap();
            let subject = format!("/O=Grid/CN={name}");
            let other = format!("/O=Grid/CN={name}x");
            prop_assert!(policy.allows(CA, &subject));
            prop_assert!(!policy.allows(CA, &other));
        }
    }
}
