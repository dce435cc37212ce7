// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/containerd/nri/pkg/api"
)

// Each version adds the adjustments that it supports in an init function.
var (
	setters     = []func(*api.ContainerAdjustment){process, linux, resources, classes}
	adjustments = map[string]func() *api.ContainerAdjustment{"all": all}
)

func all() *api.ContainerAdjustment {
	a := &api.ContainerAdjustment{}
	for _, set := range setters {
		set(a)
	}
	return a
}

func hook(name string) []*api.Hook {
	return []*api.Hook{{
		Path: "/bin/" + name, Args: []string{name, "now"}, Env: []string{"H=1"}, Timeout: api.Int(7),
	}}
}

func process(a *api.ContainerAdjustment) {
	a.AddAnnotation("stub/new", "yes")
	a.RemoveAnnotation("stub/gone")
	a.RemoveAnnotation("stub/kept")
	a.AddAnnotation("stub/kept", "after")
	a.AddMount(&api.Mount{
		Destination: "/new", Type: "bind", Source: "/etc", Options: []string{"rbind", "ro"},
	})
	a.RemoveMount("/gone")
	a.AddEnv("NEW", "yes")
	a.RemoveEnv("GONE")
	a.RemoveEnv("KEPT")
	a.AddEnv("KEPT", "after")
	a.AddHooks(&api.Hooks{
		Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"),
		CreateContainer: hook("createContainer"), StartContainer: hook("startContainer"),
		Poststart: hook("poststart"), Poststop: hook("poststop"),
	})
}

func linux(a *api.ContainerAdjustment) {
	a.AddDevice(&api.LinuxDevice{
		Path: "/dev/new", Type: "c", Major: 1, Minor: 3,
		FileMode: api.FileMode(os.FileMode(0o640)), Uid: api.UInt32(uint32(5)), Gid: api.UInt32(uint32(6)),
	})
	a.RemoveDevice("/dev/gone")
	a.SetLinuxCgroupsPath("/stub/path")
}

func resources(a *api.ContainerAdjustment) {
	a.SetLinuxMemoryLimit(64 << 20)
	a.SetLinuxMemoryReservation(32 << 20)
	a.SetLinuxMemorySwap(96 << 20)
	a.SetLinuxMemoryKernel(16 << 20)
	a.SetLinuxMemoryKernelTCP(8 << 20)
	a.SetLinuxMemorySwappiness(40)
	a.SetLinuxMemoryDisableOomKiller()
	a.SetLinuxMemoryUseHierarchy()
	a.SetLinuxCPUShares(300)
	a.SetLinuxCPUQuota(20000)
	a.SetLinuxCPUPeriod(50000)
	a.SetLinuxCPURealtimeRuntime(100)
	a.SetLinuxCPURealtimePeriod(1000)
	a.SetLinuxCPUSetCPUs("0")
	a.SetLinuxCPUSetMems("0")
	a.AddLinuxHugepageLimit("2MB", 4<<20)
	a.AddLinuxUnified("memory.high", "50000000")
	a.Linux.Resources.Devices = append(a.Linux.Resources.Devices, &api.LinuxDeviceCgroup{
		Allow: true, Type: "c", Major: api.Int64(int64(10)), Minor: api.Int64(int64(200)), Access: "rw",
	})
}

func classes(a *api.ContainerAdjustment) {
	a.SetLinuxBlockIOClass("gold")
	a.SetLinuxRDTClass("silver")
}
