// SPDX-License-Identifier: Apache-2.0
//! The doors to host paths and side effects. Placeholder until its first landing.
