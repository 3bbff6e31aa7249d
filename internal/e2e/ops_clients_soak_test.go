package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestPrograms: client programs that start and stop on few tags, overlapping, each
// leasing and handing back. Nobody is refused, and no number comes twice.
func TestPrograms(t *testing.T) {
	t.Parallel()
	runPrograms(t, testservers.Redis(t).URL, 20, 2, 3*time.Second, "--heartbeat", "200ms")
}

// TestProgramsSoak does that with 200 programs on ten tags for five minutes on each store.
func TestProgramsSoak(t *testing.T) {
	patience.Soak(t, "a crowd of programs for five minutes")
	for _, store := range sharedStores {
		t.Run(store.name, func(t *testing.T) { runPrograms(t, store.start(t).URL, 200, 10, 5*time.Minute) })
	}
}

func runPrograms(t *testing.T, url string, programs, tags int, during time.Duration, args ...string) {
	var servers []string
	var nodes []*serving
	dir := t.TempDir()
	for i := range 2 {
		s := serve(t, dir, nil, append([]string{"--store", url, "--data", fmt.Sprint("node", i), "--max-wait", "20s"}, args...)...)
		servers, nodes = append(servers, s.url), append(nodes, s)
	}
	takeSoon(t, nodes[0], "warm", 1)
	takeSoon(t, nodes[1], "warm", 1)
	over := time.Now().Add(during)
	ids := make([][]hapax.ID, tags)
	var mu sync.Mutex // guards ids
	var ran, late atomic.Int64
	var wg sync.WaitGroup
	for range programs {
		wg.Go(func() {
			for time.Now().Before(over) && !t.Failed() {
				tag := rand.IntN(tags)
				got, err := program(t.Context(), servers[rand.IntN(len(servers))], fmt.Sprint("tag", tag))
				mu.Lock()
				ids[tag] = append(ids[tag], got...)
				mu.Unlock()
				ran.Add(1)
				switch {
				case err == nil:
				case errors.Is(err, context.DeadlineExceeded): // the machine is busy; what was not handed back is a gap
					late.Add(1)
				default:
					t.Errorf("%v after the start: %v", during-time.Until(over), err)
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for tag, all := range ids {
		distinct(t, fmt.Sprint("tag", tag), all)
		total += len(all)
	}
	t.Logf("%d programs ran, and took %d numbers; %d were not answered in time", ran.Load(), total, late.Load())
	for _, n := range nodes {
		if got := n.metric("hapax_fenced"); got != 0 {
			t.Errorf("hapax_fenced is %v: %s", got, tail(n.logged()))
		}
		if code := n.stop(); code != 0 {
			t.Errorf("the exit code is %d: %s", code, tail(n.logged()))
		}
	}
}

// program is what an ordinary client does that starts, takes a few numbers, and stops.
func program(ctx context.Context, server, tag string) (ids []hapax.ID, err error) {
	c, err := sdk.Dial(ctx, sdk.Options{Timeout: patience.Call}, server) // the machine is busy
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	defer c.Close()
	s, err := c.Segment(ctx, tag, hapax.SegmentOptions{})
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	for range 1 + rand.IntN(5) {
		id, err := s.Next(ctx)
		if err != nil {
			return ids, fmt.Errorf("next: %w", err)
		}
		ids = append(ids, id)
	}
	if err := s.Close(ctx); err != nil {
		return ids, fmt.Errorf("close: %w", err)
	}
	return ids, nil
}
