package storetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
)

var processChecks = []check{
	{"processes/segments at the same time", sharedTags, func(e *env) { checkProcesses(e, "segments") }},
	{"processes/workers at the same time", manyProcesses, func(e *env) { checkProcesses(e, "workers") }},
	{"processes/segments and kill", durableTags, func(e *env) { checkKill(e, "segments") }},
	{"processes/workers and kill", durable, func(e *env) { checkKill(e, "workers") }},
}

// jobVariable is the environment variable that makes the test binary do a job
// instead of running tests.
const jobVariable = "HAPAX_STORETEST_JOB"

// A job is what a child process does: it takes grants and prints each one as
// "line lo hi" once it is acknowledged.
type job struct {
	URL    string
	Kind   string // "segments" or "workers"
	Name   string // of the tag or pool
	Rounds int    // grants to take
}

// opens is the function given to Main; nil if Main was not called.
var opens func(ctx context.Context, url string) (Handle, error)

// Main is to be called by the driver's TestMain. In the processes that the
// suite starts it opens the store by its URL and does what it is told to; else
// it runs the tests. It does not return.
func Main(m *testing.M, open func(ctx context.Context, url string) (Handle, error)) {
	opens = open
	text, child := os.LookupEnv(jobVariable)
	if !child {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
	defer cancel()
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (j job) run(ctx context.Context, out io.Writer) error {
	h, err := opens(ctx, j.URL)
	if err != nil {
		return err
	}
	if j.Kind == "workers" {
		err = j.takeWorkers(ctx, h.(hapax.WorkerStore), out)
	} else {
		err = j.takeSegments(ctx, h.(hapax.SegmentStore), out)
	}
	return errors.Join(err, h.Close())
}

func (j job) takeSegments(ctx context.Context, s hapax.SegmentStore, out io.Writer) error {
	for range j.Rounds {
		a, err := s.Allocate(ctx, j.Name, 1+rand.Int64N(10), "")
		if err != nil {
			return err
		}
		fmt.Fprintln(out, 0, a.Grant.Lo, a.Grant.Hi)
	}
	return nil
}

// takeWorkers takes short grants of workers that anybody may take over at once.
func (j job) takeWorkers(ctx context.Context, s hapax.WorkerStore, out io.Writer) error {
	term := hapax.Term{Now: now, Ahead: 24 * time.Hour}
	req := hapax.AcquireRequest{
		Pool: j.Name, Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: fmt.Sprint("process ", os.Getpid()), Term: term,
	}
	var lease hapax.Lease
	for range j.Rounds {
		var err error
		if lease.Token == 0 || rand.IntN(4) == 0 {
			lease, err = s.AcquireWorker(ctx, req)
		} else if lease, err = s.ExtendWorker(ctx, lease, layout, term); errors.Is(err, hapax.ErrLeaseLost) {
			lease, err = s.AcquireWorker(ctx, req)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(out, lease.Worker, lease.Grant.Lo, lease.Grant.Hi)
	}
	return nil
}

// start starts a process that does the job.
func (j job) start(ctx context.Context) (*exec.Cmd, *bufio.Reader, *strings.Builder, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	return cmd, bufio.NewReader(stdout), &stderr, cmd.Start()
}

// grants are what processes printed, by line.
type grants map[int64][]hapax.Grant

// read adds up to n printed grants and tells how many there were. A last line
// that was cut off does not count.
func (g grants) read(r *bufio.Reader, n int) int {
	for i := range n {
		text, err := r.ReadString('\n')
		if err != nil {
			return i
		}
		var line, lo, hi int64
		if _, err := fmt.Sscan(text, &line, &lo, &hi); err != nil {
			return i
		}
		g[line] = append(g[line], hapax.Grant{Lo: lo, Hi: hi})
	}
	return n
}

// prepareJob returns a job on a new tag or pool.
func prepareJob(e *env, kind string, rounds int) job {
	e.Helper()
	if opens == nil {
		e.Fatal("storetest.Main was not called; call it in TestMain")
	}
	if kind == "segments" {
		e.segment("t", 10)
		return job{e.h.URL, kind, e.name("t"), rounds}
	}
	return job{e.h.URL, kind, e.name("pool"), rounds}
}

// checkProcesses: what processes take at the same time is disjoint and, since
// nothing fails, without gaps.
func checkProcesses(e *env, kind string) {
	const processes, rounds = 6, 8
	j := prepareJob(e, kind, rounds)
	all := grants{}
	var mu sync.Mutex // guards all
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd, out, stderr, err := j.start(e.ctx)
			if err != nil {
				e.Errorf("a process did not start: %v", err)
				return
			}
			mine := grants{}
			n := mine.read(out, rounds)
			if err := cmd.Wait(); err != nil || n != rounds {
				e.Errorf("a process took %d grants of %d: %v: %s", n, rounds, err, stderr)
			}
			mu.Lock()
			defer mu.Unlock()
			for line, g := range mine {
				all[line] = append(all[line], g...)
			}
		})
	}
	wg.Wait()
	for line, g := range all {
		e.disjoint(fmt.Sprintf("%s line %d", kind, line), g, true)
	}
}

// checkKill: what a process was granted before it was killed is not granted
// again.
func checkKill(e *env, kind string) {
	j := prepareJob(e, kind, math.MaxInt32)
	e.must(e.handle.Close())
	all := grants{}
	for range 5 {
		cmd, out, stderr, err := j.start(e.ctx)
		e.must(err)
		want := 3 + rand.IntN(10)
		n := all.read(out, want)
		e.must(cmd.Process.Kill())
		all.read(out, math.MaxInt32)
		cmd.Wait() // the error tells that it was killed
		if n < want {
			e.Fatalf("a process took only %d grants: %s", n, stderr)
		}
	}
	for line, g := range all {
		e.disjoint(fmt.Sprintf("%s line %d", kind, line), g, false)
	}
	e.roles = e.open()
	if kind == "segments" {
		last := all[0][len(all[0])-1]
		if mark := e.tag(j.Name).Mark; mark < last.Hi {
			e.Errorf("the mark is %d; %d was granted", mark, last.Hi)
		}
	}
}
