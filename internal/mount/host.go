package mount

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// contactTimeout bounds the first contact at the start.
const contactTimeout = 3 * time.Second

// A Host is what a server gives to the mounts that open, and what they leave with it.
type Host struct {
	*Plan

	Log             *slog.Logger
	Instance        string // identifies the node with its store
	MaxWait         time.Duration
	StoreTimeout    time.Duration
	Unauthenticated bool // clients need not show anything anywhere

	// Beside returns the options of a service beside the server's own.
	Beside func(name string) (service.Options, error)

	// OpenWitness opens the witness of a foreign system's tables, beside the node's own.
	OpenWitness func(system string) (*witness.Witness, error)

	// Store is the server's own store, StoreURL its URL with the password, and Ledger that
	// of the grants that the node takes.
	Store    driver.Store
	StoreURL string
	Ledger   *ledger.Ledger

	// Guard opens another store behind a witness. It need not answer yet.
	Guard func(storeURL string, w *witness.Witness) (driver.Store, error)

	// Warned counts a driver's warning.
	Warned func(code string)

	// Explain adds to the error of a database that cannot be used what is the matter.
	Explain func(error) error

	// Use are the pools of the server's own service. Worker IDs that a system gives are
	// put in here.
	Use map[string]service.PoolConfig

	// Observer, if a mount sets it, hears of the events of the server's own service.
	Observer func(hapax.Event)

	// Marks are service.Options.Marks.
	Marks map[string]func(ctx context.Context, tag string) (int64, error)

	// Services are those that mounts brought, by name. The server closes them.
	Services map[string]*service.Service

	closers []func() error
}

// Defer has end called when no service is left, the latest first.
func (h *Host) Defer(end func() error) { h.closers = append(h.closers, end) }

// Close closes what was deferred.
func (h *Host) Close() error {
	var errs []error
	for len(h.closers) > 0 {
		last := len(h.closers) - 1
		end := h.closers[last]
		h.closers = h.closers[:last]
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// Witness opens the witness of a system's tables, and has it closed.
func (h *Host) Witness(system string) (*witness.Witness, error) {
	w, err := h.OpenWitness(system)
	if err == nil {
		h.Defer(w.Close)
	}
	return w, err
}

// Warn returns the function that logs and counts a driver's warnings.
func (h *Host) Warn(name string) func(code, message string) {
	return func(code, message string) {
		h.Warned(code)
		h.Log.Warn("a foreign system is not as it should be", "beside", name, "code", code, "detail", message)
	}
}

// Serve brings a service over a store that is a part of a foreign system.
func (h *Host) Serve(ctx context.Context, name string, store driver.Store, tune func(*service.Options)) (*service.Service, error) {
	opts, err := h.Beside(name)
	if err != nil {
		return nil, err
	}
	tune(&opts)
	svc, err := service.New(ctx, store, opts)
	if err == nil {
		h.Services[name] = svc
	}
	return svc, err
}

// Contact asks a foreign system whether it can be used. One that does not answer may come
// later; what would be wrong then, too, keeps the server from starting. What waits for an
// operator's decision does not: the rest of the server goes on.
func (h *Host) Contact(ctx context.Context, name string, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	err := h.Explain(ping(ctx))
	switch {
	case err == nil:
	case errors.Is(err, hapax.ErrFenced):
		h.Log.Error("nothing is granted: the table went back, or is not the right one", "beside", name, "code", string(hapax.CodeOf(err)), "err", err)
	case errors.Is(err, hapax.ErrStoreUnavailable):
		h.Log.Warn("a foreign system cannot be used yet; it is tried again and again", "beside", name, "code", string(hapax.CodeOf(err)), "err", err)
	default:
		return err
	}
	return nil
}
