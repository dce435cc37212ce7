// SPDX-License-Identifier: Apache-2.0
//! The real runtime. Placeholder until its first landing.
