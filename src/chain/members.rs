// SPDX-License-Identifier: Apache-2.0
//! Keeps the plugins of a chain (the daemon's, or a dry run's) in the order in which they are asked. This module
//! never sends anything.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use super::ChainedPlugin;
use crate::plugin::Plugin;

/// A plugin, with the data that the daemon's registry or a dry run stores about it.
pub(crate) trait Member {
    /// Returns the plugin in the chain.
    fn chained(&self) -> &Rc<ChainedPlugin>;
    /// Returns the plugin's connection.
    fn connection(&self) -> &Plugin {
        &self.chained().plugin
    }
    /// Whether the plugin is synchronized and connected, so that it is asked.
    fn is_synchronized(&self) -> bool;
}

/// The plugins, sorted by index; plugins with the same index stay in connection order, so that the order is
/// reproducible. NRI: the reference sorts by index only, and not stably.
pub(crate) struct Members<M>(RefCell<Vec<Rc<M>>>);

impl<M> Default for Members<M> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<M: Member> Members<M> {
    /// Returns all members, in order.
    pub(crate) fn borrow(&self) -> Ref<'_, Vec<Rc<M>>> {
        self.0.borrow()
    }

    /// Returns every synchronized plugin, in order.
    pub(crate) fn synchronized(&self) -> Vec<Rc<ChainedPlugin>> {
        let members = self.0.borrow();
        let synchronized = members.iter().filter(|member| member.is_synchronized());
        synchronized.map(|member| Rc::clone(member.chained())).collect()
    }

    /// Inserts a member after the others with the same index.
    pub(crate) fn insert(&self, member: M) -> Rc<M> {
        let member = Rc::new(member);
        let mut members = self.0.borrow_mut();
        let index = member.chained().plugin.index();
        let at = members.partition_point(|other| other.chained().plugin.index() <= index);
        members.insert(at, Rc::clone(&member));
        member
    }
}

impl<M> Members<M> {
    /// Removes the members that `is_old` selects, and moves `member` to the place of the first of them, so that plugins
    /// with the same index keep their order. Returns the removed members; if there are none, `member` is not moved.
    pub(crate) fn replace(&self, is_old: impl Fn(&M) -> bool, member: &Rc<M>) -> Vec<Rc<M>> {
        let mut members = self.0.borrow_mut();
        let Some(first) = members.iter().position(|other| is_old(other)) else { return Vec::new() };
        let at = members.iter().take(first).filter(|other| !Rc::ptr_eq(other, member)).count();
        let old = members.iter().filter(|other| is_old(other)).cloned().collect();
        members.retain(|other| !is_old(other) && !Rc::ptr_eq(other, member));
        members.insert(at, Rc::clone(member));
        old
    }

    /// Removes a member; returns false if it was removed before.
    pub(crate) fn remove(&self, member: &Rc<M>) -> bool {
        let mut members = self.0.borrow_mut();
        let count = members.len();
        members.retain(|other| !Rc::ptr_eq(other, member));
        members.len() < count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_takes_the_place_of_the_first_replaced_member() {
        for (newcomer, old, order) in [
            (4, vec![2], vec![1, 4, 3]),
            (4, vec![2, 3], vec![1, 4]),
            (1, vec![3], vec![2, 1, 4]),
            (2, vec![1, 4], vec![2, 3]),
            (2, vec![], vec![1, 2, 3, 4]),
        ] {
            let members = Members(RefCell::new((1..=4).map(Rc::new).collect()));
            let member = Rc::clone(&members.0.borrow()[newcomer - 1]);
            let replaced = members.replace(|other| old.contains(other), &member);
            assert_eq!(replaced.iter().map(|other| **other).collect::<Vec<_>>(), old);
            let left: Vec<usize> = members.0.borrow().iter().map(|other| **other).collect();
            assert_eq!(left, order, "{newcomer} for {old:?}");
        }
    }
}
