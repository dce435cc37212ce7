// SPDX-License-Identifier: Apache-2.0
//! What is known, and its form on disk. Placeholder until its first landing.
