// SPDX-License-Identifier: Apache-2.0
//! The built-in validator from its section of the configuration. Nothing is judged here.

use nri_adaptation::DefaultValidator;

use crate::config::Validator;

impl From<&Validator> for DefaultValidator {
    fn from(settings: &Validator) -> Self {
        let Validator {
            enable,
            reject_oci_hook_adjustment,
            reject_runtime_default_seccomp_adjustment,
            reject_unconfined_seccomp_adjustment,
            reject_custom_seccomp_adjustment,
            reject_namespace_adjustment,
            reject_sysctl_adjustment,
            required_plugins,
            tolerate_missing_plugins_annotation,
        } = settings.clone();
        Self {
            enable,
            reject_oci_hook_adjustment,
            reject_runtime_default_seccomp_adjustment,
            reject_unconfined_seccomp_adjustment,
            reject_custom_seccomp_adjustment,
            reject_namespace_adjustment,
            reject_sysctl_adjustment,
            required_plugins,
            tolerate_missing_plugins_annotation,
        }
    }
}
