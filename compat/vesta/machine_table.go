package vesta

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	maxSlots    = 64 // processes of one host that have a row
	maxFailures = 5  // statements in a row that fail to take a row
)

// Table is Vesta's table of machine IDs, on MySQL or MariaDB, as Vesta creates and
// fills it:
//
//	DB_MACHINE_ID_PROVIDER (ID bigint primary key, IP varchar(64) null unique)
//
// A row belongs to whoever stands in its column IP: the row with this process's key is
// its own; if there is none, it takes one whose IP is null. Rows are not given back, so
// that a process finds its machine ID again.
//
// The key is this host's address, "#" and the number of the process on its host, such
// as "10.0.0.5#0". A Vesta on the same host has the bare address for its key, and so
// another machine ID. A process that is started again finds the row that it had before, if
// it has a Memory. A row that another process may have had is used 2 s later: by then the
// time has passed that numbers were issued for.
type Table struct {
	DB *sql.DB

	// Key, if set, is the key. Give it this host's bare address to take over the row
	// of a Vesta that ran here, once that is stopped for good.
	Key string

	// Address is this host's address in the default key; default its first IPv4
	// address that is not a loopback one.
	Address string

	// Range is the machine IDs that a new row is chosen from; default all of them.
	Range hapax.WorkerRange

	// Memory, if set, is the path of a file that no other process has, which remembers the
	// row: several processes of one host find their own again, in whatever order they are
	// started.
	Memory string

	Host Host

	settle func(context.Context) error // for tests
}

// Machine implements MachineProvider.
func (t Table) Machine(ctx context.Context) (id int64, release func(), err error) {
	if t.Range == (hapax.WorkerRange{}) {
		t.Range = Machines
	}
	if t.DB == nil || t.Range.Lo < Machines.Lo || t.Range.Hi > Machines.Hi || t.Range.Len() <= 0 {
		return 0, nil, machineError(fmt.Sprintf("table with the range [%d, %d)", t.Range.Lo, t.Range.Hi), "a database, and a range within 0 to 1024")
	}
	before := t.remembered()
	// The key is locked before its row is looked for: two processes of one host would find the same.
	key, unlockKey, err := t.key(before.key)
	if err != nil {
		return 0, nil, err
	}
	unlockMachine, id, err := t.take(ctx, key, before)
	if err != nil {
		unlockKey()
		return 0, nil, err
	}
	return id, func() { unlockMachine(); unlockKey() }, nil
}

// take takes the row of a key that is locked. Unless this process had it last, it waits
// until the numbers of whoever did are of the past.
func (t Table) take(ctx context.Context, key string, before memory) (release func(), id int64, err error) {
	id, found, err := t.row(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	// The row is this process's alone; its number may also be another provider's on this host.
	if release, err = t.Host.lockMachine(id); err != nil {
		return nil, 0, err
	}
	last := t.Host.path(keyLock(key)) // its content tells the key's last holder
	if found && (before.key != key || before.id != id || before.word != readWord(last)) {
		if t.settle == nil {
			t.settle = settle
		}
		err = t.settle(ctx)
	}
	if now := (memory{key, id, rand.Text()}); err == nil {
		markFile(last, now.word) // first: a crash before the second costs the wait, and no more
		err = t.remember(now)
	}
	if err != nil {
		release()
	}
	return release, id, err
}

func keyLock(key string) string { return "row-" + key }

// A memory is the row that a process had, and the word with which it marked the key's
// lock file.
type memory struct {
	key  string
	id   int64
	word string
}

const maxMemory = 256 // bytes

// readLine returns what is in a small file; empty if that cannot be told.
func readLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxMemory))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// readWord returns the word in a lock file; one that is not there is nobody's.
func readWord(path string) string { return cmp.Or(readLine(path), "none") }

// remembered returns the row that this process had before; the zero memory if that is not
// known.
func (t Table) remembered() memory {
	if t.Memory == "" {
		return memory{}
	}
	fields := strings.Split(readLine(t.Memory), " ")
	if len(fields) != 3 {
		return memory{}
	}
	id, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return memory{}
	}
	return memory{fields[0], id, fields[2]}
}

func (t Table) remember(m memory) error {
	if t.Memory == "" {
		return nil
	}
	if err := os.WriteFile(t.Memory, fmt.Appendf(nil, "%s %d %s\n", m.key, m.id, m.word), 0o600); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return nil
}

// settled is how long a row is left alone that another process may have had: its numbers
// lead the clock by a tick, which is a second at most, and the tick that has begun counts.
const settled = 2 * time.Second

func settle(ctx context.Context) error {
	select {
	case <-time.After(settled):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrNoWorker, context.Cause(ctx))
	}
}

// key returns this process's key, locked: the one that it had before, if that is free.
func (t Table) key(before string) (key string, unlock func(), err error) {
	if t.Key != "" {
		if len(t.Key) > 64 {
			return "", nil, machineError(t.Key, "a key of up to 64 bytes")
		}
		unlock, err = t.Host.lock(keyLock(t.Key))
		if errors.Is(err, errInUse) {
			err = fmt.Errorf("%w: the key %q is %w", hapax.ErrNoWorker, t.Key, err)
		}
		return t.Key, unlock, err
	}
	if t.Address == "" {
		if t.Address, err = ownAddress(); err != nil {
			return "", nil, err
		}
	}
	if _, err := netip.ParseAddr(t.Address); err != nil || len(t.Address) > 60 {
		return "", nil, machineError(t.Address, "this host's IP address")
	}
	for slot := -1; slot < maxSlots; slot++ {
		// The lowest free slot: rows of ended processes are used again, so that starts use up none.
		key = fmt.Sprintf("%s#%d", t.Address, slot)
		if slot < 0 {
			if key = before; !strings.HasPrefix(key, t.Address+"#") {
				continue // another address has other rows
			}
		}
		unlock, err = t.Host.lock(keyLock(key))
		if !errors.Is(err, errInUse) {
			return key, unlock, err
		}
	}
	return "", nil, fmt.Errorf("%w: %d processes on this host have a row already", hapax.ErrNoWorker, maxSlots)
}

func ownAddress() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr().String(), nil
		}
	}
	return "", machineError("", "an address: this host has no IPv4 address but its loopback one")
}

// row finds the row of a key, or takes a free one; found tells which. The statement that
// takes it changes
// nothing when another process was first, so that it is safe to try again, also when the
// database chose it to end a deadlock.
func (t Table) row(ctx context.Context, key string) (id int64, found bool, err error) {
	found = true
	for failures := 0; ; {
		err := t.DB.QueryRowContext(ctx, "SELECT ID FROM DB_MACHINE_ID_PROVIDER WHERE IP = ?", key).Scan(&id)
		switch {
		case err == nil && (id < Machines.Lo || id >= Machines.Hi):
			return 0, false, machineError(fmt.Sprintf("%d in the row of %s", id, key), "")
		case err == nil:
			return id, found, nil
		case !errors.Is(err, sql.ErrNoRows):
			return 0, false, tableError(err)
		}
		err = t.DB.QueryRowContext(ctx, "SELECT ID FROM DB_MACHINE_ID_PROVIDER WHERE IP IS NULL AND ID >= ? AND ID < ? ORDER BY ID LIMIT 1", t.Range.Lo, t.Range.Hi).Scan(&id)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return 0, false, fmt.Errorf("%w: no row of DB_MACHINE_ID_PROVIDER from %d to %d is free; set the IP of one to null whose process is gone for good", hapax.ErrNoWorker, t.Range.Lo, t.Range.Hi-1)
		case err != nil:
			return 0, false, tableError(err)
		}
		found = false
		// Whether it took the row is not asked: the answer may be lost, or another be first. Only a row
		// that bears the key, at the top of the loop, is this process's.
		if _, err = t.DB.ExecContext(ctx, "UPDATE DB_MACHINE_ID_PROVIDER SET IP = ? WHERE ID = ? AND IP IS NULL", key, id); err != nil {
			if failures++; failures == maxFailures || ctx.Err() != nil {
				return 0, false, tableError(err)
			}
		}
	}
}

func tableError(err error) error {
	return fmt.Errorf("%w: DB_MACHINE_ID_PROVIDER: %w", hapax.ErrStoreUnavailable, err)
}
