// SPDX-License-Identifier: Apache-2.0

// recorder is a plugin on the official Go stub: it adds one environment variable to each
// container and appends one line for each event to a file. It exits when its connection closes. It
// appends the remaining time of each Synchronize and CreateContainer request to another file.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type recorder struct{ out, value, deadlines string }

// noteDeadline appends the event and the milliseconds until its deadline, -1 without one.
func (r *recorder) noteDeadline(ctx context.Context, event string) {
	left := int64(-1)
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline).Milliseconds()
	}
	if r.deadlines != "" {
		(&recorder{out: r.deadlines}).note(event, fmt.Sprint(left))
	}
}

func (r *recorder) note(event, subject string) {
	file, err := os.OpenFile(r.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintln(file, event, subject)
}

func (r *recorder) Synchronize(ctx context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	r.noteDeadline(ctx, "Synchronize")
	for _, c := range containers {
		r.note("Synchronize", c.GetName())
	}
	return nil, nil
}

func (r *recorder) RunPodSandbox(_ context.Context, p *api.PodSandbox) error {
	r.note("RunPodSandbox", p.GetName())
	return nil
}

func (r *recorder) StopPodSandbox(_ context.Context, p *api.PodSandbox) error {
	r.note("StopPodSandbox", p.GetName())
	return nil
}

func (r *recorder) RemovePodSandbox(_ context.Context, p *api.PodSandbox) error {
	r.note("RemovePodSandbox", p.GetName())
	return nil
}

func (r *recorder) CreateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	r.noteDeadline(ctx, "CreateContainer")
	r.note("CreateContainer", c.GetName())
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("FROM_GO", r.value)
	return adjust, nil, nil
}

func (r *recorder) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	r.note("PostCreateContainer", c.GetName())
	return nil
}

func (r *recorder) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	r.note("StartContainer", c.GetName())
	return nil
}

func (r *recorder) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	r.note("PostStartContainer", c.GetName())
	return nil
}

func (r *recorder) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	r.note("StopContainer", c.GetName())
	return nil, nil
}

func (r *recorder) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	r.note("RemoveContainer", c.GetName())
	return nil
}

func (r *recorder) Shutdown(_ context.Context) {
	r.note("Shutdown", "-")
}

func main() {
	socket := flag.String("socket", "", "where the runtime listens")
	out := flag.String("out", "", "file for the events")
	value := flag.String("value", "yes", "value of the variable")
	deadlines := flag.String("deadlines", "", "file for the time that is left")
	flag.Parse()
	plugin := &recorder{out: *out, value: *value, deadlines: *deadlines}
	s, err := stub.New(plugin, stub.WithPluginName("recorder"), stub.WithPluginIdx("10"), stub.WithSocketPath(*socket))
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
