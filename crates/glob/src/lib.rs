//! Patterns of file names and paths. They match bytes, because names need not be UTF-8, and most
//! crates for patterns match characters.
//!
//! A [`Pattern`] is compiled once and matches any number of names. It is a nondeterministic
//! automaton whose states are simulated together, so the time of a match is at most proportional to
//! the length of the pattern times the length of the name, whatever the pattern is. Nothing here
//! recurses, so that a long pattern cannot exhaust the stack.

#![forbid(unsafe_code)]

mod compile;

use bstr::{BString, ByteSlice as _};

/// Maximum length in bytes of a pattern for one name that a server accepts. Longer patterns are of
/// no use, and the time of a match grows with the length of the pattern.
pub const LONGEST_PATTERN: usize = 255;

/// Whether [`Pattern::shell`] finds a wildcard in the text.
pub fn is_glob(text: &[u8]) -> bool {
    text.find_byteset(b"*?[").is_some()
}

/// A malformed pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing glob '{pattern}': {problem}")]
pub struct PatternError {
    pattern: BString,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("unclosed character class; missing ']'")]
    UnclosedClass,
    #[error("invalid range; '{0}' > '{1}'")]
    Range(char, char),
    #[error("unopened alternate group; missing '{{' (maybe escape '}}' with '[}}]'?)")]
    UnopenedGroup,
    #[error("unclosed alternate group; missing '}}' (maybe escape '{{' with '[{{]'?)")]
    UnclosedGroup,
    #[error("dangling '\\'")]
    DanglingEscape,
}

/// A compiled pattern.
///
/// `*` matches any bytes except `/`, `?` one of them, `[a-z]` and `[!a-z]` a set of them, and `\x`
/// the byte `x` itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The pattern matches if the last of these states is passed.
    states: Vec<State>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Byte(u8),
    /// Any byte except `/`.
    Any,
    /// Bytes within one of the ranges, or outside of all; never `/`.
    Set {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
    /// Any number of bytes; `/` is one of them if the pattern crosses directories here.
    Run {
        crosses: bool,
    },
    /// Goes on at each of these states.
    Fork(Vec<usize>),
    Jump(usize),
}

impl Pattern {
    /// A pattern of a shell for one name. `{` and `**` have no meaning of their own. No text is
    /// malformed: an unclosed `[` and a `\` at the end match themselves.
    pub fn shell(pattern: &[u8]) -> Self {
        Self { states: compile::shell(pattern) }
    }

    /// A pattern for a path. In addition to the wildcards of a shell, `{a,b}` matches one of the
    /// alternatives, and `**` as a whole component matches any number of directories. Alternatives
    /// that are empty are ignored.
    ///
    /// # Errors
    /// A set or a group is not closed, a range in a set is reversed, or `\` is the last byte.
    pub fn path(pattern: &[u8]) -> Result<Self, PatternError> {
        match compile::path(pattern) {
            Ok(states) => Ok(Self { states }),
            Err(problem) => Err(PatternError { pattern: pattern.into(), problem }),
        }
    }

    /// Whether the pattern matches all of `name`.
    pub fn matches(&self, name: &[u8]) -> bool {
        // Most patterns begin with a literal, which needs no sets of states.
        let literal = self.states.iter().take_while(|state| matches!(state, State::Byte(_))).count();
        let starts_alike = self.states[..literal].iter().zip(name).all(|(state, byte)| state.accepts(*byte));
        if !starts_alike || name.len() < literal {
            return false;
        }
        if literal == self.states.len() {
            return name.len() == literal;
        }
        let mut active = vec![false; self.states.len() + 1];
        let mut next = active.clone();
        let mut pending = vec![literal];
        self.enter(&mut pending, &mut active);
        for &byte in &name[literal..] {
            for (at, state) in self.states.iter().enumerate() {
                if active[at] && state.accepts(byte) {
                    pending.push(if matches!(state, State::Run { .. }) { at } else { at + 1 });
                }
            }
            self.enter(&mut pending, &mut next);
            (active, next) = (next, active);
            next.fill(false);
        }
        active[self.states.len()]
    }

    /// Adds the pending states to a set, and all that are reached from them without a byte.
    fn enter(&self, pending: &mut Vec<usize>, set: &mut [bool]) {
        while let Some(at) = pending.pop() {
            if std::mem::replace(&mut set[at], true) {
                continue;
            }
            match self.states.get(at) {
                Some(State::Run { .. }) => pending.push(at + 1),
                Some(State::Fork(targets)) => pending.extend(targets),
                Some(State::Jump(target)) => pending.push(*target),
                _ => {}
            }
        }
    }
}

impl State {
    fn accepts(&self, byte: u8) -> bool {
        match self {
            Self::Byte(expected) => *expected == byte,
            Self::Any => byte != b'/',
            Self::Set { negated, ranges } => {
                byte != b'/' && ranges.iter().any(|&(low, high)| (low..=high).contains(&byte)) != *negated
            }
            Self::Run { crosses } => *crosses || byte != b'/',
            Self::Fork(_) | Self::Jump(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
