// SPDX-License-Identifier: Apache-2.0
//! runc's command line. Placeholder until its first landing.
