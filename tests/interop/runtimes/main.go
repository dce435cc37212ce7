// SPDX-License-Identifier: Apache-2.0

// runtimes is a runtime built on the adaptation of many NRI versions: the test selects one in go.mod, and build tags
// (since_0_3 and so on) its features. It runs no containers: it accepts one plugin, sends the events of a pod with a
// container from creation to removal, and prints the plugin's responses as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
)

// patience is the time limit of each step.
const patience = 120 * time.Second

type line struct {
	// The variables that the plugin set, in the first and in the last container.
	Env  []string `json:"env"`
	Last []string `json:"last"`
	// The CPU shares of the response to UpdateContainer.
	Shares uint64 `json:"shares"`
	// The containers of unsolicited updates.
	Unasked []string `json:"unasked"`
	Errors  []string `json:"errors"`
}

type runtime struct {
	*adaptation.Adaptation
	line    line
	unasked chan string
}

func (r *runtime) failed(what string, err error) {
	if err != nil {
		r.line.Errors = append(r.line.Errors, fmt.Sprintf("%s: %v", what, err))
	}
}

func pod() *adaptation.PodSandbox {
	return &adaptation.PodSandbox{Id: "p", Name: "p", Uid: "u", Namespace: "shop"}
}

func container(name string) *adaptation.Container {
	return &adaptation.Container{Id: name, PodSandboxId: "p", Name: name, Linux: &adaptation.LinuxContainer{}}
}

// create returns the variables of the adjustment.
func (r *runtime) create(name string) ([]string, error) {
	request := &adaptation.CreateContainerRequest{Pod: pod(), Container: container(name)}
	reply, err := r.CreateContainer(context.Background(), request)
	if err != nil {
		return nil, err
	}
	var env []string
	for _, variable := range reply.GetAdjust().GetEnv() {
		env = append(env, variable.GetKey()+"="+variable.GetValue())
	}
	return env, nil
}

// await creates containers until the plugin adjusts one: no version reports when a plugin is synchronized.
func (r *runtime) await() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		env, err := r.create("probe")
		if err != nil {
			return err
		}
		if len(env) > 0 {
			return nil
		}
	}
	return errors.New("no plugin adjusts anything")
}

// live sends the events of a pod and a container from creation to removal.
func (r *runtime) live() {
	ctx := context.Background()
	var err error
	r.failed("RunPodSandbox", r.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: pod()}))
	r.resize()
	r.line.Env, err = r.create("c")
	r.failed("CreateContainer", err)
	c := container("c")
	r.failed("PostCreateContainer", r.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: pod(), Container: c}))
	r.failed("StartContainer", r.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: pod(), Container: c}))
	r.failed("PostStartContainer", r.PostStartContainer(ctx, &adaptation.PostStartContainerRequest{Pod: pod(), Container: c}))
	updated, err := r.UpdateContainer(ctx, &adaptation.UpdateContainerRequest{
		Pod: pod(), Container: c,
		LinuxResources: &adaptation.LinuxResources{Cpu: &adaptation.LinuxCPU{Shares: adaptation.UInt64(uint64(1024))}},
	})
	r.failed("UpdateContainer", err)
	for _, update := range updated.GetUpdate() {
		if update.GetContainerId() == "c" {
			r.line.Shares = update.GetLinux().GetResources().GetCpu().GetShares().GetValue()
		}
	}
	r.failed("PostUpdateContainer", r.PostUpdateContainer(ctx, &adaptation.PostUpdateContainerRequest{Pod: pod(), Container: c}))
	_, err = r.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: pod(), Container: c})
	r.failed("StopContainer", err)
	r.failed("RemoveContainer", r.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: pod(), Container: c}))
	r.failed("StopPodSandbox", r.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: pod()}))
	r.failed("RemovePodSandbox", r.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: pod()}))
}

func run(name, version string, wantsUnasked, isLaunched bool, opts []adaptation.Option) line {
	r := &runtime{unasked: make(chan string, 16)}
	synchronize := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, []*adaptation.PodSandbox{pod()}, []*adaptation.Container{container("old")})
		return err
	}
	update := func(_ context.Context, updates []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		for _, update := range updates {
			r.unasked <- update.GetContainerId()
		}
		return nil, nil
	}
	var err error
	if r.Adaptation, err = adaptation.New(name, version, synchronize, update, opts...); err == nil {
		err = r.Start()
	}
	if err == nil && !isLaunched {
		err = r.await()
	}
	r.failed("starting", err)
	if err != nil {
		return r.line
	}
	r.live()
	if wantsUnasked {
		select {
		case id := <-r.unasked:
			r.line.Unasked = append(r.line.Unasked, id)
		case <-time.After(patience):
			r.failed("UpdateContainers", errors.New("none came"))
		}
	}
	r.line.Last, err = r.create("last")
	r.failed("the last CreateContainer", err)
	r.Stop()
	return r.line
}

func main() {
	socket := flag.String("socket", "", "where to listen for plugins")
	plugins := flag.String("plugins", "", "folder of the plugins to launch")
	name := flag.String("name", "", "what the runtime calls itself")
	version := flag.String("version", "", "what version it says")
	unasked := flag.Bool("unasked", false, "wait for an update that nobody asked for")
	launched := flag.Bool("launched", false, "the plugin is one of the folder, and adjusts nothing")
	flag.Parse()
	text, err := json.Marshal(run(*name, *version, *unasked, *launched, options(*socket, *plugins)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}
