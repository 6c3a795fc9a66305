//! The widest path through relays.
//!
//! Nodes are numbered: 0 is the source, the last one the destination, those between are relays. A
//! hop has an estimate of the rate that a transfer over it reaches. The rate of a path is that of
//! its narrowest hop. The path in use is left only for one that is clearly wider than the
//! uncertainty of both explains, so that repeated estimates do not make transfers alternate.

mod estimate;
mod watch;

pub use estimate::{Estimate, Loss, PathFacts};
pub use watch::{Doubt, RouteWatch};

/// A path is left for one that is wider by this factor at least.
const LEAST_GAIN: f64 = 1.1;
/// The part of the uncertainty (in logarithms, of both paths together) that a gain has to exceed.
const CAUTION: f64 = 0.5;

/// Hops between nodes. A hop that is not set cannot be used.
#[derive(Clone, Debug)]
pub struct Graph {
    nodes: usize,
    hops: Vec<Option<Estimate>>,
}

/// A path from the source to the destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Source and destination included.
    pub nodes: Vec<usize>,
    /// The narrowest hop.
    pub narrowest: (usize, usize),
    /// The estimate of the narrowest hop.
    pub estimate: Estimate,
}

/// Why a path was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The path in use is the widest one.
    Widest,
    /// Another path is wider, but not clearly.
    NotClearlyWider,
    /// The rate of the path in use is unknown, so no other is clearly wider.
    NotComparable,
    /// It is clearly wider than the path in use.
    ClearlyWider,
    /// The path in use cannot be used any more.
    OnlyUsable,
}

/// The chosen path.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub route: Route,
    pub reason: Reason,
    /// The path that was not chosen: the former one, or the wider one.
    pub other: Option<Route>,
}

impl Graph {
    /// A graph without hops.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, hops: vec![None; nodes * nodes] }
    }

    /// Sets a hop. A hop of a node to itself, or of an unknown node, is ignored.
    pub fn set(&mut self, from: usize, to: usize, estimate: Estimate) {
        if from != to && from < self.nodes && to < self.nodes {
            self.hops[from * self.nodes + to] = Some(estimate);
        }
    }

    /// The graph if transfers reach only this part of the estimates of the model.
    fn calibrated(&self, part: f64) -> Self {
        let hops = self.hops.iter().map(|hop| hop.map(|estimate| estimate.calibrated(part)));
        Self { nodes: self.nodes, hops: hops.collect() }
    }

    fn hop(&self, from: usize, to: usize) -> Option<Estimate> {
        (from < self.nodes && to < self.nodes).then(|| self.hops[from * self.nodes + to])?
    }

    /// The path over these nodes; `None` if a hop is missing.
    pub fn route(&self, nodes: &[usize]) -> Option<Route> {
        let mut narrowest: Option<((usize, usize), Estimate)> = None;
        for pair in nodes.windows(2) {
            let estimate = self.hop(pair[0], pair[1])?;
            if narrowest.is_none_or(|(_, least)| estimate.likely() < least.likely()) {
                narrowest = Some(((pair[0], pair[1]), estimate));
            }
        }
        let (narrowest, estimate) = narrowest?;
        Some(Route { nodes: nodes.to_vec(), narrowest, estimate })
    }

    /// The path whose narrowest hop has the highest likely rate, with at most `relays` relays. Of
    /// equal ones, that with the fewest hops.
    pub fn widest(&self, relays: usize) -> Option<Route> {
        let last = self.nodes.checked_sub(1).filter(|last| *last > 0)?;
        // The widest walk to each node with so many hops, and the node before it. The shortest walk
        // of the highest rate visits no node twice: without the circle it would be shorter and not
        // narrower.
        let mut layers = vec![vec![(0.0, 0); self.nodes]];
        layers[0][0].0 = f64::INFINITY;
        let mut best = (0.0, 0);
        for hops in 1..=relays.saturating_add(1).min(last) {
            let before = &layers[hops - 1];
            let step = |to: usize| {
                let mut widest = (0.0, 0);
                for (from, (rate, _)) in before.iter().enumerate() {
                    let rate = self.hop(from, to).map_or(0.0, |hop| rate.min(hop.likely()));
                    if rate > widest.0 {
                        widest = (rate, from);
                    }
                }
                widest
            };
            let layer: Vec<(f64, usize)> = (0..self.nodes).map(step).collect();
            if layer[last].0 > best.0 {
                best = (layer[last].0, hops);
            }
            layers.push(layer);
        }
        if best.1 == 0 {
            return None;
        }
        let mut nodes = vec![last];
        let mut at = last;
        for layer in layers[1..=best.1].iter().rev() {
            at = layer[at].1;
            nodes.push(at);
        }
        nodes.reverse();
        self.route(&nodes)
    }

    /// Chooses between the path in use and the widest one. `None`: no path can be used.
    pub fn choose(&self, in_use: &[usize], relays: usize) -> Option<Choice> {
        Some(judge(self.route(in_use), self.widest(relays)?))
    }

    /// Like [`Graph::choose`], with what is known about whole paths in place of the estimates of
    /// their hops: a rate, or that the path fails (`None`). All paths are compared, which takes
    /// milliseconds with eight relays.
    pub fn choose_knowing(&self, in_use: &[usize], relays: usize, known: &[Known]) -> Option<Choice> {
        let of = |nodes: &[usize]| known.iter().find(|(of, _)| of == nodes).map(|(_, rate)| *rate);
        let measured = |(nodes, rate): &Known| Some(Route { estimate: (*rate)?, ..self.route(nodes)? });
        let mut widest: Option<Route> = None;
        for route in known.iter().filter_map(measured) {
            if widest.as_ref().is_none_or(|best| route.is_wider(best)) {
                widest = Some(route);
            }
        }
        self.search(&mut vec![0], relays, &|nodes| of(nodes).is_none(), &mut widest);
        let current = self.route(in_use).and_then(|route| match of(in_use) {
            None => Some(route),
            Some(rate) => Some(Route { estimate: rate?, ..route }),
        });
        Some(judge(current, widest?))
    }

    /// Replaces `widest` by the widest path that begins with `nodes`, if it is wider and `counts`.
    fn search(
        &self,
        nodes: &mut Vec<usize>,
        relays: usize,
        counts: &dyn Fn(&[usize]) -> bool,
        widest: &mut Option<Route>,
    ) {
        let last = self.nodes.saturating_sub(1);
        for next in (1..=last).rev() {
            let full = next != last && nodes.len() > relays;
            let Some(hop) = nodes.last().and_then(|from| self.hop(*from, next)) else { continue };
            let narrower = widest.as_ref().is_some_and(|best| hop.likely() < best.estimate.likely());
            if full || narrower || nodes.contains(&next) {
                continue;
            }
            nodes.push(next);
            if next != last {
                self.search(nodes, relays, counts, widest);
            } else if let Some(route) = self.route(nodes).filter(|_| counts(nodes))
                && widest.as_ref().is_none_or(|best| route.is_wider(best))
            {
                *widest = Some(route);
            }
            nodes.pop();
        }
    }
}

/// A whole path and its rate; `None`: it fails.
pub type Known = (Vec<usize>, Option<Estimate>);

impl Route {
    /// Of two paths of one rate, that with fewer hops is preferred.
    fn is_wider(&self, other: &Self) -> bool {
        let (rate, best) = (self.estimate.likely(), other.estimate.likely());
        rate > best || rate == best && self.nodes.len() < other.nodes.len()
    }
}

/// Chooses between the path in use, if it can be used, and the widest one.
fn judge(current: Option<Route>, widest: Route) -> Choice {
    let Some(current) = current else {
        return Choice { route: widest, reason: Reason::OnlyUsable, other: None };
    };
    if widest.estimate.likely() <= current.estimate.likely() {
        return Choice { route: current, reason: Reason::Widest, other: None };
    }
    let gain = (widest.estimate.likely() / current.estimate.likely()).ln();
    let doubt = CAUTION * widest.estimate.spread().hypot(current.estimate.spread());
    if gain > doubt.max(LEAST_GAIN.ln()) {
        Choice { route: widest, reason: Reason::ClearlyWider, other: Some(current) }
    } else if current.estimate.is_known() {
        Choice { route: current, reason: Reason::NotClearlyWider, other: Some(widest) }
    } else {
        Choice { route: current, reason: Reason::NotComparable, other: Some(widest) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn exact(rate: f64) -> Estimate {
        Estimate::new(rate, rate)
    }

    /// All paths without a node twice.
    fn all(graph: &Graph, relays: usize) -> Vec<Route> {
        fn extend(graph: &Graph, nodes: &mut Vec<usize>, relays: usize, found: &mut Vec<Route>) {
            if *nodes.last().unwrap() == graph.nodes - 1 {
                found.extend(graph.route(nodes));
                return;
            }
            for next in 0..graph.nodes {
                if nodes.contains(&next) || nodes.len() > relays && next != graph.nodes - 1 {
                    continue;
                }
                nodes.push(next);
                extend(graph, nodes, relays, found);
                nodes.pop();
            }
        }
        let mut found = Vec::new();
        extend(graph, &mut vec![0], relays, &mut found);
        found
    }

    fn graphs() -> impl Strategy<Value = Graph> {
        // Few different rates, so that there are ties.
        let hop = prop_oneof![
            2 => Just(None),
            1 => Just(Some(Estimate::UNKNOWN)),
            5 => (1u32..6, 1u32..6).prop_map(|(low, more)| {
                Some(Estimate::new(f64::from(low) * 1e6, f64::from(low * more) * 1e6))
            })
        ];
        (2usize..7).prop_flat_map(move |nodes| {
            prop::collection::vec(hop.clone(), nodes * nodes).prop_map(move |hops| {
                let mut graph = Graph::new(nodes);
                for (at, estimate) in hops.into_iter().enumerate() {
                    if let Some(estimate) = estimate {
                        graph.set(at / nodes, at % nodes, estimate);
                    }
                }
                graph
            })
        })
    }

    proptest! {
        #[test]
        fn widest_path_equals_the_best_of_all_paths(graph in graphs(), relays in 0usize..7) {
            let all = all(&graph, relays);
            let rate = |route: &Route| route.estimate.likely();
            let best = all.iter().map(rate).fold(0.0, f64::max);
            let hops = all.iter().filter(|route| rate(route) == best).map(|route| route.nodes.len()).min();
            let found = graph.widest(relays);
            prop_assert_eq!(found.as_ref().map(rate), (!all.is_empty()).then_some(best));
            prop_assert_eq!(found.as_ref().map(|route| route.nodes.len()), hops);
            prop_assert!(found.is_none_or(|route| all.contains(&route)));
        }

        #[test]
        fn choice_of_known_paths_is_that_of_hops_with_these_rates(
            graph in graphs(), relays in 0usize..7, rate in 1u32..30,
        ) {
            let direct = [0, graph.nodes - 1];
            let expected = graph.choose(&direct, relays);
            let found = graph.choose_knowing(&direct, relays, &[]);
            // Of paths with one rate and one number of hops either may be compared.
            let widest = |choice: &Option<Choice>| {
                let choice = choice.as_ref()?;
                let wider = |other: &&Route| other.is_wider(&choice.route);
                let widest = choice.other.as_ref().filter(wider).unwrap_or(&choice.route);
                Some((widest.estimate.likely(), widest.nodes.len(), choice.reason == Reason::OnlyUsable))
            };
            prop_assert_eq!(widest(&expected), widest(&found));
            // A path that is known to fail counts as one that cannot be used.
            let Some(best) = graph.widest(relays) else { return Ok(()) };
            let rest = graph.choose_knowing(&best.nodes, relays, &[(best.nodes.clone(), None)]);
            let replaced = |rest: Choice| rest.route.nodes != best.nodes && rest.reason == Reason::OnlyUsable;
            prop_assert!(rest.is_none_or(replaced));
            // A measured rate replaces the estimates of the hops.
            let rate = exact(f64::from(rate) * 1e6);
            let known = [(best.nodes.clone(), Some(rate))];
            let choice = graph.choose_knowing(&best.nodes, relays, &known).unwrap();
            let wider = all(&graph, relays).into_iter().filter(|route| route.nodes != best.nodes);
            let wider = wider.map(|route| route.estimate.likely()).fold(0.0, f64::max);
            prop_assert!(choice.route.estimate.likely() >= rate.likely());
            prop_assert!(choice.route.nodes == best.nodes || wider > LEAST_GAIN * rate.likely());
        }

        #[test]
        fn chosen_path_stays_chosen_while_the_estimates_stay(graph in graphs(), relays in 0usize..7) {
            let direct = [0, graph.nodes - 1];
            let Some(first) = graph.choose(&direct, relays) else { return Ok(()) };
            let again = graph.choose(&first.route.nodes, relays).unwrap();
            prop_assert_eq!(&again.route, &first.route);
            if first.reason == Reason::ClearlyWider {
                let former = first.other.unwrap();
                prop_assert!(first.route.estimate.likely() > LEAST_GAIN * former.estimate.likely());
            }
        }
    }

    #[test]
    fn path_in_use_is_left_only_for_a_clearly_wider_one() {
        let mut graph = Graph::new(3);
        graph.set(0, 1, exact(9e6));
        graph.set(1, 2, exact(5.4e6));
        graph.set(0, 2, exact(5e6));
        let choice = graph.choose(&[0, 2], 8).unwrap();
        assert_eq!((choice.reason, choice.route.nodes), (Reason::NotClearlyWider, vec![0, 2]));
        graph.set(1, 2, exact(5.6e6));
        let choice = graph.choose(&[0, 2], 8).unwrap();
        assert_eq!((choice.reason, choice.route.nodes), (Reason::ClearlyWider, vec![0, 1, 2]));
        assert_eq!(choice.route.narrowest, (1, 2));
        // Nothing is known about the direct hop.
        graph.set(0, 2, Estimate::UNKNOWN);
        let choice = graph.choose(&[0, 2], 8).unwrap();
        assert_eq!((choice.reason, choice.route.nodes), (Reason::NotComparable, vec![0, 2]));
        assert_eq!(graph.choose(&[0, 2], 0).unwrap().reason, Reason::Widest);
    }

    #[test]
    fn path_that_cannot_be_used_is_replaced() {
        let mut graph = Graph::new(3);
        assert_eq!(graph.choose(&[0, 2], 8), None);
        graph.set(0, 1, exact(1.0));
        graph.set(1, 2, exact(1.0));
        graph.set(1, 1, exact(1.0));
        graph.set(9, 2, exact(1.0));
        let choice = graph.choose(&[0, 2], 8).unwrap();
        assert_eq!((choice.reason, choice.route.nodes), (Reason::OnlyUsable, vec![0, 1, 2]));
        assert_eq!(graph.choose(&[0, 2], 0), None);
        assert_eq!(Graph::new(0).widest(8), None);
    }
}
