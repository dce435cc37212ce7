// SPDX-License-Identifier: Apache-2.0

//go:build since_0_10

package main

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
)

func (r *runtime) resize() {
	ctx := context.Background()
	_, err := r.UpdatePodSandbox(ctx, &adaptation.UpdatePodSandboxRequest{Pod: pod()})
	r.failed("UpdatePodSandbox", err)
	r.failed("PostUpdatePodSandbox", r.PostUpdatePodSandbox(ctx, &adaptation.PostUpdatePodSandboxRequest{Pod: pod()}))
}
