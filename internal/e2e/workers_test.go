package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/testservers"
)

// memberVariable makes the test binary a member instead of running tests.
const memberVariable = "HAPAX_TEST_MEMBER"

// A member is a process that issues from a worker of its own, as an application
// with the embedded library does. It prints "WORKER ID" for each number, and
// gives its worker back when its standard input ends.
type member struct {
	Store, Pool  string
	Data         string // its data directory
	Workers      int64
	Grant, Lease time.Duration
}

// runMember runs a member until its end.
func runMember(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	config := server.DefaultConfig()
	config.Store, config.StoreTimeout, config.Data, config.Ledger = m.Store, patience.Long/2, m.Data, "off"
	node, err := server.OpenNode(ctx, config, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	patient, done := context.WithTimeout(ctx, patience.Long)
	defer done()
	issuer, err := hapax.NewSnowflake(patient, node.Store, hapax.SnowflakeOptions{
		Pool: m.Pool, Workers: hapax.WorkerRange{Lo: 0, Hi: m.Workers}, Holder: node.Instance,
		Grant: m.Grant, MaxGrant: m.Grant, Lease: m.Lease, StoreTimeout: config.StoreTimeout,
	})
	if err != nil {
		return errors.Join(err, node.Close())
	}
	err = m.issue(ctx, issuer)
	return errors.Join(err, issuer.Close(context.Background()), node.Close())
}

// issue prints numbers until the context ends.
func (m member) issue(ctx context.Context, issuer *hapax.Snowflake) error {
	layout, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		return err
	}
	ids := make([]hapax.ID, 20)
	for {
		n, err := issuer.NextN(ctx, ids)
		var text []byte
		for _, id := range ids[:n] {
			fields, err := layout.Parse(id)
			if err != nil {
				return err
			}
			worker, _ := fields.Get("worker") // the layout has it
			text = fmt.Appendf(text, "%d %d\n", worker, id)
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // NextN fails because it is told to end
		case err != nil:
			return err
		}
		patience.Slow(50 * time.Millisecond) // a program has other things to do
	}
}

// A running is a member's process.
type running struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr strings.Builder
	reader sync.WaitGroup
	worker atomic.Int64 // of the last number; -1 before the first
	ended  atomic.Bool  // it prints no more
	ids    []hapax.ID   // to be read after reader
}

func (m member) start(t *testing.T) *running {
	t.Helper()
	m.Data = t.TempDir()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: exec.Command(self)}
	r.cmd.Env = append(os.Environ(), memberVariable+"="+string(text), "GOMAXPROCS=1")
	r.cmd.Stderr = &r.stderr
	r.worker.Store(-1)
	stdout, err := r.cmd.StdoutPipe()
	if err == nil {
		r.stdin, err = r.cmd.StdinPipe()
	}
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			_ = r.cmd.Process.Kill()
			_ = r.end(t, true)
		}
	})
	r.reader.Go(func() {
		r.read(bufio.NewReader(stdout))
		r.ended.Store(true)
	})
	return r
}

// read collects what the member prints. A last line that was cut off does not
// count: nobody has received its number.
func (r *running) read(lines *bufio.Reader) {
	for {
		text, err := lines.ReadString('\n')
		var worker, id int64
		if err != nil {
			return
		}
		if _, err := fmt.Sscan(text, &worker, &id); err != nil {
			return
		}
		r.ids = append(r.ids, hapax.ID(id))
		r.worker.Store(worker)
	}
}

// end waits until the member has ended and returns what it took.
func (r *running) end(t *testing.T, killed bool) []hapax.ID {
	r.reader.Wait()
	if err := r.cmd.Wait(); err != nil && !killed {
		t.Errorf("a member failed: %v: %s", err, &r.stderr)
	}
	return r.ids
}

// A fleet is members that run at the same time.
type fleet []*running

// startFleet starts so many members at once, and waits until each of them
// issues, under worker IDs that are all different.
func startFleet(t *testing.T, m member, size int) fleet {
	t.Helper()
	began := time.Now()
	var f fleet
	for range size {
		f = append(f, m.start(t))
	}
	// Members stall while so many start on few processors. One that stalls longer
	// than grant and lease rightly loses its worker and takes another one.
	patience.Until(t, fmt.Sprintf("%d members with workers of their own", size), func() bool {
		workers := map[int64]bool{}
		for _, r := range f {
			if w := r.worker.Load(); w >= 0 {
				workers[w] = true
			}
			if r.ended.Load() {
				r.end(t, false)
				t.Fatal("a member ended by itself")
			}
		}
		return len(workers) == size
	})
	t.Logf("%d members issue after %v", size, time.Since(began).Round(time.Millisecond))
	return f
}

// kill ends all members as a power loss does, and returns what they took.
func (f fleet) kill(t *testing.T) (ids []hapax.ID) {
	t.Helper()
	for _, r := range f {
		if err := r.cmd.Process.Kill(); err != nil {
			t.Errorf("a member has ended by itself: %s", &r.stderr)
		}
	}
	for _, r := range f {
		ids = append(ids, r.end(t, true)...)
	}
	return ids
}

// stop has all members give their workers back, and returns what they took.
func (f fleet) stop(t *testing.T) (ids []hapax.ID) {
	t.Helper()
	for _, r := range f {
		if err := r.stdin.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range f {
		ids = append(ids, r.end(t, false)...)
	}
	return ids
}

// testWorkers: two processes on a pool that is hardly larger are killed, and start again
// while what they held is not free yet. Each has a worker of its own, no number comes
// twice, and in the end the whole pool is of use.
func testWorkers(t *testing.T, store *testservers.Server) {
	startAndKill(t, member{Store: store.URL, Pool: unusedName("fleet"), Workers: 3, Grant: 2 * time.Second, Lease: 2 * time.Second}, 2, 1)
}

// testCrowdOfWorkers: the same with two hundred, ten times. Their grants are long enough for
// the whole pool to be extended in time by a slow store.
func testCrowdOfWorkers(t *testing.T, store *testservers.Server) {
	startAndKill(t, member{Store: store.URL, Pool: unusedName("fleet"), Workers: 256, Grant: 5 * time.Second, Lease: 5 * time.Second}, 200, 10)
}

func startAndKill(t *testing.T, m member, size, restarts int) {
	t.Helper()
	f := startFleet(t, m, size)
	var ids []hapax.ID
	for range restarts {
		ids = append(ids, f.kill(t)...)
		f = startFleet(t, m, size)
	}
	ids = append(ids, f.stop(t)...)
	f = startFleet(t, m, int(m.Workers))
	ids = append(ids, f.kill(t)...)
	distinct(t, m.Pool, ids)
}
