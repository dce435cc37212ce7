// SPDX-License-Identifier: Apache-2.0

//go:build since_0_11

package main

import "github.com/containerd/nri/pkg/api"

func init() {
	setters = append(setters, func(a *api.ContainerAdjustment) {
		a.SetLinuxSysctl("net.ipv4.ip_forward", "1")
		// No version has a method for this.
		a.Linux.Sysctl["-net.gone"] = ""
		a.AddLinuxNetDevice("eth7", &api.LinuxNetDevice{Name: "net7"})
		a.RemoveLinuxNetDevice("eth6")
		a.SetLinuxScheduler(&api.LinuxScheduler{
			Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 3,
			Flags: []api.LinuxSchedulerFlag{api.LinuxSchedulerFlag_SCHED_FLAG_RESET_ON_FORK},
		})
		a.SetLinuxRDTClosID("gold")
		a.SetLinuxRDTSchemata([]string{"L3:0=f"})
		a.SetLinuxRDTEnableMonitoring(true)
	})
}
