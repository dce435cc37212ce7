// SPDX-License-Identifier: Apache-2.0

//go:build since_0_12

package main

import "github.com/containerd/nri/pkg/api"

func init() {
	setters = append(setters, func(a *api.ContainerAdjustment) {
		a.SetLinuxMemoryPolicy(api.MpolMode_MPOL_BIND, "0", api.MpolFlag_MPOL_F_STATIC_NODES)
	})
}
