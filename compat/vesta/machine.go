package vesta

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/identity"
)

// The machine IDs, [Lo, Hi), and the ranges that Vesta's users keep to by convention.
var (
	Machines         = hapax.WorkerRange{Lo: 0, Hi: 1024}
	EmbeddedMachines = hapax.WorkerRange{Lo: 0, Hi: 924}
	ServerMachines   = hapax.WorkerRange{Lo: 924, Hi: 1024}
)

// A MachineProvider comes by a machine ID for this process. Which one it is goes into
// hapax.SnowflakeOptions:
//
//	id, release, err := provider.Machine(ctx)
//	opts.Workers = hapax.WorkerRange{Lo: id, Hi: id + 1}
//
// A provider that finds none fails; it never falls back to machine 0. Two processes on
// one host never get the same one from the providers of this package while both run.
// Between hosts that is for a store's lease to see to, or for whoever gives out the
// numbers.
type MachineProvider interface {
	// Machine returns a machine ID, and a function that lets go of it once the issuer
	// is closed. Errors are a *hapax.ValueError, or match hapax.ErrNoWorker or
	// hapax.ErrStoreUnavailable.
	Machine(ctx context.Context) (id int64, release func(), err error)
}

var (
	_ MachineProvider = Property{}
	_ MachineProvider = Addresses{}
	_ MachineProvider = Table{}
	_ MachineProvider = File{}
)

// Property is the machine ID that the property vesta.machine holds.
type Property struct {
	Value string
	Host  Host
}

// Machine implements MachineProvider.
func (p Property) Machine(context.Context) (id int64, release func(), err error) {
	id, err = strconv.ParseInt(strings.TrimSpace(p.Value), 10, 64)
	if err != nil || id < Machines.Lo || id >= Machines.Hi {
		return 0, nil, machineError(p.Value, "")
	}
	release, err = p.Host.lockMachine(id)
	return id, release, err
}

// Addresses is the list that the property vesta.ips holds: IP addresses with commas
// between them, the same on all hosts. The machine ID is the index of this host's
// address, from 0.
type Addresses struct {
	List string
	Host Host
}

// Machine implements MachineProvider.
func (a Addresses) Machine(ctx context.Context) (id int64, release func(), err error) {
	p, err := identity.Parse("address:" + a.List)
	if err != nil {
		return 0, nil, machineError(a.List, "IP addresses with commas between them")
	}
	choice, err := p.Choose(ctx, identity.Request{IDs: Machines})
	if err != nil {
		return 0, nil, err
	}
	release, err = a.Host.lockMachine(choice.IDs.Lo)
	return choice.IDs.Lo, release, err
}

func machineError(value, allowed string) error {
	if allowed == "" {
		allowed = fmt.Sprintf("a machine ID from %d to %d; there is no default", Machines.Lo, Machines.Hi-1)
	}
	return &hapax.ValueError{Field: "machine", Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// A Host tells the processes on one host apart, by locked files: the system lets go of
// them when a process ends, however it does. Processes see each other's files if they
// have the directory in common; those in containers do if it is mounted.
type Host struct {
	// Dir is where the files are; default the directory for temporary files.
	Dir string

	// Pool sets apart numbers that need not differ from each other; default "vesta".
	Pool string
}

// errInUse is the error of a lock that another process, or this one, has.
var errInUse = errors.New("in use by another process on this host")

// lockMachine locks a machine ID.
func (h Host) lockMachine(id int64) (release func(), err error) {
	release, err = h.lock(fmt.Sprintf("machine-%d", id))
	if errors.Is(err, errInUse) {
		return nil, fmt.Errorf("%w: machine ID %d is %w; give each process one of its own", hapax.ErrNoWorker, id, err)
	}
	return release, err
}

// lock takes the lock of a name until release is called.
func (h Host) lock(name string) (release func(), err error) {
	if err := hapax.ValidateName("pool", cmp.Or(h.Pool, defaultPool)); err != nil {
		return nil, err
	}
	path := h.path(name)
	f, err := lockFile(path)
	switch {
	case errors.Is(err, errInUse):
		return nil, fmt.Errorf("%w (lock file %s)", err, path)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return func() { _ = f.Close() }, nil // closing a file that was only read cannot lose anything
}

const defaultPool = "vesta"

// path returns the lock file of a name.
func (h Host) path(name string) string {
	sum := fnv.New64a() // names of pools and rows are not always names of files
	_, _ = sum.Write([]byte(cmp.Or(h.Pool, defaultPool) + "\x00" + name))
	return filepath.Join(cmp.Or(h.Dir, os.TempDir()), fmt.Sprintf("hapax-vesta-%016x.lock", sum.Sum64()))
}
