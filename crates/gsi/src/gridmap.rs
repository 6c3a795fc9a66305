//! Grid-mapfiles say which local accounts a subject may use. A line has a subject in quotes and a
//! list of accounts, such as `"/O=Grid/CN=Ada" ada,shared`. The first account is the default. An
//! account that begins with a dot is a pool. Lines that cannot be read are skipped and reported;
//! they never map a subject.

use crate::name;

/// A local account, or a pool to lease an account from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    Local(String),
    /// The pool's prefix, without the dot.
    Pool(String),
}

/// A line that was skipped, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("grid-mapfile: line {line}: {reason}")]
pub struct GridmapProblem {
    pub line: usize,
    pub reason: &'static str,
}

/// A parsed grid-mapfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gridmap {
    entries: Vec<(String, Vec<Account>)>,
    problems: Vec<GridmapProblem>,
}

impl Gridmap {
    /// Parses the text of a file. Lines that cannot be read are skipped and listed in
    /// [`Gridmap::problems`].
    pub fn parse(text: &str) -> Self {
        let mut map = Self::default();
        for (index, line) in text.lines().enumerate() {
            match entry(line) {
                Ok(Some(entry)) => map.entries.push(entry),
                Ok(None) => {}
                Err(reason) => map.problems.push(GridmapProblem { line: index + 1, reason }),
            }
        }
        map
    }

    pub fn problems(&self) -> &[GridmapProblem] {
        &self.problems
    }

    /// All accounts of a one-line subject, in the order of the file. If no line has exactly this
    /// subject, the first subject that differs only in case is used. Two people whose names differ
    /// only in case keep their own accounts.
    pub fn accounts(&self, subject: &str) -> impl Iterator<Item = &Account> {
        let subject = name::canonical(subject);
        let exact = self.entries.iter().find(|(known, _)| *known == subject);
        let folded = || {
            let wanted = name::folded(&subject);
            self.entries.iter().find(|(known, _)| name::folded(known) == wanted)
        };
        let named = exact.or_else(folded).map(|(known, _)| known.as_str());
        self.entries
            .iter()
            .filter(move |(known, _)| Some(known.as_str()) == named)
            .flat_map(|(_, accounts)| accounts)
    }

    /// The account of a client that requests none.
    pub fn default_account(&self, subject: &str) -> Option<&Account> {
        self.accounts(subject).next()
    }

    /// Whether a subject may use the local account of this name.
    pub fn permits(&self, subject: &str, account: &str) -> bool {
        self.accounts(subject).any(|known| matches!(known, Account::Local(name) if name == account))
    }
}

type Entry = (String, Vec<Account>);

fn entry(line: &str) -> Result<Option<Entry>, &'static str> {
    let line = line.trim_start();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (subject, rest) = subject(line)?;
    if !subject.starts_with('/') {
        return Err("a subject begins with a slash");
    }
    let rest = rest.split('#').next().unwrap_or_default().trim();
    let mut accounts = Vec::new();
    for account in rest.trim_end_matches([',', ' ', '\t']).split(',') {
        // Text after the account is ignored.
        let mut words = account.split_whitespace();
        let account = words.next().unwrap_or_default();
        let (pool, bare) = match account.strip_prefix('.') {
            Some(bare) => (true, bare),
            None => (false, account),
        };
        let fits = |byte: u8| byte.is_ascii_graphic() && !b"/\"\\:".contains(&byte);
        if bare.is_empty() || !bare.bytes().all(fits) {
            return Err("an account's name is missing or odd");
        }
        accounts.push(if pool { Account::Pool(bare.to_owned()) } else { Account::Local(bare.to_owned()) });
        if words.next().is_some() {
            // Without quotes, the word may be part of the subject.
            if !line.starts_with('"') {
                return Err("words follow the account of a subject without quotes");
            }
            break;
        }
    }
    Ok(Some((name::canonical(&subject), accounts)))
}

/// Splits a line into the subject, with quotes and escapes resolved, and the rest.
fn subject(line: &str) -> Result<(String, &str), &'static str> {
    let (quoted, body) = match line.strip_prefix('"') {
        Some(body) => (true, body),
        None => (false, line),
    };
    let mut out = String::new();
    let mut letters = body.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' if quoted => {
                return Ok((out, &body[at + 1..]));
            }
            _ if !quoted && letter.is_whitespace() => return Ok((out, &body[at..])),
            '\\' => match letters.next() {
                // Escapes for bytes outside printable ASCII are kept, as in the one-line form of
                // names.
                Some((_, 'x' | 'X')) => {
                    let (Some((_, high)), Some((_, low))) = (letters.next(), letters.next()) else {
                        return Err("\\x wants two digits");
                    };
                    let (Some(high), Some(low)) = (high.to_digit(16), low.to_digit(16)) else {
                        return Err("\\x wants two digits");
                    };
                    match u8::try_from(high * 16 + low).map_err(|_| "\\x wants two digits")? {
                        byte @ b' '..=b'~' => out.push(char::from(byte)),
                        byte => out.push_str(&format!("\\x{byte:02X}")),
                    }
                }
                Some((_, escaped)) => out.push(escaped),
                None => return Err("a backslash ends the line"),
            },
            _ => out.push(letter),
        }
    }
    Err(if quoted { "the quote is not closed" } else { "no account follows the subject" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn local(name: &str) -> Account {
        Account::Local(name.to_owned())
    }

    #[test]
    fn parse_resolves_quotes_and_escapes_and_lists_accounts() {
        let map = Gridmap::parse(
            "# people\n\"/O=Grid/CN=A B\" ann, bob  # two\n/O=Grid/CN=C carl\n\"/O=Grid/CN=D \\\"x\\\" \\x41\" .pool\n\
             \"/O=Grid/E=a@b\" ann\n\"/O=Grid/CN=A B\" zoe\n",
        );
        assert_eq!(map.problems(), []);
        assert_eq!(map.default_account("/O=Grid/CN=A B"), Some(&local("ann")));
        let all: Vec<_> = map.accounts("/O=Grid/CN=A B").cloned().collect();
        assert_eq!(all, [local("ann"), local("bob"), local("zoe")]);
        assert!(map.permits("/O=Grid/CN=C", "carl") && !map.permits("/O=Grid/CN=C", "ann"));
        assert_eq!(map.default_account("/O=Grid/CN=D \"x\" A"), Some(&Account::Pool("pool".into())));
        assert!(map.permits("/O=Grid/emailAddress=a@b", "ann"));
        assert_eq!(map.default_account("/O=Grid/CN=A"), None);
    }

    /// GCT accepts these lines.
    #[test]
    fn parse_odd_lines_accepts_as_gct_does() {
        let map = Gridmap::parse(
            "\"/O=Grid/CN=a\"ann\n\"/O=Grid/CN=b\" ann,\n\"/O=Grid/CN=c\" ann the first\n\"/o=grid/cn=D\" ann\n",
        );
        assert_eq!(map.problems(), []);
        for name in ["a", "b", "c", "d"] {
            assert_eq!(
                map.accounts(&format!("/O=Grid/CN={name}")).collect::<Vec<_>>(),
                [&local("ann")],
                "{name}"
            );
        }
    }

    #[test]
    fn accounts_of_similar_subjects_stay_separate() {
        let map = Gridmap::parse("/O=Grid/CN=John Smith jsmith\n\"/CN=bob\" one\n\"/CN=Bob\" two\n");
        assert_eq!(map.problems().len(), 1);
        assert_eq!(map.default_account("/O=Grid/CN=John"), None);
        let all = |name: &str| map.accounts(name).cloned().collect::<Vec<_>>();
        assert_eq!((all("/CN=bob"), all("/CN=Bob")), (vec![local("one")], vec![local("two")]));
        assert_eq!(all("/CN=BOB"), [local("one")]);
    }

    #[test]
    fn parse_invalid_lines_reports_problems() {
        let map = Gridmap::parse(
            "\"/CN=a\n/CN=b\nCN=c x\n\"/CN=d\",\n\"/CN=e\" a,,b\n/CN=f ../x\n/CN=g .\n/CN=h\\\n\"/CN=i\\x4\" x\n",
        );
        assert_eq!(map.problems().len(), 9);
        assert_eq!(map.problems()[1].line, 2);
        assert_eq!(map.entries.len(), 0);
    }

    proptest! {
        #[test]
        fn parse_any_text_does_not_panic(text in "([\"\\\\#,./x \n]|CN=|.){0,80}") {
            Gridmap::parse(&text);
        }

        #[test]
        fn parse_of_written_line_permits_the_account(common in "[ -~]{1,30}", account in "[a-z][a-z0-9]{0,8}") {
            let subject = format!("/O=Grid/CN={common}");
            let map = Gridmap::parse(&crate::ca::gridmap_line(&subject, &[&account]));
            prop_assert_eq!(map.problems(), &[]);
            prop_assert!(map.permits(&subject, &account));
        }
    }
}
