// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A device plugin for kubelet whose devices add nothing to a container.
type units struct {
	api.DevicePluginServer
}

func (units) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (units) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	var all api.ListAndWatchResponse
	for number := range devices {
		all.Devices = append(all.Devices, &api.Device{ID: fmt.Sprint(number), Health: api.Healthy})
	}
	if err := stream.Send(&all); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (units) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	var answer api.AllocateResponse
	for range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return &answer, nil
}

// Serves the devices and registers with kubelet, but not again after a restart of kubelet.
func offerUnits(name string) error {
	socket := name + ".sock"
	listener, err := net.Listen("unix", api.DevicePluginPath+socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, units{})
	go func() { _ = server.Serve(listener) }()
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(context.Background(), &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: name + "/unit",
	})
	return err
}
