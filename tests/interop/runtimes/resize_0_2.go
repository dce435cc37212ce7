// SPDX-License-Identifier: Apache-2.0

//go:build !since_0_10

package main

// resize: pods are not resized before v0.10.
func (r *runtime) resize() {}
