// SPDX-License-Identifier: Apache-2.0
//! Lossless config.json. Placeholder until its first landing.
