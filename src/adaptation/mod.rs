// SPDX-License-Identifier: Apache-2.0
//! PURE: what the plugins answered becomes one verdict. Placeholder until its first landing.
