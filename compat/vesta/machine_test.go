package vesta

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

func take(t *testing.T, p MachineProvider) (id int64, release func()) {
	t.Helper()
	id, release, err := p.Machine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return id, release
}

func TestProperty(t *testing.T) {
	host := Host{Dir: t.TempDir()}
	for value, want := range map[string]int64{"0": 0, " 924\n": 924, "1023": 1023} {
		if got, _ := take(t, Property{value, host}); got != want {
			t.Errorf("%q is machine %d; want %d", value, got, want)
		}
	}
	for _, value := range []string{"", " ", "-1", "1024", "1e3", "0x10", "9223372036854775808"} {
		id, release, err := Property{value, host}.Machine(t.Context())
		if !errors.Is(err, hapax.ErrInvalidArgument) || id != 0 || release != nil {
			t.Errorf("%q is machine %d, %v; want an error", value, id, err)
		}
	}
}

// TestTwoOnOneHost shows that a machine ID is one process's, until it lets go of it.
func TestTwoOnOneHost(t *testing.T) {
	host := Host{Dir: t.TempDir()}
	_, release := take(t, Property{"7", host})
	_, _, err := Property{"7", host}.Machine(t.Context())
	if !errors.Is(err, hapax.ErrNoWorker) || !strings.Contains(err.Error(), "machine ID 7 is in use") {
		t.Errorf("a second process got %v", err)
	}
	take(t, Property{"8", host})
	take(t, Property{"7", Host{Dir: host.Dir, Pool: "orders"}})
	release()
	take(t, Property{"7", host})

	if _, _, err := (Property{"7", Host{Dir: filepath.Join(host.Dir, "none")}}).Machine(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("without a directory: %v", err)
	}
	if _, _, err := (Property{"7", Host{Dir: host.Dir, Pool: "\n"}}).Machine(t.Context()); !errors.Is(err, hapax.ErrInvalidTag) {
		t.Errorf("a pool without a name: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	host := Host{Dir: t.TempDir()}
	list := "198.51.100.1,198.51.100.2, 127.0.0.1 ,198.51.100.3"
	id, release := take(t, Addresses{list, host})
	if id != 2 {
		t.Errorf("this host is machine %d; want 2", id)
	}
	if _, _, err := (Addresses{list, host}).Machine(t.Context()); !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("a second process got %v", err)
	}
	release()
	for _, list := range []string{"", "198.51.100.1", "127.0.0.1,x", "127.0.0.1,127.0.0.1"} {
		if _, _, err := (Addresses{list, host}).Machine(t.Context()); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q: %v; want an error", list, err)
		}
	}
}

// A setClock is a bubble's clock, which somebody sets; time goes on from there.
type setClock struct {
	began  time.Time
	offset atomic.Int64
}

func newSetClock() *setClock {
	c := &setClock{began: time.Now()}
	c.set(20 * 365 * 24 * time.Hour) // a bubble begins before Vesta's epoch
	return c
}

func (c *setClock) set(by time.Duration) { c.offset.Add(int64(by)) }

func (c *setClock) Now() (wall time.Time, mono time.Duration) {
	now := time.Now()
	return now.Round(0).Add(time.Duration(c.offset.Load())), now.Sub(c.began)
}

// TestFile follows a file through runs, a crash and a clock that goes back.
func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newSetClock()
		f := File{
			IDs: []int64{12, 13, 14}, Path: filepath.Join(t.TempDir(), "machineIdInfo.store"), Host: Host{Dir: t.TempDir()},
			clock: clock,
		}
		layout, err := hapax.ParseLayout(hapax.LayoutVestaMaxPeak)
		if err != nil {
			t.Fatal(err)
		}
		tick := func() int64 {
			now, _ := clock.Now()
			tick, err := layout.TickOf(now)
			if err != nil {
				t.Fatal(err)
			}
			return tick
		}
		content := func() string {
			data, err := os.ReadFile(f.Path)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
		expect := func(want string) {
			t.Helper()
			if got := content(); got != want {
				t.Errorf("the file is %q; want %q", got, want)
			}
		}

		begin := tick()
		first, release := take(t, f)
		expect(fmt.Sprintf("12:%d\n", begin+10))
		second, releaseSecond := take(t, f)
		if first != 12 || second != 13 {
			t.Errorf("got %d and %d; want 12 and 13", first, second)
		}
		time.Sleep(remark + time.Second)
		synctest.Wait()
		expect(fmt.Sprintf("12:%d\n13:%d\n", begin+13, begin+13))
		release()
		releaseSecond()
		expect(fmt.Sprintf("12:%d\n13:%d\n", begin+5, begin+5))

		// At once 12 and 13 may have been used in this second; later they may not.
		id, release := take(t, f)
		release()
		time.Sleep(3 * time.Second)
		again, releaseAgain := take(t, f)
		releaseAgain()
		if id != 14 || again != 12 {
			t.Errorf("got %d and %d; want 14 and 12", id, again)
		}

		// The clock goes back before every mark: the list is used up until it has
		// caught up.
		if err := os.WriteFile(f.Path, []byte(fmt.Sprintf("12:%d\n13:%d\n\n14:%d\n99:7\n", begin+100, begin+60, begin+100)), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := f.Machine(ctx); !errors.Is(err, hapax.ErrNoWorker) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "13 was used up to") {
			t.Errorf("got %v", err)
		}
		waited, release := take(t, f)
		if waited != 13 || tick() != begin+61 {
			t.Errorf("got %d after %d s; want 13 after 61", waited, tick()-begin)
		}
		release()
		expect(fmt.Sprintf("12:%d\n13:%d\n14:%d\n99:7\n", begin+100, begin+62, begin+100))
	})
}

// TestFileOfAClockAhead shows that a clock that was an hour ahead costs no number twice: what was
// issued by it stays marked after it is set right, whether the process ends or is killed, and the
// next IDs of the list go on at once.
func TestFileOfAClockAhead(t *testing.T) {
	for name, killed := range map[string]bool{"ends": false, "is killed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := newSetClock()
				f := File{IDs: []int64{12, 13}, Path: filepath.Join(t.TempDir(), "f"), Host: Host{Dir: t.TempDir()}, clock: clock}
				layout, err := hapax.ParseLayout(hapax.LayoutVestaMaxPeak)
				if err != nil {
					t.Fatal(err)
				}
				issued := map[hapax.ID]string{}
				// run issues for some seconds, in which the clock is set.
				run := func(who string, want int64, set time.Duration, killed bool) {
					t.Helper()
					id, release, err := f.Machine(t.Context())
					if err != nil || id != want {
						t.Fatalf("%s has machine ID %d, %v; want %d", who, id, err, want)
					}
					issuer, err := hapax.NewSnowflake(t.Context(), nil, hapax.SnowflakeOptions{Layout: layout, Workers: hapax.WorkerRange{Lo: id, Hi: id + 1}, Clock: clock})
					if err != nil {
						t.Fatal(err)
					}
					for range 10 {
						time.Sleep(time.Second)
						number, err := issuer.Next(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						if before, ok := issued[number]; ok {
							t.Errorf("%s issues %d, as %s did", who, number, before)
						}
						issued[number] = who
						clock.set(set)
						set = 0
					}
					if err := issuer.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
					left, err := os.ReadFile(f.Path)
					if err != nil {
						t.Fatal(err)
					}
					release()
					if killed { // nothing was marked at its end
						err = os.WriteFile(f.Path, left, 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				clock.set(time.Hour)
				began := time.Now()
				run("the first", 12, -time.Hour, killed)
				run("the second", 13, 0, false)
				if took := time.Since(began); took > time.Minute {
					t.Errorf("the second waited until %v after the first had begun", took)
				}
				// Once the time has come that the first numbers hold.
				f.IDs = []int64{12}
				time.Sleep(time.Until(began.Add(time.Hour)))
				run("the third", 12, 0, false)
				if took := time.Since(began) - time.Hour; took > time.Minute {
					t.Errorf("the third had its ID %v after the time of the first was over", took)
				}
			})
		})
	}
}

func TestFileRefusals(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	host := Host{Dir: dir}
	for name, f := range map[string]File{
		"no IDs":   {Path: path, Host: host},
		"no path":  {IDs: []int64{1}, Host: host},
		"ID":       {IDs: []int64{1, 1024}, Path: path, Host: host},
		"layout":   {IDs: []int64{1}, Path: path, Layout: "none", Host: host},
		"negative": {IDs: []int64{-1}, Path: path, Host: host},
	} {
		if _, _, err := f.Machine(t.Context()); !errors.Is(err, hapax.ErrInvalidArgument) && !errors.Is(err, hapax.ErrInvalidLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := File{IDs: []int64{1}, Path: path, Host: host}
	for _, content := range []string{"1", "1:", ":1", "x:1", "1:x", "1024:1", "1:1:1", "1:1\n\x00", strings.Repeat("1:1\n", maxFileBytes/4+1)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Machine(t.Context()); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%.20q: %v; want ErrStoreCorrupt", content, err)
		}
	}
	f.Path = filepath.Join(dir, "none", "f")
	if _, _, err := f.Machine(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
