// SPDX-License-Identifier: Apache-2.0
//! Who called, by evidence. Placeholder until its first landing.
