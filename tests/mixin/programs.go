// SPDX-License-Identifier: Apache-2.0

//go:build programs

// Package mixin names the programs that check the alert rules and draw the dashboard.
package mixin

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
