// SPDX-License-Identifier: Apache-2.0
//! Where the daemon's words go. Placeholder until its first landing.
