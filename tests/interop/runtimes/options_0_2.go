// SPDX-License-Identifier: Apache-2.0

//go:build !since_0_3

package main

import (
	"path/filepath"

	"github.com/containerd/nri/pkg/adaptation"
)

// options: the configuration of plugins is beside this file, in conf.d.
func options(socket, plugins string) []adaptation.Option {
	return []adaptation.Option{
		adaptation.WithConfig(adaptation.DefaultConfig(filepath.Join(plugins, "none.conf"))),
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(plugins),
	}
}
