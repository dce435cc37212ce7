// SPDX-License-Identifier: Apache-2.0
//! Bundle and engine facts become NRI messages. Placeholder until its first landing.
