// SPDX-License-Identifier: Apache-2.0

//go:build since_0_7

package main

import "github.com/containerd/nri/pkg/api"

func init() {
	setters = append(setters, func(a *api.ContainerAdjustment) {
		score := 123
		a.SetLinuxOomScoreAdj(&score)
		a.SetLinuxPidLimits(77)
		a.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/device=one"})
	})
}
