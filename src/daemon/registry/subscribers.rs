// SPDX-License-Identifier: Apache-2.0
//! Keeps the plugins that one request involves, chosen when the request begins. A plugin that is
//! replaced meanwhile still answers the request (D41). This module sends nothing to plugins.

use std::ops::Deref;
use std::rc::Rc;

use crate::chain::ChainedPlugin;

use super::connected::{ConnectedPlugin, RequestUnderWay};

/// Plugins in the order in which they are asked. As long as this value exists, a replaced plugin
/// among them stays connected, up to a time limit.
pub(crate) struct Subscribers {
    plugins: Vec<Rc<ChainedPlugin>>,
    _requests: Vec<RequestUnderWay>,
}

impl Subscribers {
    /// Drops the plugins that are not to be asked.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&Rc<ChainedPlugin>) -> bool) {
        self.plugins.retain(is_kept);
    }
}

impl<'a> FromIterator<&'a Rc<ConnectedPlugin>> for Subscribers {
    fn from_iter<I: IntoIterator<Item = &'a Rc<ConnectedPlugin>>>(connected: I) -> Self {
        let begun =
            |plugin: &Rc<ConnectedPlugin>| (Rc::clone(&plugin.chained), plugin.begin_request());
        let (plugins, requests) = connected.into_iter().map(begun).unzip();
        Self { plugins, _requests: requests }
    }
}

impl Deref for Subscribers {
    type Target = [Rc<ChainedPlugin>];

    fn deref(&self) -> &Self::Target {
        &self.plugins
    }
}
