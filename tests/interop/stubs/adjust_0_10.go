// SPDX-License-Identifier: Apache-2.0

//go:build since_0_10

package main

import "github.com/containerd/nri/pkg/api"

func init() {
	setters = append(setters, func(a *api.ContainerAdjustment) {
		a.UpdateArgs([]string{"sleep", "2"})
		a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "uts", Path: "/proc/1/ns/uts"})
		a.RemoveNamespace(&api.LinuxNamespace{Type: "ipc"})
		a.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 4})
		a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{
			DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: api.UInt32(uint32(38)),
			Architectures: []string{"SCMP_ARCH_X86_64"}, Flags: []string{"SECCOMP_FILTER_FLAG_LOG"},
			Syscalls: []*api.LinuxSyscall{{
				Names: []string{"read", "write"}, Action: "SCMP_ACT_ALLOW",
				Args: []*api.LinuxSeccompArg{{Index: 1, Value: 2, ValueTwo: 3, Op: "SCMP_CMP_MASKED_EQ"}},
			}, {
				Names: []string{"mount"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: api.UInt32(uint32(1)),
			}},
		})
	})
}
