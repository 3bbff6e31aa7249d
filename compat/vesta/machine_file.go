package vesta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	maxFileBytes = 64 << 10
	reach        = 10 * time.Second // how far ahead a running process marks its machine ID
	remark       = 3 * time.Second  // how often it does
	retryFile    = 100 * time.Millisecond
)

// File is a list of machine IDs with a file that remembers up to when each was used, one
// "machineId:lastTimestamp" a line, in units of the layout's time:
//
//	12:347184000
//	13:347180512
//
// The first ID of the list is taken whose time has passed and which no other process
// has; a clock that went back, or a crash, leads on to the next. While a process runs it
// marks its ID a few seconds ahead of the time that its issuer goes by: after the clock was
// set back that is still the later one, and a start waits for it, or has another ID. The
// clock is read every 3 s: a leap that is set right sooner may not be seen.
type File struct {
	IDs  []int64
	Path string

	// Layout is the issuer's, by its name; default "vesta-max-peak".
	Layout string

	Host Host

	clock hapax.Clock // default hapax.SystemClock
}

// Machine implements MachineProvider. While the time of every free ID is yet to come, it
// waits; the error is a *hapax.WaitError when the context ends first.
func (f File) Machine(ctx context.Context) (id int64, release func(), err error) {
	if len(f.IDs) == 0 || f.Path == "" {
		return 0, nil, machineError("", "a list of machine IDs and the path of a file; there is no default")
	}
	for _, id := range f.IDs {
		if id < Machines.Lo || id >= Machines.Hi {
			return 0, nil, machineError(strconv.FormatInt(id, 10), "")
		}
	}
	if f.Layout == "" {
		f.Layout = hapax.LayoutVestaMaxPeak
	}
	if f.clock == nil {
		f.clock = hapax.SystemClock{}
	}
	layout, err := hapax.ParseLayout(f.Layout)
	if err != nil {
		return 0, nil, err
	}
	for {
		// Anew each time: an issuer that is made now goes by the clock as it is now.
		clock := hapax.NewEngineClock(f.clock)
		id, unlock, err := f.choose(layout, clock)
		if !errors.Is(err, hapax.ErrNoWorker) {
			if err != nil {
				return 0, nil, err
			}
			return id, f.keep(layout, clock, id, unlock), nil
		}
		select {
		case <-ctx.Done():
			return 0, nil, &hapax.WaitError{Cause: err, Context: ctx.Err()}
		case <-time.After(retryFile):
		}
	}
}

// choose takes the first ID that is free, and marks it.
func (f File) choose(layout hapax.Layout, clock *hapax.EngineClock) (id int64, unlock func(), err error) {
	var why []string
	err = f.change(func(last map[int64]int64) error {
		now, err := tickOf(layout, clock)
		if err != nil {
			return err
		}
		for _, candidate := range f.IDs {
			// A tick that has begun counts as used.
			if mark, used := last[candidate]; used && mark >= now {
				why = append(why, fmt.Sprintf("%d was used up to %s", candidate, layout.TimeOf(mark).Format(time.RFC3339)))
				continue
			}
			unlock, err = f.Host.lockMachine(candidate)
			if errors.Is(err, hapax.ErrNoWorker) {
				why = append(why, fmt.Sprintf("%d is in use", candidate))
				continue
			}
			if err != nil {
				return err
			}
			id = candidate
			// Ahead of the clock, because a process that is killed does not mark it any more.
			last[id] = now + int64(reach/layout.Unit())
			return nil
		}
		return fmt.Errorf("%w: of the list in %s: %s", hapax.ErrNoWorker, f.Path, strings.Join(why, ", "))
	})
	if err != nil && unlock != nil {
		unlock()
	}
	return id, unlock, err
}

func tickOf(layout hapax.Layout, clock *hapax.EngineClock) (int64, error) {
	now, _ := clock.Now()
	return layout.TickOf(now)
}

// keep marks an ID ahead until release is called. Like the issuer it goes by engine time: where
// the wall clock is set back, numbers go on from the later time, and so must the marks.
func (f File) keep(layout hapax.Layout, clock *hapax.EngineClock, id int64, unlock func()) (release func()) {
	mark := func(ahead time.Duration) {
		// A mark that cannot be written is tried again: until then the earlier one holds.
		_ = f.change(func(last map[int64]int64) error {
			now, err := tickOf(layout, clock)
			last[id] = max(now+int64(ahead/layout.Unit()), 0)
			return err
		})
	}
	stop := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() {
		tick := time.NewTicker(remark)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				mark(reach)
			case <-stop:
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		keeper.Wait()
		// Marked while it is locked: afterwards the mark may be the next process's.
		mark(layout.Unit()) // an issuer may be a tick ahead
		unlock()
	})
}

// change reads the file, has a function change it and writes it, while no other process
// does.
func (f File) change(change func(last map[int64]int64) error) error {
	path, err := filepath.Abs(f.Path)
	if err != nil {
		return err
	}
	lock, err := f.lockList(path)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing is written to it
	last, err := readMarks(path)
	if err != nil {
		return err
	}
	before := maps.Clone(last)
	if err := change(last); err != nil {
		return err
	}
	if maps.Equal(before, last) {
		return nil
	}
	return writeMarks(path, last)
}

// lockList waits for the others that have the file, each for as long as it takes to write
// it.
func (f File) lockList(path string) (io.Closer, error) {
	for tries := 0; ; tries++ {
		lock, err := lockFile(path + ".lock")
		switch {
		case err == nil:
			return lock, nil
		case !errors.Is(err, errInUse):
			return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
		case tries == 50:
			return nil, fmt.Errorf("%w: %s is %w", hapax.ErrStoreUnavailable, path, err)
		}
		time.Sleep(retryFile)
	}
}

func readMarks(path string) (map[int64]int64, error) {
	last := map[int64]int64{}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return last, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%w: %s is longer than %d bytes", hapax.ErrStoreCorrupt, path, maxFileBytes)
	}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		left, right, _ := strings.Cut(line, ":")
		id, errID := strconv.ParseInt(left, 10, 64)
		mark, errMark := strconv.ParseInt(right, 10, 64)
		if errID != nil || errMark != nil || id < Machines.Lo || id >= Machines.Hi {
			return nil, fmt.Errorf("%w: %s, line %d is %.40q; want machineId:lastTimestamp", hapax.ErrStoreCorrupt, path, number, line)
		}
		// Of two lines for one ID the later time counts.
		last[id] = max(mark, last[id])
	}
	return last, nil
}

// writeMarks replaces the file, so that a crash leaves the old or the new one.
func writeMarks(path string, last map[int64]int64) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(last)) {
		fmt.Fprintf(&text, "%d:%d\n", id, last[id])
	}
	_, err = file.WriteString(text.String())
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err), os.Remove(file.Name()))
	}
	return nil
}
