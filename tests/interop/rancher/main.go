// SPDX-License-Identifier: Apache-2.0

// A stand-in for k3s and RKE2: at each start it renders containerd's configuration from its own base
// template, or from the operator's template, which may include the base, and then executes containerd.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"text/template"
)

// The data that k3s and RKE2 pass to a template, as far as this base and the tests use it.
type node struct {
	Program       string
	SystemdCgroup bool
	NodeConfig    struct {
		NoFlannel  bool
		Containerd struct{ Template string }
	}
}

func main() {
	if len(os.Args) != 6 {
		fail(fmt.Errorf("usage: rancher PROGRAM BASE FOLDER TEMPLATE CONTAINERD"))
	}
	program, base, folder := os.Args[1], os.Args[2], os.Args[3]
	name, containerd := os.Args[4], os.Args[5]
	text, err := os.ReadFile(base)
	if err != nil {
		fail(err)
	}
	main := filepath.Join(folder, "config.toml")
	owners, err := os.ReadFile(filepath.Join(folder, name))
	if os.IsNotExist(err) {
		owners, err = []byte(`{{ template "base" . }}`), nil
	}
	if err != nil {
		fail(err)
	}
	rendered, err := render(program, folder, string(text), string(owners))
	if err != nil {
		fail(err)
	}
	if err := os.WriteFile(main, rendered, 0o600); err != nil {
		fail(err)
	}
	arguments := []string{"containerd", "-c", main}
	fail(syscall.Exec(containerd, arguments, os.Environ()))
}

func render(program, folder, base, owners string) ([]byte, error) {
	all, err := template.New("owners").Parse(owners)
	if err != nil {
		return nil, err
	}
	if _, err := all.New("base").Parse(base); err != nil {
		return nil, err
	}
	given := node{Program: program}
	given.NodeConfig.Containerd.Template = folder
	var rendered bytes.Buffer
	err = all.Execute(&rendered, given)
	return rendered.Bytes(), err
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "rancher:", err)
	os.Exit(1)
}
