package hapax_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// laned is an issuer that has lanes.
type laned interface {
	hapax.Issuer
	Lane() *hapax.Lane
}

// lanedIssuers are issuers whose blocks end often.
func lanedIssuers(t *testing.T, clock hapax.Clock) map[string]laned {
	snowflake := func(layout string, mutex bool) laned {
		return newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: mustLayout(t, layout), Mutex: mutex, Clock: clock})
	}
	return map[string]laned{
		"segment":               newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 1000, MaxStep: 5000, Delta: 3, Remainder: 1, Clock: clock}),
		"snowflake, few a tick": snowflake(narrow, false),
		"snowflake, a second":   snowflake(coarse, false),
		"snowflake, wide":       snowflake(wide, false),
		"snowflake, mutex":      snowflake(narrow, true),
	}
}

// Lanes on many goroutines, opened and closed all the time, and the issuer's own calls
// beside them: no number comes twice, and each lane's rise.
func TestLanes(t *testing.T) {
	for name, s := range lanedIssuers(t, nil) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const workers, each = 6, 1500
			var got [workers][]hapax.ID
			var running sync.WaitGroup
			for i := range workers {
				running.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					for len(got[i]) < each {
						ids := make([]hapax.ID, 1+rng.IntN(300))
						n, err := take(t.Context(), s, rng, ids)
						if err != nil {
							t.Error(err)
							return
						}
						for k, id := range ids[1:n] {
							if id <= ids[k] {
								t.Errorf("a lane issued %d after %d", id, ids[k])
							}
						}
						got[i] = append(got[i], ids[:n]...)
					}
				})
			}
			running.Wait()
			all := slices.Concat(got[:]...)
			slices.Sort(all)
			if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
				t.Errorf("%d numbers, %d different ones", len(all), n)
			}
		})
	}
}

// take fills ids through a new lane, in one of four ways, or through the issuer itself.
func take(ctx context.Context, s laned, rng *rand.Rand, ids []hapax.ID) (n int, err error) {
	if rng.IntN(4) == 0 {
		return s.NextN(ctx, ids)
	}
	l := s.Lane()
	defer l.Close()
	for n < len(ids) && err == nil {
		switch rng.IntN(4) {
		case 3:
			for ok := true; ok && n < len(ids); {
				if ids[n], ok = l.TryNext(); ok {
					n++
				}
			}
		case 0:
			if ids[n], err = l.Next(ctx); err == nil {
				n++
			}
		case 1:
			var more int
			more, err = l.NextN(ctx, ids[n:min(len(ids), n+1+rng.IntN(100))])
			n += more
		case 2:
			for id, failed := range l.All(ctx) {
				if err = failed; err != nil {
					break
				}
				ids[n] = id
				if n++; n == len(ids) || rng.IntN(10) == 0 {
					break
				}
			}
		}
	}
	return n, err
}

// warm has a lane take numbers until its blocks are as large as they get, and it has some
// in hand.
func warm(t *testing.T, l *hapax.Lane) (last hapax.ID) {
	t.Helper()
	for i := 0; i < 3000 || l.Left() < 2; i++ {
		id, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = id
	}
	return last
}

// What is left of a lane is for the next one: there is no gap.
func TestLaneLeavesItsRest(t *testing.T) {
	bubble(t, "segment", func(t *testing.T) {
		s := newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 100_000, Clock: newTestClock()})
		for want := hapax.ID(1); want <= 20_000; {
			l := s.Lane()
			for range 1 + want%700 {
				if id, err := l.Next(t.Context()); err != nil || id != want {
					t.Fatalf("issued %d, %v; want %d", id, err, want)
				}
				want++
			}
			l.Close()
			if _, err := l.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
				t.Fatalf("a closed lane: %v", err)
			}
			l.Close()
		}
	})
}

// After its issuer is closed, or has dropped its grants, a lane issues none of the numbers that
// it had in hand. A lane that does not look is found out.
func TestLaneHearsItsIssuer(t *testing.T) {
	for name, end := range map[string]func(laned) (floor hapax.ID){
		"close": func(s laned) hapax.ID {
			_ = s.Close(context.Background())
			return 1<<63 - 1
		},
		"drop": func(s laned) hapax.ID {
			is, ok := s.(*hapax.Segment)
			if !ok {
				return 0
			}
			is.Drop()
			id, err := is.Next(context.Background())
			if err != nil {
				panic(err)
			}
			return id
		},
	} {
		bubble(t, name, func(t *testing.T) {
			for kind, s := range lanedIssuers(t, newTestClock()) {
				honest, deafened := s.Lane(), s.Lane()
				warm(t, honest)
				warm(t, deafened)
				deafened.Deafen()
				floor := end(s)
				if id, err := honest.Next(t.Context()); err == nil && id < floor {
					t.Errorf("%s: a lane issued %d, which it had before", kind, id)
				} else if floor == 1<<63-1 && !errors.Is(err, hapax.ErrClosed) {
					t.Errorf("%s: after Close: %v", kind, err)
				}
				if id, err := deafened.Next(t.Context()); floor > 0 && (err != nil || id >= floor) {
					t.Errorf("%s: the deaf twin was not found out: %d, %v", kind, id, err)
				}
			}
		})
	}
}

// A machine that was asleep may run twice: a lane's block is given up with the grant.
func TestLaneAfterSleep(t *testing.T) {
	bubble(t, "snowflake", func(t *testing.T) {
		clock, layout := newTestClock(), mustLayout(t, coarse)
		s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: layout, Clock: clock})
		honest, deafened := s.Lane(), s.Lane()
		warm(t, honest)
		warm(t, deafened)
		deafened.Deafen()
		clock.asleep.Add(int64(2 * time.Second))
		time.Sleep(60 * time.Millisecond)                                    // the pacer finds out, within the tick
		for l, want := range map[*hapax.Lane]int64{honest: 1, deafened: 0} { // the worker ID
			id, err := l.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			fields, err := layout.Parse(id)
			if worker, _ := fields.Get(hapax.FieldWorker); err != nil || worker != want {
				t.Errorf("issued a number of worker ID %d, %v; want %d", worker, err, want)
			}
		}
	})
}

// A lane lags the clock by at most two ticks or 10 ms, at any rate, as its issuer does.
func TestLaneFollowsTheClock(t *testing.T) {
	for name, layout := range map[string]string{"few a tick": narrow, "wide": wide, "a second": coarse} {
		bubble(t, name, func(t *testing.T) {
			l := mustLayout(t, layout)
			clock := newTestClock()
			s := newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: l, Clock: clock})
			most := max(2*l.Unit(), 10*time.Millisecond)
			lag := func(lane *hapax.Lane) time.Duration {
				id, err := lane.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				at, err := l.Time(id)
				if err != nil {
					t.Fatal(err)
				}
				return clock.wall().Sub(at.Add(l.Unit()))
			}
			lane, twin := s.Lane(), s.Lane()
			for _, rest := range []time.Duration{0, 10 * time.Microsecond, 300 * time.Microsecond, 5 * time.Millisecond, 50 * time.Millisecond, 3 * time.Second, 40 * time.Second} {
				for range 100 {
					time.Sleep(rest)
					if d := lag(lane); d > most {
						t.Fatalf("every %v: a number lags the clock by %v; want at most %v", rest, d, most)
					}
				}
			}
			warm(t, twin)
			twin.Deafen()
			time.Sleep(time.Minute)
			if d := lag(twin); d <= most {
				t.Errorf("the deaf twin was not found out: it lags by %v", d)
			}
		})
	}
}

func TestLaneDoesNotAllocate(t *testing.T) {
	ctx, buf := t.Context(), make([]hapax.ID, 256)
	for name, s := range map[string]laned{
		"segment":   newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 10_000_000, MaxStep: 10_000_000}),
		"snowflake": newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: mustLayout(t, wide)}),
	} {
		l := s.Lane()
		warm(t, l)
		if n := testing.AllocsPerRun(5000, func() {
			if _, err := l.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: Next allocates %v times", name, n)
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := l.NextN(ctx, buf); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: NextN allocates %v times", name, n)
		}
	}
}
