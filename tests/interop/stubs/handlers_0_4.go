// SPDX-License-Identifier: Apache-2.0

//go:build since_0_4

package main

import (
	"context"

	"github.com/containerd/nri/pkg/api"
)

func (r *recorder) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	r.configured(config, runtime, version)
	return 0, nil
}

func (r *recorder) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	r.synchronized(pods, containers)
	return nil, nil
}

func (r *recorder) Shutdown(context.Context) { r.note("Shutdown", nil) }

func (r *recorder) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	r.pod("RunPodSandbox", pod)
	return nil
}

func (r *recorder) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	r.pod("StopPodSandbox", pod)
	return nil
}

func (r *recorder) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	r.pod("RemovePodSandbox", pod)
	return nil
}

func (r *recorder) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return r.create(pod, container), nil, nil
}

func (r *recorder) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	r.container("PostCreateContainer", pod, container)
	return nil
}

func (r *recorder) StartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	r.container("StartContainer", pod, container)
	r.ask(container.GetId())
	return nil
}

func (r *recorder) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	r.container("PostStartContainer", pod, container)
	return nil
}

func (r *recorder) UpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container, wanted *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return r.update(pod, container, wanted), nil
}

func (r *recorder) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	r.container("PostUpdateContainer", pod, container)
	return nil
}

func (r *recorder) StopContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	r.container("StopContainer", pod, container)
	return nil, nil
}

func (r *recorder) RemoveContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	r.container("RemoveContainer", pod, container)
	return nil
}
