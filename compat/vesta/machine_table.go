package vesta

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/netip"

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
// another machine ID.
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

	Host Host
}

// Machine implements MachineProvider.
func (t Table) Machine(ctx context.Context) (id int64, release func(), err error) {
	if t.Range == (hapax.WorkerRange{}) {
		t.Range = Machines
	}
	if t.DB == nil || t.Range.Lo < Machines.Lo || t.Range.Hi > Machines.Hi || t.Range.Len() <= 0 {
		return 0, nil, machineError(fmt.Sprintf("table with the range [%d, %d)", t.Range.Lo, t.Range.Hi), "a database, and a range within 0 to 1024")
	}
	key, unlockKey, err := t.key()
	if err != nil {
		return 0, nil, err
	}
	id, err = t.row(ctx, key)
	if err == nil {
		var unlock func()
		if unlock, err = t.Host.lockMachine(id); err == nil {
			return id, func() { unlock(); unlockKey() }, nil
		}
	}
	unlockKey()
	return 0, nil, err
}

// key returns this process's key, locked.
func (t Table) key() (key string, unlock func(), err error) {
	if t.Key != "" {
		if len(t.Key) > 64 {
			return "", nil, machineError(t.Key, "a key of up to 64 bytes")
		}
		unlock, err = t.Host.lock("row-" + t.Key)
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
	for slot := range maxSlots {
		key = fmt.Sprintf("%s#%d", t.Address, slot)
		unlock, err = t.Host.lock("row-" + key)
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

// row finds the row of a key, or takes a free one. The statement that takes it changes
// nothing when another process was first, so that it is safe to try again, also when the
// database chose it to end a deadlock.
func (t Table) row(ctx context.Context, key string) (int64, error) {
	for failures := 0; ; {
		var id int64
		err := t.DB.QueryRowContext(ctx, "SELECT ID FROM DB_MACHINE_ID_PROVIDER WHERE IP = ?", key).Scan(&id)
		switch {
		case err == nil && (id < Machines.Lo || id >= Machines.Hi):
			return 0, machineError(fmt.Sprintf("%d in the row of %s", id, key), "")
		case err == nil:
			return id, nil
		case !errors.Is(err, sql.ErrNoRows):
			return 0, tableError(err)
		}
		err = t.DB.QueryRowContext(ctx, "SELECT ID FROM DB_MACHINE_ID_PROVIDER WHERE IP IS NULL AND ID >= ? AND ID < ? ORDER BY ID LIMIT 1", t.Range.Lo, t.Range.Hi).Scan(&id)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return 0, fmt.Errorf("%w: no row of DB_MACHINE_ID_PROVIDER from %d to %d is free; set the IP of one to null whose process is gone for good", hapax.ErrNoWorker, t.Range.Lo, t.Range.Hi-1)
		case err != nil:
			return 0, tableError(err)
		}
		if _, err = t.DB.ExecContext(ctx, "UPDATE DB_MACHINE_ID_PROVIDER SET IP = ? WHERE ID = ? AND IP IS NULL", key, id); err != nil {
			if failures++; failures == maxFailures || ctx.Err() != nil {
				return 0, tableError(err)
			}
		}
	}
}

func tableError(err error) error {
	return fmt.Errorf("%w: DB_MACHINE_ID_PROVIDER: %w", hapax.ErrStoreUnavailable, err)
}
