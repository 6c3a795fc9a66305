//! Translates patterns to the states of an automaton.

use super::{Problem, State};

pub(super) fn shell(pattern: &[u8]) -> Vec<State> {
    let mut states = Vec::new();
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        states.push(match byte {
            b'*' => {
                if matches!(states.last(), Some(State::Run { .. })) {
                    continue;
                }
                State::Run { crosses: false }
            }
            b'?' => State::Any,
            b'[' => match set(after) {
                Some((set, after)) => {
                    rest = after;
                    set
                }
                None => State::Byte(byte),
            },
            b'\\' => match after.split_first() {
                Some((&escaped, after)) => {
                    rest = after;
                    State::Byte(escaped)
                }
                None => State::Byte(byte),
            },
            literal => State::Byte(literal),
        });
    }
    states
}

/// A group `{a,b}` that is not closed yet.
struct Group {
    /// The index of its fork.
    fork: usize,
    /// The first state of each alternative.
    starts: Vec<usize>,
    /// The jumps from the ends of the alternatives to the end of the group.
    jumps: Vec<usize>,
}

impl Group {
    fn end_alternative(&mut self, states: &mut Vec<State>) {
        self.jumps.push(states.len());
        states.push(State::Jump(0));
    }

    fn close(mut self, states: &mut Vec<State>) {
        self.end_alternative(states);
        let end = states.len();
        for &jump in &self.jumps {
            states[jump] = State::Jump(end);
        }
        let alternatives = self.starts.into_iter().zip(&self.jumps);
        let mut targets: Vec<usize> =
            alternatives.filter(|(start, jump)| start != *jump).map(|(start, _)| start).collect();
        if targets.is_empty() {
            targets.push(end);
        }
        states[self.fork] = State::Fork(targets);
    }
}

pub(super) fn path(pattern: &[u8]) -> Result<Vec<State>, Problem> {
    let mut states = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    let mut rest = pattern;
    // Whether a component can begin here.
    let mut boundary = true;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let at_boundary = std::mem::take(&mut boundary);
        match byte {
            b'*' => rest = stars(after, at_boundary, !groups.is_empty(), &mut states, &mut boundary),
            b'?' => states.push(State::Any),
            b'[' => {
                let (set, after) = set(after).ok_or(Problem::UnclosedClass)?;
                if let State::Set { ranges, .. } = &set
                    && let Some((low, high)) = ranges.iter().find(|(low, high)| low > high)
                {
                    return Err(Problem::Range(char::from(*low), char::from(*high)));
                }
                states.push(set);
                rest = after;
            }
            b'\\' => {
                let (&escaped, after) = after.split_first().ok_or(Problem::DanglingEscape)?;
                states.push(State::Byte(escaped));
                boundary = escaped == b'/';
                rest = after;
            }
            b'{' => {
                groups.push(Group { fork: states.len(), starts: vec![states.len() + 1], jumps: Vec::new() });
                states.push(State::Fork(Vec::new()));
                boundary = true;
            }
            b',' if let Some(group) = groups.last_mut() => {
                group.end_alternative(&mut states);
                group.starts.push(states.len());
                boundary = true;
            }
            b'}' => groups.pop().ok_or(Problem::UnopenedGroup)?.close(&mut states),
            literal => {
                states.push(State::Byte(literal));
                boundary = literal == b'/';
            }
        }
    }
    if groups.is_empty() { Ok(states) } else { Err(Problem::UnclosedGroup) }
}

/// Translates `*`, or `**` if it is a whole component, and returns the text behind it. `after` is
/// the text behind the first star.
fn stars<'p>(
    after: &'p [u8],
    at_boundary: bool,
    in_group: bool,
    states: &mut Vec<State>,
    boundary: &mut bool,
) -> &'p [u8] {
    let whole = after.strip_prefix(b"*").filter(|_| at_boundary);
    match whole.map(|rest| (rest, rest.first())) {
        Some((rest, Some(b'/'))) => {
            // No directory, or any number of them with the `/` behind the last.
            let (run, end) = (states.len() + 1, states.len() + 3);
            states.extend([State::Fork(vec![run, end]), State::Run { crosses: true }, State::Byte(b'/')]);
            *boundary = true;
            &rest[1..]
        }
        Some((rest, next)) if next.is_none() || in_group && matches!(next, Some(b',' | b'}')) => {
            states.push(State::Run { crosses: true });
            rest
        }
        _ => {
            if !matches!(states.last(), Some(State::Run { .. })) {
                states.push(State::Run { crosses: false });
            }
            after
        }
    }
}

/// The set whose `[` precedes the text, and the text behind it; `None` if it is not closed.
fn set(text: &[u8]) -> Option<(State, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let text = &text[usize::from(negated)..];
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let low = *text.get(at)?;
        if low == b']' && at > 0 {
            return Some((State::Set { negated, ranges }, &text[at + 1..]));
        }
        match text.get(at + 1..at + 3) {
            Some(&[b'-', high]) if high != b']' => {
                ranges.push((low, high));
                at += 3;
            }
            _ => {
                ranges.push((low, low));
                at += 1;
            }
        }
    }
}
