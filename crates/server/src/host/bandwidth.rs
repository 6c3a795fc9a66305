//! The limits on the rate of data, as the settings have them, for the channels of all sessions.
//!
//! The host owns it. Each channel is a flow with the limits that fit its user, its client's address
//! and its direction; a reload gives the flows of channels under way their new limits.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, Limiter};
use ropewalk_limits::{Booking, FlowSpec, LimitSpec, LocalTime, Mark, Purse, Timetable};

use crate::config::{BandwidthLimit, Config, Shares, TransferDirection};

/// The properties of a channel by which its limits are found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlowOwner {
    pub(crate) user: String,
    /// The client.
    pub(crate) address: IpAddr,
    /// `None`: no transfer has begun.
    pub(crate) direction: Option<TransferDirection>,
    /// The token of the reservation that it uses.
    pub(crate) reservation: Option<Arc<str>>,
}

/// A limit and its use. Rates are in bytes per second.
#[derive(Debug)]
pub(crate) struct LimitUse {
    pub(crate) limit: BandwidthLimit,
    /// Its rate at present; `None`: no limit.
    pub(crate) now: Option<u64>,
    pub(crate) used: u64,
    pub(crate) reserved: u64,
}

#[derive(Default)]
pub(crate) struct BandwidthLimits {
    limiter: Arc<Limiter>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    limits: Vec<BandwidthLimit>,
    shares: Shares,
    /// The channels that there are.
    flows: Vec<(Weak<Bandwidth>, FlowOwner)>,
    /// The limits that change with the time of day, by their names.
    timetables: Vec<(String, Timetable)>,
}

impl BandwidthLimits {
    /// Takes the settings, also for transfers under way.
    pub(crate) fn set(&self, config: &Config) {
        let mut state = self.state.lock();
        state.limits.clone_from(&config.bandwidth);
        state.shares.clone_from(&config.shares);
        state.timetables.clear();
        state.flows.retain(|(flow, _)| flow.strong_count() > 0);
        let flows = state.flows.clone();
        for (flow, owner) in flows {
            if let Some(flow) = flow.upgrade() {
                flow.change(&state.spec(&owner, LocalTime::of(SystemTime::now())));
            }
        }
        self.limiter.set_timetables(!state.limits.is_empty(), state.timetables.clone());
    }

    /// Each limit of the settings with the `rates` of transfers that fit it, and the rates that
    /// are `reserved` for users whom it fits: a reservation has no address and no direction.
    pub(crate) fn list(&self, rates: &[(FlowOwner, u64)], reserved: &[Booking]) -> Vec<LimitUse> {
        let (state, now) = (self.state.lock(), LocalTime::of(SystemTime::now()));
        let limits = state.limits.iter().map(|limit| {
            let group = |user: &str| state.shares.group(user);
            let fitting = rates.iter().filter(|(owner, _)| fits(limit, owner, group(&owner.user)));
            let guaranteed =
                reserved.iter().filter(|booking| fits_user(limit, &booking.user, group(&booking.user)));
            LimitUse {
                limit: limit.clone(),
                now: limit.rate.rate(now),
                used: fitting.map(|(_, rate)| rate).sum(),
                reserved: guaranteed.fold(0, |sum, booking| sum.saturating_add(booking.rate)),
            }
        });
        limits.collect()
    }

    /// The flow of a new channel.
    pub(crate) fn join(&self, owner: FlowOwner) -> Arc<Bandwidth> {
        let mut state = self.state.lock();
        let flow = self.limiter.join(&state.spec(&owner, LocalTime::of(SystemTime::now())));
        // Once in a while, so that each channel costs a constant time on average.
        if state.flows.len() == state.flows.capacity() {
            state.flows.retain(|(flow, _)| flow.strong_count() > 0);
        }
        state.flows.push((Arc::downgrade(&flow), owner));
        self.follow(&mut state);
        flow
    }

    /// Sets the reservations, whose rates are guaranteed during their windows.
    pub(crate) fn set_bookings(&self, bookings: Vec<Booking>) {
        self.limiter.set_bookings(bookings);
    }

    /// The rate in bytes per second that the server has for all transfers at any time, and the one
    /// that the other limits of a user at an address let through. `None`: it has no limit.
    pub(crate) fn lowest(&self, user: &str, address: IpAddr) -> (Option<u64>, Option<u64>) {
        let state = self.state.lock();
        let group = state.shares.group(user);
        let is_for_all = |limit: &BandwidthLimit| {
            limit.user.is_none() && limit.group.is_none() && limit.site.is_empty() && !limit.each_user
        };
        let (mut all, mut own) = (None::<u64>, None::<u64>);
        for limit in &state.limits {
            let Some(rate) = limit.rate.lowest() else { continue };
            let direction = limit.direction;
            let owner = FlowOwner { user: user.to_owned(), address, direction, reservation: None };
            if is_for_all(limit) {
                all = Some(all.map_or(rate, |all| all.min(rate)));
            } else if fits(limit, &owner, group) {
                own = Some(own.map_or(rate, |own| own.min(rate)));
            }
        }
        (all, own)
    }

    /// A transfer in this direction begins on a channel.
    pub(crate) fn begin(
        &self,
        flow: &Arc<Bandwidth>,
        direction: TransferDirection,
        reservation: Option<Arc<str>>,
    ) {
        let mut state = self.state.lock();
        let this = Arc::downgrade(flow);
        let Some(at) = state.flows.iter().position(|(other, _)| other.ptr_eq(&this)) else { return };
        let owner = FlowOwner { direction: Some(direction), reservation, ..state.flows[at].1.clone() };
        if state.flows[at].1 == owner {
            return;
        }
        state.flows[at].1 = owner.clone();
        flow.change(&state.spec(&owner, LocalTime::of(SystemTime::now())));
        self.follow(&mut state);
    }

    /// Passes timetables of new limits on.
    fn follow(&self, state: &mut State) {
        if state.timetables.len() > MOST_TIMETABLES {
            state.timetables.clear();
            let owners: Vec<_> = state
                .flows
                .iter()
                .filter(|(flow, _)| flow.strong_count() > 0)
                .map(|(_, owner)| owner.clone())
                .collect();
            for owner in owners {
                state.spec(&owner, LocalTime::of(SystemTime::now()));
            }
        }
        if !state.timetables.is_empty() {
            self.limiter.set_timetables(true, state.timetables.clone());
        }
    }
}

/// Timetables of limits for each user that are kept although the users may be gone.
const MOST_TIMETABLES: usize = 1000;

impl State {
    fn spec(&mut self, owner: &FlowOwner, now: LocalTime) -> FlowSpec {
        let group = self.shares.group(&owner.user);
        let weight = |weight: Option<&std::num::NonZeroU32>| weight.map_or(1, |weight| weight.get());
        let user_weight = weight(self.shares.users.get(&owner.user));
        let mut spec = FlowSpec {
            // A user without a group stands beside the groups. No group has a slash and a user.
            group: group.map_or_else(|| format!("/{}", owner.user), |group| format!("group {group}")),
            group_weight: group.map_or(user_weight, |group| weight(self.shares.groups.get(group))),
            user: owner.user.clone(),
            user_weight,
            limits: Vec::new(),
            guarantee: owner.reservation.as_deref().map(str::to_owned),
        };
        for (at, limit) in self.limits.iter().enumerate() {
            if !fits(limit, owner, group) {
                continue;
            }
            let user = if limit.each_user { &*owner.user } else { "" };
            let name = format!("{at} {user}");
            if !limit.rate.is_constant() && !self.timetables.iter().any(|(known, _)| *known == name) {
                self.timetables.push((name.clone(), limit.rate.clone()));
            }
            spec.limits.push(LimitSpec { name, rate: limit.rate.rate(now) });
        }
        spec
    }
}

fn fits(limit: &BandwidthLimit, owner: &FlowOwner, group: Option<&str>) -> bool {
    fits_user(limit, &owner.user, group)
        && (limit.site.is_empty() || limit.site.iter().any(|site| site.matches(owner.address)))
        && limit.direction.is_none_or(|direction| owner.direction == Some(direction))
}

/// Whether transfers of a user, with some address and direction, have the limit.
fn fits_user(limit: &BandwidthLimit, user: &str, group: Option<&str>) -> bool {
    limit.user.as_ref().is_none_or(|wanted| wanted == user)
        && limit.group.as_deref().is_none_or(|wanted| group == Some(wanted))
}

/// The flow of a channel that is divided among several data nodes, for one of them.
pub(crate) struct NodePurse {
    pub(crate) flow: Arc<Bandwidth>,
    /// The nodes of the channel.
    pub(crate) nodes: usize,
}

impl Purse for NodePurse {
    fn share(&self) -> Option<u64> {
        self.flow.share().map(|share| share / self.nodes.max(1) as u64)
    }

    fn charge(&self, bytes: u64) -> Option<Mark> {
        Purse::charge(&*self.flow, bytes)
    }

    fn due(&self, mark: Mark) -> Option<Duration> {
        Purse::due(&*self.flow, mark)
    }

    fn refund(&self, bytes: u64) {
        self.flow.refund(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn limits(text: &str) -> BandwidthLimits {
        let limits = BandwidthLimits::default();
        limits.set(&Config::parse(text).unwrap());
        limits
    }

    fn spec(limits: &BandwidthLimits, user: &str, address: &str, direction: TransferDirection) -> FlowSpec {
        let (user, address) = (user.into(), address.parse().unwrap());
        let owner = FlowOwner { user, address, direction: Some(direction), reservation: None };
        limits.state.lock().spec(&owner, LocalTime { weekday: 0, minute: 600 })
    }

    #[test]
    fn flow_has_the_limits_that_fit_it() {
        let limits = limits(
            "[[bandwidth]]\nrate = '10M'\n[[bandwidth]]\nrate = '1M'\nuser = 'ada'\n\
             [[bandwidth]]\nrate = '2M'\ngroup = 'cms'\n[[bandwidth]]\nrate = '3M'\nsite = ['192.0.2.0/24']\n\
             [[bandwidth]]\nrate = '4M'\ndirection = 'upload'\n[[bandwidth]]\nrate = '5M'\neach_user = true\n\
             [shares.members]\ncms = ['bob']\n",
        );
        let rates = |user, address, direction| {
            let spec = spec(&limits, user, address, direction);
            spec.limits.iter().map(|limit| limit.rate.unwrap() >> 20).collect::<Vec<_>>()
        };
        assert_eq!(rates("ada", "198.51.100.1", TransferDirection::Download), [10, 1, 5]);
        assert_eq!(rates("bob", "192.0.2.9", TransferDirection::Upload), [10, 2, 3, 4, 5]);
        assert_eq!(rates("eve", "::ffff:192.0.2.9", TransferDirection::Download), [10, 3, 5]);
        let name = |user| spec(&limits, user, "::1", TransferDirection::Download).limits[1].name.clone();
        assert_ne!(name("eve"), name("mallory"));
    }

    #[test]
    fn rate_that_can_be_reserved_is_the_lowest_of_all_and_of_the_user() {
        let limits = limits(
            "[[bandwidth]]\nrate = 'Mon 08:00-09:00 8M, else off'\n[[bandwidth]]\nrate = '10M'\n\
             direction = 'upload'\n[[bandwidth]]\nrate = '3M'\nuser = 'ada'\n[[bandwidth]]\nrate = '2M'\n\
             site = ['192.0.2.0/24']\n[[bandwidth]]\nrate = '5M'\neach_user = true\n",
        );
        let lowest = |user, address: &str| {
            let (all, own) = limits.lowest(user, address.parse().unwrap());
            (all.map(|rate| rate >> 20), own.map(|rate| rate >> 20))
        };
        assert_eq!(lowest("ada", "::1"), (Some(8), Some(3)));
        assert_eq!(lowest("bob", "192.0.2.1"), (Some(8), Some(2)));
        assert_eq!(lowest("bob", "192.0.3.1"), (Some(8), Some(5)));
        limits.set(&Config::default());
        assert_eq!(lowest("ada", "::1"), (None, None));
    }

    #[test]
    fn list_adds_up_the_rates_that_fit_each_limit() {
        let limits =
            limits("[[bandwidth]]\nrate = '10M'\n[[bandwidth]]\nrate = 'off'\ndirection = 'upload'\n");
        let rate = |direction, rate| {
            let address = [127, 0, 0, 1].into();
            let owner = FlowOwner { user: "ada".into(), address, direction, reservation: None };
            (owner, rate)
        };
        let moving = [rate(Some(TransferDirection::Upload), 3), rate(Some(TransferDirection::Download), 4)];
        let listed =
            limits.list(&moving, &[]).into_iter().map(|one| (one.now.map(|now| now >> 20), one.used));
        assert_eq!(listed.collect::<Vec<_>>(), [(Some(10), 7), (None, 3)]);
    }

    #[test]
    fn list_adds_up_what_is_reserved_for_users_whom_each_limit_fits() {
        let limits = limits(
            "[[bandwidth]]\nrate = '10M'\n[[bandwidth]]\nrate = '9M'\nuser = 'ada'\n\
             [[bandwidth]]\nrate = '8M'\ngroup = 'cms'\n[[bandwidth]]\nrate = '7M'\ndirection = 'upload'\n\
             site = ['192.0.2.0/24']\n[shares.members]\ncms = ['bob']\n",
        );
        let booking = |user: &str, rate| {
            let (token, user) = (String::new(), user.to_owned());
            Booking { token, user, slots: 1, rate, from: 0, until: 9, lease: 9 }
        };
        let reserved = [booking("ada", 3), booking("bob", 4), booking("ada", 20), booking("eve", 0)];
        let listed = limits.list(&[], &reserved).into_iter().map(|limit| limit.reserved);
        assert_eq!(listed.collect::<Vec<_>>(), [27, 23, 4, 27]);
        let greedy = [booking("ada", u64::MAX), booking("bob", 1)];
        assert_eq!(limits.list(&[], &greedy)[0].reserved, u64::MAX);
    }

    #[test]
    fn flow_has_the_weights_of_its_user_and_group() {
        let limits = limits(
            "[shares]\nusers = { ada = 4, bob = 2 }\ngroups = { cms = 3 }\nmembers = { cms = ['bob'] }\n",
        );
        let weights = |user| {
            let spec = spec(&limits, user, "::1", TransferDirection::Download);
            (spec.group_weight, spec.user_weight)
        };
        assert_eq!((weights("ada"), weights("bob"), weights("eve")), ((4, 4), (3, 2), (1, 1)));
    }

    #[test]
    fn limits_that_are_set_again_leave_no_timetable_of_before() {
        let limits = limits("[[bandwidth]]\nrate = 'Mon 1M, else off'\n");
        let address = [127, 0, 0, 1].into();
        let owner = FlowOwner { user: "ada".into(), address, direction: None, reservation: None };
        let flow = limits.join(owner);
        limits.begin(&flow, TransferDirection::Upload, None);
        assert_eq!(limits.state.lock().timetables.len(), 1);
        limits.set(&Config::default());
        assert!(limits.state.lock().timetables.is_empty());
        drop(flow);
        limits.set(&Config::default());
        assert!(limits.state.lock().flows.is_empty());
    }
}
