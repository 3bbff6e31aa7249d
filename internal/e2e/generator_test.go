package e2e

import (
	"context"
	bytesorder "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
)

// generatorVariable makes the test binary a foreign generator, or a bad wrapper of one.
const generatorVariable = "HAPAX_TEST_GENERATOR"

// A generator makes numbers as naive programs do: from the time that it reads, the
// worker ID that it was told, and a sequence that starts anew with each tick. It has no
// protection of its own, and writes each number down.
type generator struct {
	Dir    string        // gets a file of numbers
	Clock  string        // file with the offset of its clock
	For    time.Duration // how long it runs
	Nested bool          // it starts a process that makes the numbers
	Twin   *idOnly       // how the test binary wraps it; nil: it does not
}

// generatorTick is the unit of the generator's time: so long that each tick gets a
// number, and two with one worker ID cannot miss each other.
const generatorTick = 20 * time.Millisecond

func runGenerator(text string) error {
	var g generator
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return err
	}
	switch {
	case g.Twin != nil:
		return g.Twin.run(g)
	case g.Nested:
		g.Nested = false
		cmd, err := g.command()
		if err != nil {
			return err
		}
		return cmd.Run()
	}
	worker, err := strconv.ParseInt(os.Getenv("HAPAX_WORKER_ID"), 10, 64)
	if err != nil {
		return err
	}
	return g.generate(worker)
}

// command returns the test binary as the generator.
func (g generator) command() (*exec.Cmd, error) {
	env, err := g.env()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self())
	cmd.Env = append(os.Environ(), env)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd, nil
}

func (g generator) env() (string, error) {
	text, err := json.Marshal(g)
	return generatorVariable + "=" + string(text), err
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// generate makes a number in each tick.
func (g generator) generate(worker int64) error {
	f, err := os.CreateTemp(g.Dir, fmt.Sprintf("%d-*", worker))
	if err != nil {
		return err
	}
	defer f.Close()
	var last, sequence int64
	for over := time.Now().Add(g.For); time.Now().Before(over); {
		tick := g.now().UnixMilli() / generatorTick.Milliseconds()
		if sequence++; tick != last {
			last, sequence = tick, 0
		}
		number := tick<<20 | worker<<4 | sequence&15
		if _, err := f.Write(bytesorder.BigEndian.AppendUint64(nil, uint64(number))); err != nil {
			return err
		}
		patience.Slow(generatorTick)
	}
	return nil
}

func (g generator) now() time.Time {
	text, err := os.ReadFile(g.Clock)
	if err != nil {
		panic(err)
	}
	offset, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		panic(err)
	}
	return time.Now().Add(offset)
}

// numbersIn returns what all generators have written.
func numbersIn(dir string) (ids []hapax.ID, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*-*"))
	for _, path := range files {
		data, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		for ; len(data) >= 8; data = data[8:] {
			ids = append(ids, hapax.ID(bytesorder.BigEndian.Uint64(data)))
		}
	}
	return ids, err
}

// idOnly is a wrapper that keeps the worker ID and not the time: it takes one, extends
// the lease while the generator runs, and seals it at the end. It looks at no clock, and
// stops nobody.
type idOnly struct {
	Server string
	IDs    int64
	Grant  time.Duration
}

func (w idOnly) run(g generator) error {
	ctx := context.Background()
	c, err := sdk.Dial(ctx, sdk.Options{}, w.Server)
	if err != nil {
		return err
	}
	layout, err := c.PoolLayout(ctx, hapax.DefaultPool)
	if err != nil {
		return err
	}
	term := func() hapax.Term { return hapax.Term{Now: time.Now(), Length: w.Grant} }
	var lease hapax.Lease
	for {
		lease, err = c.AcquireWorker(ctx, hapax.AcquireRequest{
			Pool: hapax.DefaultPool, Layout: layout, Workers: hapax.WorkerRange{Hi: w.IDs}, Holder: fmt.Sprint("twin ", os.Getpid()), Term: term(),
		})
		if err == nil {
			break
		}
		if !hapax.IsTransient(err) {
			return err
		}
		patience.Slow(500 * time.Millisecond)
	}
	g.Twin = nil
	cmd, err := g.command()
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, fmt.Sprint("HAPAX_WORKER_ID=", lease.Worker))
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			last, tickErr := layout.TickOf(time.Now())
			if tickErr == nil {
				_ = c.SealWorker(ctx, lease, min(last+1, lease.Grant.Hi))
			}
			return errors.Join(err, tickErr)
		case <-time.After(w.Grant / 2):
			within, cancel := context.WithTimeout(ctx, w.Grant/2)
			if more, err := c.ExtendWorker(within, lease, layout, term()); err == nil {
				lease = more
			}
			cancel()
		}
	}
}
