// SPDX-License-Identifier: Apache-2.0
//! Many or long containers, connections and texts: their cost is bounded.

mod burst;
pub(crate) mod connections;
mod crowd;
mod lengths;
mod plateau;
