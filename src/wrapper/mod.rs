// SPDX-License-Identifier: Apache-2.0
//! One process per verb. Placeholder until its first landing.
