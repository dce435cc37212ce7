// SPDX-License-Identifier: Apache-2.0
//! Reading and replacing files safely. Placeholder until its first landing.
