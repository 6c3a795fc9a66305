//! Sets of VLANs, as the labels of ports name them: `1780-1799,2000`.

use std::fmt;
use std::str::FromStr;

/// The highest VLAN (IEEE 802.1Q).
const HIGHEST: u16 = 4095;
const WORDS: usize = (HIGHEST as usize + 1) / 64;

/// A set of VLANs, with a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlans(Box<[u64; WORDS]>);

impl Default for Vlans {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl Vlans {
    pub fn is_empty(&self) -> bool {
        *self.0 == [0; WORDS]
    }

    fn has(&self, vlan: u16) -> bool {
        self.0[usize::from(vlan / 64)] & 1 << (vlan % 64) != 0
    }

    /// Whether it has all of these.
    pub fn contains(&self, other: &Self) -> bool {
        self.intersection(other) == *other
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(Box::new(std::array::from_fn(|at| self.0[at] | other.0[at])))
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(Box::new(std::array::from_fn(|at| self.0[at] & other.0[at])))
    }
}

impl FromStr for Vlans {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a list of VLANs such as 1780-1799,2000");
        let number = |text: &str| {
            let text = text.trim();
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|number| digits && *number <= HIGHEST).ok_or_else(wrong)
        };
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Ok((number(first)?, number(last)?)),
            None => number(part).map(|one| (one, one)),
        };
        let mut vlans = Self::default();
        for part in text.split(',') {
            let (first, last) = range(part)?;
            if first > last {
                return Err(wrong());
            }
            for vlan in first..=last {
                vlans.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
            }
        }
        Ok(vlans)
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = 0;
        let mut separator = "";
        while first <= HIGHEST {
            let last = (first..=HIGHEST).take_while(|vlan| self.has(*vlan)).last();
            let Some(last) = last else {
                first += 1;
                continue;
            };
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            (first, separator) = (last + 1, ",");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vlans(text: &str) -> Vlans {
        text.parse().unwrap()
    }

    #[test]
    fn sets_are_read_shown_joined_and_compared() {
        for (text, shown) in [("7", "7"), (" 9 , 1-3,4", "1-4,9"), ("1-5,2-3", "1-5"), ("0-4095", "0-4095")] {
            assert_eq!(vlans(text).to_string(), shown);
        }
        for text in ["", "a", "1-", "-1", "5-3", "4096", "1,,2", "+1", "99999"] {
            assert!(text.parse::<Vlans>().is_err(), "{text}");
        }
        assert_eq!(vlans("1-10,20").intersection(&vlans("5-15,20-30")), vlans("5-10,20"));
        assert!(vlans("1-4").intersection(&vlans("5")).is_empty());
        assert_eq!(vlans("1-4").union(&vlans("5,9")), vlans("1-5,9"));
        assert!(vlans("1-4,6").contains(&vlans("2-3,6")) && !vlans("1-4,6").contains(&vlans("4-6")));
    }
}
