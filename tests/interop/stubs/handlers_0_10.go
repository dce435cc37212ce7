// SPDX-License-Identifier: Apache-2.0

//go:build since_0_10

package main

import (
	"context"

	"github.com/containerd/nri/pkg/api"
)

func (r *recorder) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	r.note("UpdatePodSandbox", line{
		"pod": pod.GetName(), "overhead": overhead.GetCpu().GetShares().GetValue(),
		"resources": resources.GetCpu().GetShares().GetValue(),
	})
	return nil
}

func (r *recorder) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	r.pod("PostUpdatePodSandbox", pod)
	return nil
}

// Also validates, and records the reported owner of a variable that this plugin set.
func (r *recorder) ValidateContainerAdjustment(_ context.Context, request *api.ValidateContainerAdjustmentRequest) error {
	owners := request.GetOwners().GetOwners()[request.GetContainer().GetId()]
	owner := owners.GetCompound()[int32(api.Field_Env)].GetOwners()["NEW"]
	r.note("ValidateContainerAdjustment", line{
		"pod": request.GetPod().GetName(), "container": request.GetContainer().GetName(),
		"owner": owner, "plugins": len(request.GetPlugins()),
	})
	return nil
}
