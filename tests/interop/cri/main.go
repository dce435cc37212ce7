// SPDX-License-Identifier: Apache-2.0

// A CRI client like kubelet and kubectl: it sends an engine the requests that operators make for a
// running container, and uses the CRI's streams. It prints the responses for the test to check.
//
//	cri SOCKET execsync ID WORD...     stdout, stderr and exit code, as JSON
//	cri SOCKET exec ID WORD...         with its own stdin; "exit N" on stderr at the end
//	cri SOCKET tty ID WORD...          the same on a terminal of 40 columns
//	cri SOCKET attach ID WORD          sends its stdin, prints until the container has printed WORD
//	cri SOCKET forward POD PORT        sends its stdin to that port of the pod, prints the response
//	cri SOCKET stats ID                ContainerStats, as JSON
//	cri SOCKET reopen ID               ReopenContainerLog
//	cri SOCKET stop POD                StopPodSandbox
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Time limit of a whole request.
const patience = 60 * time.Second

type client struct {
	cri.RuntimeServiceClient
	ctx context.Context
}

func main() {
	if len(os.Args) < 4 {
		fail(errors.New("usage: cri SOCKET VERB ID [WORD...]"))
	}
	socket, verb, id, words := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fail(err)
	}
	c := client{cri.NewRuntimeServiceClient(conn), ctx}
	verbs := map[string]func(string, []string) error{
		"execsync": c.execSync,
		"exec":     func(id string, words []string) error { return c.exec(id, words, false) },
		"tty":      func(id string, words []string) error { return c.exec(id, words, true) },
		"attach":   c.attach,
		"forward":  c.forward,
		"stats":    c.stats,
		"reopen":   c.reopen,
		"stop":     c.stop,
	}
	run, known := verbs[verb]
	if !known {
		fail(fmt.Errorf("unknown verb %s", verb))
	}
	if err := run(id, words); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (c client) execSync(id string, words []string) error {
	got, err := c.ExecSync(c.ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: words, Timeout: 20})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"stdout": string(got.Stdout), "stderr": string(got.Stderr), "code": got.ExitCode,
	})
}

func (c client) exec(id string, words []string, tty bool) error {
	got, err := c.Exec(c.ctx, &cri.ExecRequest{
		ContainerId: id, Cmd: words, Stdin: true, Stdout: true, Stderr: !tty, Tty: tty,
	})
	if err != nil {
		return err
	}
	err = c.stream(got.Url, tty)
	var status exec.ExitError
	if err != nil && !errors.As(err, &status) {
		return err
	}
	code := 0
	if status != nil {
		code = status.ExitStatus()
	}
	fmt.Fprintf(os.Stderr, "exit %d\n", code)
	return nil
}

func (c client) attach(id string, words []string) error {
	got, err := c.Attach(c.ctx, &cri.AttachRequest{
		ContainerId: id, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	until := &listener{word: words[0], heard: cancel}
	// containerd detaches at the end of the input.
	in := io.MultiReader(os.Stdin, open{ctx})
	err = client{c.RuntimeServiceClient, ctx}.streamTo(got.Url, in, until, false)
	if until.isDone && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Prints its input, and calls heard once the input has contained the word.
type listener struct {
	word   string
	text   string
	heard  func()
	isDone bool
}

func (l *listener) Write(bytes []byte) (int, error) {
	l.text += string(bytes)
	if !l.isDone && strings.Contains(l.text, l.word) {
		l.isDone = true
		l.heard()
	}
	return os.Stdout.Write(bytes)
}

// An input without data that never ends.
type open struct{ ctx context.Context }

func (o open) Read([]byte) (int, error) {
	<-o.ctx.Done()
	return 0, io.EOF
}

// Reports one terminal size, then the end.
type size struct{ told bool }

func (s *size) Next() *remotecommand.TerminalSize {
	if s.told {
		return nil
	}
	s.told = true
	return &remotecommand.TerminalSize{Width: 40, Height: 10}
}

func (c client) stream(address string, tty bool) error {
	var in io.Reader = os.Stdin
	if tty {
		// A terminal stays open while a program runs on it.
		in = io.MultiReader(in, open{c.ctx})
	}
	return c.streamTo(address, in, os.Stdout, tty)
}

func (c client) streamTo(address string, in io.Reader, out io.Writer, tty bool) error {
	at, err := url.Parse(address)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", at)
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: tty}
	if tty {
		options.TerminalSizeQueue = &size{}
	} else {
		options.Stderr = os.Stderr
	}
	return executor.StreamWithContext(c.ctx, options)
}

func (c client) forward(id string, words []string) error {
	port, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	got, err := c.PortForward(c.ctx, &cri.PortForwardRequest{PodSandboxId: id, Port: []int32{int32(port)}})
	if err != nil {
		return err
	}
	at, err := url.Parse(got.Url)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at)
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(
		dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, os.Stderr,
	)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return err
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local), patience)
	if err != nil {
		return err
	}
	defer close(stop)
	if _, err := io.Copy(conn, os.Stdin); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, conn)
	return err
}

func (c client) stats(id string, _ []string) error {
	got, err := c.ContainerStats(c.ctx, &cri.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"id":     got.Stats.GetAttributes().GetId(),
		"name":   got.Stats.GetAttributes().GetMetadata().GetName(),
		"cpu":    got.Stats.GetCpu().GetUsageCoreNanoSeconds().GetValue(),
		"memory": got.Stats.GetMemory().GetWorkingSetBytes().GetValue(),
	})
}

func (c client) reopen(id string, _ []string) error {
	_, err := c.ReopenContainerLog(c.ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
	return err
}

func (c client) stop(id string, _ []string) error {
	_, err := c.StopPodSandbox(c.ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	return err
}
