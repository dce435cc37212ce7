// SPDX-License-Identifier: Apache-2.0

//go:build since_0_12

package main

import (
	"os"

	"github.com/containerd/nri/pkg/api"
)

func init() { adjustments["real"] = real }

// The container prints its own settings; the test checks each line.
const script = `
echo "env $NEW $KEPT [$GONE] $CDI"
echo "oom $(cat /proc/self/oom_score_adj)"
echo "nofile $(ulimit -Hn) $(ulimit -Sn)"
echo "device $(busybox stat -c '%a %u %g %t %T' /dev/new)"
echo written >/dev/new && echo "device takes"
echo "mount $(busybox ls /new)"
echo "sysctl $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
echo "ipc $(busybox readlink /proc/self/ns/ipc)"
echo "cpus $(busybox grep Cpus_allowed_list /proc/self/status)"
busybox mkdir /tmp/x 2>&1
echo end
exec sleep 300
`

// No value here affects anything outside the container.
func real() *api.ContainerAdjustment {
	a := &api.ContainerAdjustment{}
	a.UpdateArgs([]string{"sh", "-c", script})
	a.AddAnnotation("stub/new", "yes")
	a.AddEnv("NEW", "yes")
	a.RemoveEnv("GONE")
	a.RemoveEnv("KEPT")
	a.AddEnv("KEPT", "after")
	a.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/device=one"})
	a.AddMount(&api.Mount{
		Destination: "/new", Type: "bind", Source: "/proc/sys/kernel/random", Options: []string{"rbind", "ro"},
	})
	a.AddDevice(&api.LinuxDevice{
		Path: "/dev/new", Type: "c", Major: 1, Minor: 3,
		FileMode: api.FileMode(os.FileMode(0o640)), Uid: api.UInt32(uint32(0)), Gid: api.UInt32(uint32(6)),
	})
	a.AddRlimit("RLIMIT_NOFILE", 200, 100)
	score := 123
	a.SetLinuxOomScoreAdj(&score)
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "network"})
	a.RemoveNamespace(&api.LinuxNamespace{Type: "ipc"})
	a.SetLinuxSysctl("net.ipv4.ip_unprivileged_port_start", "77")
	a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{
		DefaultAction: "SCMP_ACT_ALLOW",
		Syscalls: []*api.LinuxSyscall{{
			Names: []string{"mkdir", "mkdirat"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: api.UInt32(uint32(38)),
		}},
	})
	a.SetLinuxMemoryLimit(64 << 20)
	a.SetLinuxCPUShares(300)
	a.SetLinuxCPUQuota(20000)
	a.SetLinuxCPUPeriod(50000)
	a.SetLinuxCPUSetCPUs("0")
	a.SetLinuxCPUSetMems("0")
	a.SetLinuxPidLimits(77)
	return a
}
