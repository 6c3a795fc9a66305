//! Shell patterns on raw bytes. File names need not be UTF-8, so that the usual crates cannot be
//! used.

/// Maximum length in bytes of a pattern for one name. Longer patterns are of no use, and the cost
/// of a match grows with the length of the pattern.
pub const LONGEST_PATTERN: usize = 255;

/// Whether `name` matches `pattern`: `*` matches any bytes, `?` one byte, `[a-z]` and `[!a-z]` a
/// set, `\x` the byte `x` itself. If a set is not closed, its `[` matches itself.
pub fn glob(pattern: &[u8], name: &[u8]) -> bool {
    // Where to retry after a mismatch: in the pattern behind the last star, in the name one byte
    // further.
    let mut retry: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    while n < name.len() || p < pattern.len() {
        if p < pattern.len() {
            if pattern[p] == b'*' {
                retry = Some((p + 1, n + 1));
                p += 1;
                continue;
            }
            if n < name.len()
                && let Some(next) = step(pattern, p, name[n])
            {
                p = next;
                n += 1;
                continue;
            }
        }
        match retry {
            Some((after_star, next)) if next <= name.len() => {
                retry = Some((after_star, next + 1));
                p = after_star;
                n = next;
            }
            _ => return false,
        }
    }
    true
}

/// Whether the text contains a wildcard.
pub fn is_glob(pattern: &[u8]) -> bool {
    pattern.iter().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// The position behind the pattern element at `p` if this element matches `byte`.
fn step(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => match set(pattern, p + 1, byte) {
            Some((matched, next)) => matched.then_some(next),
            None => (byte == b'[').then_some(p + 1),
        },
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Whether the set that begins at `p` contains `byte`, and where the set ends; `None` if it is not
/// closed.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(p), Some(b'!' | b'^'));
    p += usize::from(negated);
    let first = p;
    let mut found = false;
    loop {
        let low = *pattern.get(p)?;
        if low == b']' && p > first {
            return Some((found != negated, p + 1));
        }
        if pattern.get(p + 1) == Some(&b'-') && pattern.get(p + 2).is_some_and(|&b| b != b']') {
            found |= (low..=pattern[p + 2]).contains(&byte);
            p += 3;
        } else {
            found |= low == byte;
            p += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::glob;

    #[test]
    fn glob_matches_shell_patterns() {
        let yes: &[(&str, &str)] = &[
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a*b*c", "axbxxbxc"),
            ("?b", "ab"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[a", "[a"),
            ("\\*", "*"),
            ("*.dat", "x.dat"),
            ("[a-]", "-"),
        ];
        for (pattern, name) in yes {
            assert!(glob(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let no: &[(&str, &str)] = &[
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("a*c", "ab"),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("\\*", "x"),
            ("*a", "ab"),
        ];
        for (pattern, name) in no {
            assert!(!glob(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn glob_any_bytes_never_panics(pattern: Vec<u8>, name: Vec<u8>) {
            glob(&pattern, &name);
        }

        #[test]
        fn glob_name_between_stars_matches(name in "[a-z]{0,12}", before in "[a-z]{0,6}", after in "[a-z]{0,6}") {
            let whole = format!("{before}{name}{after}");
            let pattern = format!("*{}*", name);
            prop_assert!(glob(pattern.as_bytes(), whole.as_bytes()));
        }
    }
}
