//! Jobs that can be started, by group.

use std::collections::{HashMap, VecDeque};

/// Identifies a worker that takes jobs.
pub(crate) type Taker = usize;

/// A taker keeps to one group while it has jobs, and prefers groups that no other taker keeps to.
/// So the files of one directory are created one after another by one thread, and those of
/// different directories at the same time. Two threads that create files in one directory would
/// wait for each other in the kernel, which locks the directory.
pub(crate) struct Ready<J> {
    groups: HashMap<u64, VecDeque<J>>,
    /// The groups that have jobs, in the order of their arrival.
    order: VecDeque<u64>,
    kept: HashMap<Taker, u64>,
    len: usize,
}

impl<J> Ready<J> {
    pub(crate) fn new() -> Self {
        Self { groups: HashMap::new(), order: VecDeque::new(), kept: HashMap::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, group: u64, job: J) {
        let order = &mut self.order;
        let jobs = self.groups.entry(group).or_insert_with(|| {
            order.push_back(group);
            VecDeque::new()
        });
        jobs.push_back(job);
        self.len += 1;
    }

    pub(crate) fn take(&mut self, taker: Taker) -> Option<J> {
        let kept = self.kept.get(&taker).copied().filter(|group| self.groups.contains_key(group));
        let group = kept.or_else(|| {
            let free = self.order.iter().find(|group| !self.kept.values().any(|kept| kept == *group));
            // The most recent group: the taker that keeps to it is farthest from its end.
            free.or_else(|| self.order.back()).copied()
        })?;
        self.kept.insert(taker, group);
        let jobs = self.groups.get_mut(&group)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.groups.remove(&group);
            self.order.retain(|other| *other != group);
        }
        self.len -= usize::from(job.is_some());
        job
    }

    /// Takes all jobs, in the order in which their groups arrived.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = J> + use<J> {
        let mut groups = std::mem::take(&mut self.groups);
        self.len = 0;
        std::mem::take(&mut self.order).into_iter().filter_map(move |group| groups.remove(&group)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takers_keep_to_their_groups() {
        let mut ready = Ready::new();
        for (group, job) in [(1, 10), (1, 11), (2, 20), (2, 21), (2, 22), (3, 30)] {
            ready.push(group, job);
        }
        assert_eq!(ready.take(0), Some(10));
        assert_eq!(ready.take(1), Some(20));
        assert_eq!(ready.take(0), Some(11));
        // Its group is empty, so it takes a group that no other taker keeps to.
        assert_eq!(ready.take(0), Some(30));
        // Only the group of the other taker is left.
        assert_eq!(ready.take(0), Some(21));
        assert_eq!(ready.len(), 1);
        ready.push(1, 12);
        assert_eq!(ready.drain().collect::<Vec<_>>(), [22, 12]);
        assert_eq!((ready.len(), ready.take(1)), (0, None));
    }
}
