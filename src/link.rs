// SPDX-License-Identifier: Apache-2.0
//! Wrapper and daemon messages. Placeholder until its first landing.
