// SPDX-License-Identifier: Apache-2.0
//! The configuration table. Placeholder until its first landing.
