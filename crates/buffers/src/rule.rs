//! The rules by which a budget can be divided.

use std::fmt;
use std::str::FromStr;

use ropewalk_tuning::buffers::Policy;
use thiserror::Error;

/// A policy of Jeong et al., or the current share of Semke, Mahdavi and Mathis, which depends on
/// the previous negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Policy(Policy),
    CurrentShare,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 6] = [
        Self::Policy(Policy::None),
        Self::Policy(Policy::MaxMin),
        Self::Policy(Policy::Weighted),
        Self::Policy(Policy::MinimumThreshold { table_compat: false }),
        Self::Policy(Policy::MinimumThreshold { table_compat: true }),
        Self::CurrentShare,
    ];

    /// `none`, `max-min`, `weighted`, `threshold`, `threshold-table` or `current-share`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(Policy::None) => "none",
            Self::Policy(Policy::MaxMin) => "max-min",
            Self::Policy(Policy::Weighted) => "weighted",
            Self::Policy(Policy::MinimumThreshold { table_compat: false }) => "threshold",
            Self::Policy(Policy::MinimumThreshold { table_compat: true }) => "threshold-table",
            Self::CurrentShare => "current-share",
        }
    }

    /// Selects the variant with the guarantee of the paper's Table 4, if the rule has one.
    #[must_use]
    pub fn table_compat(self) -> Self {
        match self {
            Self::Policy(Policy::MinimumThreshold { .. }) => {
                Self::Policy(Policy::MinimumThreshold { table_compat: true })
            }
            other => other,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a policy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no policy: expected none, max-min, weighted, threshold, threshold-table or current-share")]
pub struct RuleName(pub String);

impl FromStr for Rule {
    type Err = RuleName;

    fn from_str(name: &str) -> Result<Self, RuleName> {
        let same = |rule: &Self| {
            rule.name() == name
                || (name.strip_prefix("minimum-") == Some(rule.name())
                    && rule.name().starts_with("threshold"))
        };
        Self::ALL.into_iter().find(same).ok_or_else(|| RuleName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_are_parsed() {
        for rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
        }
        assert_eq!("minimum-threshold".parse::<Rule>().map(Rule::table_compat), "threshold-table".parse());
        assert!("fair".parse::<Rule>().is_err() && "minimum-none".parse::<Rule>().is_err());
    }
}
