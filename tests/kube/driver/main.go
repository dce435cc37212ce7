// SPDX-License-Identifier: Apache-2.0

// A small DRA driver for the row `claims` of `make kube`: main NAME NODE KUBECONFIG [devices].
//
// It registers with kubelet and publishes its devices with the library that other drivers use. With `devices`, each
// prepared claim gets its own CDI device with the variable CLAIM, and a device plugin offers the extended resource
// NAME/unit. Without it, a prepared claim has no device, as with drivers that configure pods through NRI.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Maximum number of claims at the same time.
const devices = 8

type driver struct {
	name         string
	givesDevices bool
}

func (d *driver) cdiFile(claim types.UID) string {
	return filepath.Join("/var/run/cdi", fmt.Sprintf("%s-%s.json", d.name, claim))
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	if !d.givesDevices {
		return
	}
	edits := map[string]any{"env": []string{"CLAIM=" + d.name}}
	spec, err := json.Marshal(map[string]any{
		"cdiVersion": "0.6.0",
		"kind":       d.name + "/claim",
		"devices":    []any{map[string]any{"name": claim.UID, "containerEdits": edits}},
	})
	if err == nil {
		// Renamed last, so that the engine never reads an incomplete file.
		part := d.cdiFile(claim.UID) + ".part"
		if err = os.WriteFile(part, spec, 0o644); err == nil {
			err = os.Rename(part, d.cdiFile(claim.UID))
		}
	}
	if err != nil {
		result.Err = err
		return
	}
	for _, allocated := range claim.Status.Allocation.Devices.Results {
		if allocated.Driver == d.name {
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests:     []string{allocated.Request},
				PoolName:     allocated.Pool,
				DeviceName:   allocated.Device,
				CDIDeviceIDs: []string{fmt.Sprintf("%s/claim=%s", d.name, claim.UID)},
			})
		}
	}
	return
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.cdiFile(claim.UID))
		if os.IsNotExist(err) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
}

func run() error {
	if len(os.Args) < 4 {
		return fmt.Errorf("usage: %s NAME NODE KUBECONFIG [devices]", os.Args[0])
	}
	d := &driver{name: os.Args[1], givesDevices: len(os.Args) > 4}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[3])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, folder := range []string{"/var/run/cdi", filepath.Join("/var/lib/kubelet/plugins", d.name)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.name),
		kubeletplugin.KubeClient(client), kubeletplugin.NodeName(os.Args[2]))
	if err != nil {
		return err
	}
	defer helper.Stop()
	if d.givesDevices {
		if err := offerUnits(d.name); err != nil {
			return err
		}
	}
	var slice resourceslice.Slice
	for number := range devices {
		slice.Devices = append(slice.Devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", number)})
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{os.Args[2]: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
