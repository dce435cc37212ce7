// SPDX-License-Identifier: Apache-2.0
//! A plugin has to name the events that it wants.
use nri_plugin::BlockingHandler;

struct Nothing;

impl BlockingHandler for Nothing {}

fn main() {}
