package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// What makes a crowd of wrapped generators.
const (
	crowdSlots = 64
	crowdIDs   = 16
	crowdHosts = 8
	crowdGrant = 4 * time.Second
	crowdFroze = 6 * time.Second  // longer than a grant
	crowdHeals = 10 * time.Second // until a wrapper that was hurt can be hurt again
)

// Sixty-four processes of a naive generator on sixteen worker IDs make no number twice,
// while supervisors, watchdogs and generators are killed and frozen, servers and their
// store go away and come back, and clocks are set between holders: each of these so many
// times.
func TestWrappedGeneratorsSoak(t *testing.T) {
	patience.Soak(t, "a crowd, hurt at random moments")
	const rounds = 30
	c := newCrowd(t, false)
	c.run(func() bool { return len(c.unseen(rounds)) == 0 })
	ids, err := numbersIn(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d numbers; statuses %v; troubles %v", len(ids), c.statuses, c.troubles)
	distinct(t, "wrapped generators", ids)
}

// unseen returns what has not happened so many times to the crowd yet, of the troubles and
// of the ways in which a wrapper ends.
func (c *crowd) unseen(times int) (what []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, trouble := range append(slices.Clone(crowdTroubles), "store", "clock") {
		if c.troubles[trouble] < times {
			what = append(what, trouble)
		}
	}
	for _, status := range []int{0, 114, 137} { // by themselves, stopped in time, killed
		if c.statuses[status] < times {
			what = append(what, fmt.Sprint("status ", status))
		}
	}
	return what
}

// The same finds a wrapper that keeps the worker ID and not the time.
func TestWrappersThatKeepOnlyTheIDSoak(t *testing.T) {
	patience.Soak(t, "a crowd, hurt at random moments")
	c := newCrowd(t, true)
	c.run(func() bool {
		ids, err := numbersIn(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return len(slices.Compact(slices.Clone(ids))) < len(ids)
	})
	t.Logf("a number came twice; troubles %v", c.troubles)
}

// A crowd is many wrapped generators on few worker IDs, on hosts with clocks of their own.
type crowd struct {
	t     *testing.T
	dir   string
	url   string
	twin  bool
	hosts []*crowdHost
	slots []*crowdSlot
	wg    sync.WaitGroup

	server  *serving // used by takeStoreAway
	restart func() *serving

	mu       sync.Mutex // guards the fields below
	over     bool
	statuses map[int]int
	troubles map[string]int
}

// A crowdHost is a clock, which is set while nothing runs by it.
type crowdHost struct {
	clock string
	idle  sync.RWMutex // read-locked by every wrapper that runs
}

// A crowdSlot runs one wrapper after the other.
type crowdSlot struct {
	host *crowdHost

	mu    sync.Mutex // guards the fields below
	pid   int        // 0: none runs
	whole time.Time  // when it can be hurt again
}

func newCrowd(t *testing.T, twin bool) *crowd {
	c := &crowd{t: t, dir: t.TempDir(), twin: twin, statuses: map[int]int{}, troubles: map[string]int{}}
	data := t.TempDir()
	args := []string{"--pools", fmt.Sprintf("{default: {grant: %v, max_grant: %v, lease: 1s}}", crowdGrant, crowdGrant)}
	c.server = serve(t, data, nil, args...)
	c.url = c.server.url
	u, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	restart := append(slices.Clip(args), "--http", u.Host)
	c.restart = func() *serving { return serve(t, data, nil, restart...) }
	clocks := t.TempDir()
	for i := range crowdHosts {
		h := &crowdHost{clock: filepath.Join(clocks, fmt.Sprint("clock", i))}
		c.set(h)
		c.hosts = append(c.hosts, h)
	}
	for i := range crowdSlots {
		c.slots = append(c.slots, &crowdSlot{host: c.hosts[i%crowdHosts]})
	}
	return c
}

// set moves a host's clock, by as much as servers allow.
func (c *crowd) set(h *crowdHost) {
	offset := time.Duration(rand.Int64N(int64(1800*time.Millisecond))) - 900*time.Millisecond
	if err := os.WriteFile(h.clock+".new", []byte(offset.String()), 0o600); err != nil {
		c.t.Error(err)
	}
	if err := os.Rename(h.clock+".new", h.clock); err != nil {
		c.t.Error(err)
	}
}

func (c *crowd) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// run lets everything go until it is enough.
func (c *crowd) run(enough func() bool) {
	for _, s := range c.slots {
		c.wg.Go(func() {
			for !c.isOver() {
				c.wrap(s)
			}
		})
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var troubles sync.WaitGroup
	troubles.Go(func() { c.hurt(ctx) })
	troubles.Go(func() { c.setClocks(ctx) })
	troubles.Go(func() { c.takeStoreAway(ctx) })
	late := patience.Try("enough trouble", enough)
	cancel()
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	troubles.Wait()
	ended := make(chan struct{})
	go func() { c.wg.Wait(); close(ended) }()
	for {
		for _, s := range c.slots {
			s.signal(syscall.SIGCONT)
			s.signal(syscall.SIGTERM)
		}
		select {
		case <-ended:
			c.awaitNobody("")
			if late != nil {
				c.t.Errorf("%v; these have not happened often enough: %v; statuses %v, troubles %v", late, c.unseen(1), c.statuses, c.troubles)
			}
			return
		case <-time.After(time.Second):
		}
	}
}

func (s *crowdSlot) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		_ = syscall.Kill(s.pid, sig)
	}
}

// wrap runs one wrapper to its end.
func (c *crowd) wrap(s *crowdSlot) {
	s.host.idle.RLock()
	defer s.host.idle.RUnlock()
	g := generator{Dir: c.dir, Clock: s.host.clock, For: time.Second + rand.N(7*time.Second), Nested: rand.IntN(2) == 0}
	if c.twin {
		g.Twin = &idOnly{Server: c.url, IDs: crowdIDs, Grant: crowdGrant}
	}
	cmd := wrappedGenerator(g, c.url, fmt.Sprintf("0-%d", crowdIDs-1), "20s")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second // orphans may have it open
	s.mu.Lock()
	err := cmd.Start()
	if err == nil {
		s.pid = cmd.Process.Pid
	}
	s.mu.Unlock()
	if err != nil {
		c.t.Error(err)
		return
	}
	_ = cmd.Wait() // the status is in ProcessState
	s.mu.Lock()
	s.pid = 0
	s.mu.Unlock()
	status := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		status = 128 + int(ws.Signal())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses[status]++
	// A watchdog that is killed or frozen while it starts keeps the command from starting.
	hurt := strings.Contains(stderr.String(), "watchdog")
	if status == 125 && !hurt || strings.Contains(stderr.String(), "panic") {
		c.t.Errorf("a wrapper ended with %d: %s", status, stderr.String())
	}
}

// hurt kills and freezes processes. It hurts either the supervisor or the watchdog of a
// wrapper at a time: both together are what nobody can stand.
func (c *crowd) hurt(ctx context.Context) {
	var frozen sync.WaitGroup
	defer frozen.Wait()
	for n := 0; ctx.Err() == nil; patience.Slow(100 * time.Millisecond) {
		all := eachProcess()
		for _, i := range rand.Perm(len(c.slots)) {
			kind := crowdTroubles[n%len(crowdTroubles)]
			if who := c.victim(all, c.slots[i], kind); who != 0 {
				c.note(kind)
				if strings.HasPrefix(kind, "kill") {
					_ = syscall.Kill(who, syscall.SIGKILL)
				} else {
					_ = syscall.Kill(who, syscall.SIGSTOP)
					frozen.Go(func() {
						patience.Slow(crowdFroze)
						_ = syscall.Kill(who, syscall.SIGCONT)
					})
				}
				n++
				break
			}
		}
	}
}

// crowdTroubles are what happens to processes, in turn.
var crowdTroubles = []string{"kill supervisor", "stop command", "kill watchdog", "stop supervisor", "kill command", "stop watchdog"}

// victim returns the process of a wrapper that some trouble is for; 0 where it waits for
// a worker ID, or is not over an earlier one.
func (c *crowd) victim(all map[int]int, s *crowdSlot, trouble string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid == 0 || time.Now().Before(s.whole) {
		return 0
	}
	dogs, commands := wrapped(all, s.pid)
	if len(commands) == 0 || len(dogs) != 1 && !c.twin {
		return 0
	}
	_, whom, _ := strings.Cut(trouble, " ")
	who := s.pid
	switch {
	case whom == "watchdog" && !c.twin: // which has none
		who = dogs[0]
	case whom == "command":
		who = commands[rand.IntN(len(commands))]
	}
	s.whole = time.Now().Add(crowdHeals)
	return who
}

func (c *crowd) note(trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.troubles[trouble]++
}

// setClocks sets the clock of a host, once nothing runs there any more.
func (c *crowd) setClocks(ctx context.Context) {
	for ctx.Err() == nil {
		h := c.hosts[rand.IntN(len(c.hosts))]
		idle := make(chan struct{})
		go func() { h.idle.Lock(); close(idle) }()
		for waiting := true; waiting; {
			for _, s := range c.slots {
				if s.host == h {
					s.signal(syscall.SIGTERM)
				}
			}
			select {
			case <-idle:
				waiting = false
			case <-time.After(time.Second):
			}
		}
		if !c.twin { // whose orphans go on
			c.awaitNobody(h.clock)
		}
		c.set(h)
		h.idle.Unlock()
		c.note("clock")
		pause(ctx, 6*time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// takeStoreAway freezes the server with its store, or kills it, and brings it back.
func (c *crowd) takeStoreAway(ctx context.Context) {
	for {
		pause(ctx, 8*time.Second)
		if ctx.Err() != nil {
			return
		}
		if rand.IntN(2) == 0 {
			_ = c.server.cmd.Process.Signal(syscall.SIGSTOP)
			patience.Slow(crowdFroze)
			_ = c.server.cmd.Process.Signal(syscall.SIGCONT)
		} else {
			c.server.kill()
			patience.Slow(crowdFroze / 2)
			c.server = c.restart()
		}
		c.note("store")
	}
}

// awaitNobody waits until no generator is left that has a clock, or none at all. What is
// frozen goes on first, to find itself killed.
func (c *crowd) awaitNobody(clock string) {
	left := 0
	if late := patience.Try("the end of all generators", func() bool {
		left = 0
		for pid := range eachProcess() {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil || !strings.Contains(string(env), generatorVariable+"=") || !strings.Contains(string(env), c.dir) || !strings.Contains(string(env), clock) {
				continue
			}
			left++
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return left == 0
	}); late != nil {
		c.t.Errorf("%v: %d are left", late, left)
	}
}

// eachProcess returns the processes that have not ended, with their parents.
func eachProcess() map[int]int {
	all := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &parent); err != nil || state == "Z" {
			continue
		}
		if _, err := fmt.Sscan(string(text), &pid); err == nil {
			all[pid] = parent
		}
	}
	return all
}

// wrapped returns the watchdogs of a supervisor, and the command with the processes below it.
func wrapped(all map[int]int, supervisor int) (dogs, commands []int) {
	for pid, parent := range all {
		switch {
		case parent == supervisor && isWatchdog(pid):
			dogs = append(dogs, pid)
		case parent == supervisor, all[parent] == supervisor:
			commands = append(commands, pid)
		}
	}
	return dogs, commands
}

func isWatchdog(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "watchdog")
}
