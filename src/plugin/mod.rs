// SPDX-License-Identifier: Apache-2.0
//! One plugin: bytes, handshake, calls. Placeholder until its first landing.
