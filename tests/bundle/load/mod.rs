// SPDX-License-Identifier: Apache-2.0
//! Many containers, connections and texts at once, or long ones: what they cost has a bound.

mod burst;
pub(crate) mod connections;
mod crowd;
mod lengths;
mod plateau;
