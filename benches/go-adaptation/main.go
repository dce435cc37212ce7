// SPDX-License-Identifier: Apache-2.0

// go-adaptation is the other side of `make bench`: the adaptation of NRI v0.12.5 as engines in Go
// use it, driven line by line over stdin like `broker.rs` beside it. It reads one
// CreateContainerRequest from a file and sends it through its plugins over and over.
//
//	plugins N       waits until N plugins are synchronized     -> ok
//	run EVENTS AT   EVENTS creations, AT of them at any time   -> WALL-NS CPU-NS
//	state N         N containers are known from now on         -> ok
//	synchronized    how long the last plugin's took            -> NS
//	memory          its resident memory                        -> KIB
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/proto"
)

type silent struct{}

func (silent) Debugf(context.Context, string, ...interface{}) {}
func (silent) Infof(context.Context, string, ...interface{})  {}
func (silent) Warnf(context.Context, string, ...interface{})  {}
func (silent) Errorf(_ context.Context, format string, args ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func main() {
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(socket, requestFile string) error {
	bytes, err := os.ReadFile(requestFile)
	if err != nil {
		return err
	}
	request := &adaptation.CreateContainerRequest{}
	if err := proto.Unmarshal(bytes, request); err != nil {
		return err
	}
	log.Set(silent{})

	var synchronized, told atomic.Int64
	var known []*adaptation.Container
	sync := func(ctx context.Context, tell adaptation.SyncCB) error {
		begun := time.Now()
		_, err := tell(ctx, nil, known)
		// The first call, at the start, is for no plugin.
		if len(known) > 0 {
			told.Store(time.Since(begun).Nanoseconds())
		}
		if err == nil {
			synchronized.Add(1)
		}
		return err
	}
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	runtime, err := adaptation.New("bench", "v0", sync, update,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(socket+".none"),
		adaptation.WithPluginConfigPath(socket+".none"))
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var count, at int
		switch words := strings.Fields(lines.Text()); words[0] {
		case "plugins":
			fmt.Sscan(words[1], &count)
			for synchronized.Load() < int64(count) {
				time.Sleep(time.Millisecond)
			}
			// A plugin takes part a moment after it was synchronized.
			time.Sleep(100 * time.Millisecond)
			fmt.Println("ok")
		case "run":
			fmt.Sscan(words[1], &count)
			fmt.Sscan(words[2], &at)
			wall, cpu, err := run(runtime, request, count, at)
			if err != nil {
				return err
			}
			fmt.Println(wall, cpu)
		case "state":
			fmt.Sscan(words[1], &count)
			for number := range count {
				one := proto.Clone(request.Container).(*adaptation.Container)
				one.Id = fmt.Sprintf("%064d", number)
				known = append(known, one)
			}
			fmt.Println("ok")
		case "synchronized":
			for range 20_000 {
				if told.Load() != 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			fmt.Println(told.Load())
		}
	}
	if err := lines.Err(); err != nil && err != io.EOF {
		return err
	}
	return nil
}

func run(runtime *adaptation.Adaptation, request *adaptation.CreateContainerRequest, count, at int) (int64, int64, error) {
	// The adaptation changes what it is given. The copies are made before the clocks start.
	requests := make(chan *adaptation.CreateContainerRequest, count)
	for range count {
		requests <- proto.Clone(request).(*adaptation.CreateContainerRequest)
	}
	close(requests)

	failures := make(chan error, at)
	var working sync.WaitGroup
	cpu, begun := spent(), time.Now()
	for range at {
		working.Add(1)
		go func() {
			defer working.Done()
			for one := range requests {
				answer, err := runtime.CreateContainer(context.Background(), one)
				if err == nil && len(answer.GetAdjust().GetEnv()) == 0 {
					err = fmt.Errorf("no plugin has answered")
				}
				if err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	working.Wait()
	wall := time.Since(begun).Nanoseconds()
	cpu = spent() - cpu
	select {
	case err := <-failures:
		return 0, 0, err
	default:
		return wall, cpu, nil
	}
}

// spent is the processor time of this process so far, in nanoseconds.
func spent() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
