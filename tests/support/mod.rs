// SPDX-License-Identifier: Apache-2.0
//! What several test files share; no test of its own.

pub(crate) mod corpus;
