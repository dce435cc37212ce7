// SPDX-License-Identifier: Apache-2.0

// stubs is one plugin for many versions of the official Go stub. It subscribes to everything that
// its version supports, sets every field that its version supports in each container, requests
// updates from within its handlers, and records each call as a line of JSON.
//
// Each version has its own module file (vX.Y.Z.mod); build tags (since_0_4 and so on) select
// the features of that version. The contents of events never change its behavior.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type line = map[string]any

type recorder struct {
	mu sync.Mutex
	// The output file; a launched plugin gets it from its configuration.
	out   string
	early [][]byte
	stub  stub.Stub
	// A container that existed before this plugin connected.
	old string
	// The adjustment of each container.
	adjustment func() *api.ContainerAdjustment
}

// Extra attributes of main's stub options by version.
var options []stub.Option

func (r *recorder) note(event string, more line) {
	if more == nil {
		more = line{}
	}
	more["event"] = event
	bytes, err := json.Marshal(more)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.early = append(r.early, append(bytes, '\n'))
	if r.out == "" {
		return
	}
	file, err := os.OpenFile(r.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	for _, bytes := range r.early {
		_, _ = file.Write(bytes)
	}
	r.early = nil
}

func (r *recorder) configured(config, runtime, version string) {
	if config != "" {
		r.out = strings.TrimSpace(config)
	}
	environment := line{}
	for _, name := range []string{"NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX", "NRI_PLUGIN_SOCKET"} {
		environment[name] = os.Getenv(name)
	}
	r.note("Configure", line{
		"config": config, "runtime": runtime, "version": version, "environment": environment,
		"variables": len(os.Environ()), "arguments": len(os.Args),
	})
}

func (r *recorder) synchronized(pods []*api.PodSandbox, containers []*api.Container) {
	podNames, names := []string{}, []string{}
	for _, pod := range pods {
		podNames = append(podNames, pod.GetName())
	}
	for _, container := range containers {
		names = append(names, container.GetName())
		r.old = container.GetId()
	}
	r.note("Synchronize", line{"pods": podNames, "containers": names})
}

func (r *recorder) pod(event string, pod *api.PodSandbox) {
	r.note(event, line{"pod": pod.GetName()})
}

func (r *recorder) container(event string, pod *api.PodSandbox, container *api.Container) {
	r.note(event, line{
		"pod": pod.GetName(), "container": container.GetName(), "state": container.GetState().String(),
	})
}

func (r *recorder) create(pod *api.PodSandbox, container *api.Container) *api.ContainerAdjustment {
	r.container("CreateContainer", pod, container)
	if r.old != "" {
		r.ask(r.old)
	}
	return r.adjustment()
}

// update sets the CPU shares itself. In v0.2.0 the request does not contain the engine's values.
func (r *recorder) update(pod *api.PodSandbox, container *api.Container, wanted *api.LinuxResources) []*api.ContainerUpdate {
	r.note("UpdateContainer", line{
		"pod": pod.GetName(), "container": container.GetName(), "state": container.GetState().String(),
		"shares": wanted.GetCpu().GetShares().GetValue(),
	})
	update := &api.ContainerUpdate{}
	update.SetContainerId(container.GetId())
	update.SetLinuxCPUShares(512)
	return []*api.ContainerUpdate{update}
}

// ask requests an update while the runtime waits for the plugin's response.
func (r *recorder) ask(id string) {
	update := &api.ContainerUpdate{}
	update.SetContainerId(id)
	update.SetLinuxCPUShares(512)
	failed, err := r.stub.UpdateContainers([]*api.ContainerUpdate{update})
	said := ""
	if err != nil {
		said = err.Error()
	}
	ids := []string{}
	for _, update := range failed {
		ids = append(ids, update.GetContainerId())
	}
	r.note("UpdateContainers", line{"asked": id, "failed": ids, "error": said})
}

func run() error {
	socket := flag.String("socket", "", "where the runtime listens; empty: launched by the runtime")
	out := flag.String("out", "", "file for the events")
	set := flag.String("set", "all", "what to ask for: all, or real, which a kernel allows")
	flag.Parse()
	plugin := &recorder{out: *out, adjustment: adjustments[*set]}
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket),
			stub.WithPluginName("stub"), stub.WithPluginIdx("10"))
	}
	// Before v0.10, a stub without this handler exits when the connection closes.
	closed := make(chan struct{})
	options = append(options, stub.WithOnClose(func() {
		plugin.note("Closed", nil)
		close(closed)
	}))
	s, err := stub.New(plugin, options...)
	if err != nil {
		return err
	}
	plugin.stub = s
	if err := s.Start(context.Background()); err != nil {
		plugin.note("Failed", line{"error": err.Error()})
		return err
	}
	<-closed
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
