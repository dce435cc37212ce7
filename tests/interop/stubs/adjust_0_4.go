// SPDX-License-Identifier: Apache-2.0

//go:build since_0_4

package main

import "github.com/containerd/nri/pkg/api"

func init() {
	setters = append(setters, func(a *api.ContainerAdjustment) {
		a.AddRlimit("RLIMIT_NOFILE", 2048, 1024)
	})
}
