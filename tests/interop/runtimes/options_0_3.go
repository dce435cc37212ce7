// SPDX-License-Identifier: Apache-2.0

//go:build since_0_3

package main

import (
	"path/filepath"

	"github.com/containerd/nri/pkg/adaptation"
)

// options sets time-outs that are long enough for a busy machine.
func options(socket, plugins string) []adaptation.Option {
	adaptation.SetPluginRegistrationTimeout(patience)
	adaptation.SetPluginRequestTimeout(patience)
	return []adaptation.Option{
		adaptation.WithPluginConfigPath(filepath.Join(plugins, "conf.d")),
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(plugins),
	}
}
