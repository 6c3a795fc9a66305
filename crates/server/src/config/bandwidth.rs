use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ropewalk_limits::Timetable;
use ropewalk_security::AddressPattern;
use serde::{Deserialize, Serialize};

use super::units;

/// A limit on the rate of data (docs/limits.md).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthLimit {
    /// The rate of all transfers together that fit the other settings: `"2Gbit/s"`, or with times
    /// `"Mon-Fri 08:00-18:00 2Gbit/s, else off"`. It has to be set.
    #[serde(with = "units::timetable")]
    pub rate: Timetable,
    /// Only transfers of this user. Default: of all users.
    #[serde(default)]
    pub user: Option<String>,
    /// Only transfers of this group of `shares.members`. Default: of all.
    #[serde(default)]
    pub group: Option<String>,
    /// Only transfers of clients with these addresses, networks or prefixes. Default: all
    /// addresses.
    #[serde(default)]
    pub site: Vec<AddressPattern>,
    /// Only transfers in this direction: `"download"` or `"upload"`. Default: both.
    #[serde(default)]
    pub direction: Option<TransferDirection>,
    /// The rate is for each user, not for all users together. Default false.
    #[serde(default)]
    pub each_user: bool,
}

/// The direction of a transfer as the client has it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferDirection {
    Download,
    Upload,
}

/// The weights with which users divide limits that they share. The others may use a share that a
/// user leaves.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shares {
    /// The weight of users, from 1 on: `{ ada = 1, bob = 2 }`. Default: 1 for each.
    pub users: BTreeMap<String, NonZeroU32>,
    /// The weight of groups, which their members divide. Default: 1 for each.
    pub groups: BTreeMap<String, NonZeroU32>,
    /// The users of each group: `{ cms = ["ada", "bob"] }`. A user counts in the first group, by
    /// name, that has it. Default: none.
    pub members: BTreeMap<String, Vec<String>>,
}

impl Shares {
    /// The group of a user.
    pub(crate) fn group(&self, user: &str) -> Option<&str> {
        let mut groups = self.members.iter();
        groups.find(|(_, members)| members.iter().any(|member| member == user)).map(|(group, _)| &**group)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::config::Config;

    #[test]
    fn limits_and_shares_of_file_are_parsed_and_printed() {
        let text = "[[bandwidth]]\nrate = 'Mon-Fri 08:00-18:00 2Gbit/s, else off'\nsite = ['192.0.2.0/24']\n\
                    direction = 'upload'\n[[bandwidth]]\nrate = '10M'\neach_user = true\n\
                    [shares]\nusers = { ada = 4 }\nmembers = { cms = ['ada'] }\n";
        let config = Config::parse(text).unwrap();
        assert_eq!((config.bandwidth.len(), config.shares.group("ada")), (2, Some("cms")));
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
    }

    #[test]
    fn limit_with_wrong_value_is_refused_with_the_reason() {
        for (text, reason) in [
            ("[[bandwidth]]\nuser = 'ada'\n", "rate"),
            ("[[bandwidth]]\nrate = 'fast'\n", "expected a rate"),
            ("[[bandwidth]]\nrate = '1M'\ndirection = 'sideways'\n", "download"),
            ("[[bandwidth]]\nrate = '1M'\nsite = ['nowhere']\n", "nowhere"),
            ("[shares]\nusers = { ada = 0 }\n", "nonzero"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
