// SPDX-License-Identifier: Apache-2.0
//! The resident process. Placeholder until its first landing.
