// SPDX-License-Identifier: Apache-2.0
//! nri-runc nri VERB. Placeholder until its first landing.
