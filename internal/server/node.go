package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/leasecache"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// The files of a data directory, beside the embedded store.
const (
	instanceFile = "instance"     // the node's identity with the store
	witnessFile  = "witness"      // what the node has used; its lock is the directory's
	leasePrefix  = "lease-"       // begins the names of files with a pool's lease; see service.PoolConfig.Cache
	definesFile  = "defines-tags" // there if the configuration of the server that ran last defines tags or pools
	addressFile  = "address"      // the URL of the server that runs in the directory
)

// A Node is an open data directory with its store. Only one process has a data
// directory open at a time.
type Node struct {
	Store    driver.Store
	Instance string           // identifies the node with the store; unlike any other's
	Guard    *witness.Guarded // the store again; nil for one that forgets everything anyway
	Ledger   *ledger.Ledger   // of the grants that the node takes; nil for none

	dir    string           // empty: none
	lock   *witness.Witness // stands for the lock on the directory
	log    *slog.Logger
	warned *warnings
	first  chan error // tells how the first contact with the store ended, if OpenNode did not wait for it

	stop       context.CancelFunc // ends the first contact
	contacting sync.WaitGroup     // the first contact

	history *strategy.History // nil: none

	mu     sync.Mutex // guards caches
	caches []*leasecache.Cache
}

// OpenNode opens the data directory, which is made if it does not exist, and the
// store. A shared store that does not answer soon is opened when it does: until
// then its methods return hapax.ErrStoreUnavailable.
//
// hapax.ErrStoreLocked if another process has the directory or its store open;
// hapax.ErrLayoutMismatch if the store has frozen a pool with another layout than
// the configuration has. Close must be called.
func OpenNode(ctx context.Context, c Config, log *slog.Logger) (*Node, error) {
	return startNode(ctx, newOpener(c, log), log)
}

// OpenExisting is OpenNode for a command that needs a store which exists:
// hapax.ErrInvalidArgument where there is none that the node is to have, and nothing is made then.
func OpenExisting(ctx context.Context, c Config, log *slog.Logger) (*Node, error) {
	if _, err := os.Stat(c.Data); errors.Is(err, fs.ErrNotExist) {
		return nil, noStore(c.Store, c.Data)
	}
	o := newOpener(c, log)
	o.keep = true
	return startNode(ctx, o, log)
}

func startNode(ctx context.Context, o opener, log *slog.Logger) (*Node, error) {
	n := &Node{dir: o.data, log: log, warned: o.warned, first: make(chan error, 1)}
	if err := n.open(ctx, o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// OpenStore opens the store for a command, without a data directory: it does not join
// the nodes of the store, and so does not wait for them. Where there is none it is made if
// mayMake says so; else hapax.ErrInvalidArgument. Close must be called.
func OpenStore(ctx context.Context, c Config, mayMake bool, log *slog.Logger) (*Node, error) {
	o := newOpener(c, log)
	o.keep = !mayMake
	n := &Node{Instance: rand.Text(), log: log, warned: o.warned}
	store, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	if n.Store = store; !isVolatile(o.url) {
		if n.Store, err = witness.OneShot(store); err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	if err := n.check(ctx, o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context, o opener) error {
	if err := o.check(); err != nil { // before anybody waits for a store that can never come
		return err
	}
	if err := makeDir(n.dir); err != nil {
		return err
	}
	// Before the witness makes its lock: a newer version's directory is left as it is.
	if _, err := checkDirFormat(n.dir); err != nil {
		return err
	}
	w, err := openWitness(n.dir, o.witness)
	if err != nil {
		return err
	}
	n.lock = w
	o.keep = o.keep && w.StoreID() == "" // one that was lost is healed
	// Under the lock, so that one process alone says what the directory is.
	if err := claimDir(n.dir); err != nil {
		return err
	}
	if n.Instance, err = readInstance(filepath.Join(n.dir, instanceFile)); err != nil {
		return err
	}
	if err := n.openLedger(o); err != nil {
		return err
	}
	if isVolatile(o.url) {
		n.Store, err = o.open(ctx)
		return err
	}
	if n.Guard, err = o.guard(ctx, w, o.guardOptions(n.changed)); err != nil {
		return err
	}
	n.Store = n.Guard
	return n.contact(ctx, o)
}

// openLedger opens the ledger, unless it is off or would be removed again. Where it
// cannot be, only a required one keeps the node from going on.
func (n *Node) openLedger(o opener) error {
	if o.ledger == ledgerOff {
		return nil
	}
	l, err := ledger.Open(filepath.Join(n.dir, ledger.Dir), ledger.Options{
		Node: cmp.Or(o.nodeName(), n.Instance), Instance: n.Instance, Required: o.ledger == ledgerRequired,
		Bytes: o.ledgerBytes, Age: o.ledgerAge, Trouble: troubleWith(n.log, "ledger of grants"),
	})
	if err != nil && o.ledger == ledgerRequired {
		return err
	}
	if err != nil {
		n.log.Error("the ledger of grants cannot be opened; grants are not recorded until the next start", "err", err)
		return nil
	}
	n.Ledger = l
	return nil
}

// OpenHistory opens the history that is among the plugins, if there is one. Without a
// data directory that stays there is none.
func (n *Node) OpenHistory(strategies *strategy.Registry) error {
	n.history = strategies.History()
	if n.history == nil || n.dir == "" {
		return nil
	}
	if err := n.history.Open(filepath.Join(n.dir, strategy.HistoryDir), troubleWith(n.log, "history")); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return nil
}

// troubleWith returns what tells operators that records cannot be written, or can
// again.
func troubleWith(log *slog.Logger, what string) func(error) {
	return func(err error) {
		if err != nil {
			log.Error("the "+what+" cannot be written; records are kept in memory, and lost where there are too many", "err", err)
			return
		}
		log.Info("the " + what + " can be written again")
	}
}

// changed tells operators how the node stands with its store.
func (n *Node) changed(st witness.Status) {
	args := []any{"state", string(st.State)}
	if st.Ready() {
		n.log.Info("numbers are granted", args...)
		return
	}
	args = append(args, "code", string(st.Code), "err", st.Why)
	see, command := health.Advise(st)
	if command != "" {
		args = append(args, "do", command)
	}
	for _, m := range st.Missing {
		args = append(args, "missing", m.String())
	}
	if st.State != witness.Joining || st.Trouble {
		args = append(args, "see", see)
	}
	switch st.State {
	case witness.Fenced, witness.Refusing:
		n.log.Error("nothing is granted: the store went back, or is not the right one", args...)
	case witness.Joining:
		level := slog.LevelInfo // each start joins
		if st.Trouble {
			level = slog.LevelWarn
		}
		n.log.Log(context.Background(), level, "nothing is granted until this node has joined the others", args...)
	case witness.Serving:
		n.log.Error("nothing is granted: the witness cannot be written", args...)
	}
}

// headStart is how long a store has to answer before a node goes on without it.
var headStart = 300 * time.Millisecond // less in tests of late events

// contact waits until the node has joined, and compares the store's pools with those
// that are configured. Where that takes long the node goes on, and n.first tells how it
// ended.
func (n *Node) contact(ctx context.Context, o opener) error {
	initial := n.Guard.Status().State
	// The contact goes on after OpenNode has returned, when its context may end.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	ended := make(chan error, 1)
	n.contacting.Go(func() {
		for {
			err := n.check(life, o)
			if err == nil || !isWaitedFor(err) || life.Err() != nil {
				ended <- err
				return
			}
			select {
			case <-time.After(headStart):
			case <-life.Done():
			}
		}
	})
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	case <-time.After(headStart):
		// Of a change meanwhile the guard has told already.
		if st := n.Guard.Status(); st.State == initial {
			n.changed(st)
		}
		n.contacting.Go(func() {
			if err := <-ended; err != nil && life.Err() == nil {
				n.first <- err
			}
		})
		return nil
	}
}

// isWaitedFor reports whether an error of the store may pass: the server stays up, and
// tells of it. A fence ends, and an operator can only decide about a server that runs.
func isWaitedFor(err error) bool {
	return slices.ContainsFunc([]error{hapax.ErrStoreUnavailable, hapax.ErrFenced, hapax.ErrWitnessFailed}, func(target error) bool { return errors.Is(err, target) })
}

// AwaitReady waits while nobody but the nodes themselves is needed: a store that went back is being
// healed, or this node joins and the others are met. A server answers meanwhile; a command has nothing else
// to do.
func (n *Node) AwaitReady(ctx context.Context) {
	if n.Guard == nil {
		return
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		st := n.Guard.Status()
		// A node that comes to the copy of its store refuses as on the store itself until it has joined.
		needed := st.Command != "" && !(st.Code == hapax.ErrStoreRetired.Code() && n.Guard.GoesOn(ctx))
		if st.Ready() || needed || st.Trouble {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// check refuses a store that cannot be used, and one whose pools are frozen otherwise
// than configured.
func (n *Node) check(ctx context.Context, o opener) error {
	if err := n.Store.Ping(ctx); err != nil {
		return err
	}
	pools, err := n.Store.Pools(ctx)
	if err != nil {
		return err
	}
	return service.Options{Pools: o.pools}.CheckPools(pools)
}

// openWitness opens the witness of a data directory, whose lock stands for the
// directory's.
func openWitness(dir, path string) (*witness.Witness, error) {
	if path == "" {
		path = filepath.Join(dir, witnessFile)
	}
	w, err := witness.OpenFile(path)
	if errors.Is(err, hapax.ErrStoreLocked) {
		return nil, fmt.Errorf("%w: the data directory %s is in use; stop that process, or use another --data", hapax.ErrStoreLocked, dir)
	}
	return w, err
}

// Close releases store and directory.
func (n *Node) Close() error {
	var errs []error
	if n.stop != nil {
		n.stop()
	}
	if n.Store != nil {
		errs = append(errs, n.Store.Close())
	}
	// After the store: a contact that waits for its answer ends with it.
	n.contacting.Wait()
	n.mu.Lock()
	caches := n.caches
	n.mu.Unlock()
	for _, c := range caches {
		errs = append(errs, c.Close())
	}
	errs = append(errs, n.unlessFull("ledger of grants", n.Ledger.Close()))
	if n.history != nil {
		errs = append(errs, n.unlessFull("history", n.history.Close()))
	}
	// Last, since the directory is the next process's from here on.
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// unlessFull tells operators of records that a full disk did not take, as is done while
// the node runs, and returns any other error.
func (n *Node) unlessFull(what string, err error) error {
	if !durable.IsFull(err) {
		return err
	}
	n.log.Error("the last records of the "+what+" are lost: the disk is full", "err", err)
	return nil
}

// cache returns a cache of a pool's lease in the data directory, in front of the
// store. Where there can be none it is the store.
func (n *Node) cache(ctx context.Context, pool string, store driver.Store) (hapax.WorkerStore, error) {
	sum := sha256.Sum256([]byte(pool)) // a pool's name may hold what a file's cannot
	path := filepath.Join(n.dir, leasePrefix+hex.EncodeToString(sum[:8]))
	warn := func(code, message string) {
		n.log.Warn("the lease in the data directory is not used", "pool", pool, "why", code, "detail", message)
	}
	c, err := leasecache.Open(ctx, path, store, leasecache.Options{Warn: warn})
	if err != nil {
		warn(string(hapax.CodeOf(err)), err.Error())
		return store, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.caches = append(n.caches, c)
	return c, nil
}

// makeDir makes the data directory and checks that it can be written.
func makeDir(path string) error {
	err := durable.MkdirAll(path)
	if err == nil {
		if err := closeDir(path); err != nil {
			return err
		}
		var probe *os.File
		// Rights alone do not tell of a file system that is read-only.
		if probe, err = os.CreateTemp(path, ".probe-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err != nil {
		return &explained{
			fmt.Sprintf("the data directory %s cannot be written; choose another with --data: %v", path, bare(err)),
			fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err),
		}
	}
	return nil
}

// bare returns the cause within an error that repeats a path.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// instanceForm is what an instance file holds.
var instanceForm = regexp.MustCompile(`^[A-Z2-7]{20,64}$`)

// readInstance returns the node's identity, which is made at first use. It is a
// random text, so that no two directories have the same.
func readInstance(path string) (string, error) {
	id, err := instanceIn(path)
	if err == nil && id == "" {
		id = rand.Text()
		err = writeDurably(path, id+"\n")
	}
	return id, err
}

// instanceIn returns the identity that a file holds; empty if there is no file.
func instanceIn(path string) (string, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	id := strings.TrimSpace(string(data))
	if !instanceForm.MatchString(id) {
		return "", fmt.Errorf("%w: %s does not hold an instance ID; remove the file, and the node gets a new one", hapax.ErrStoreCorrupt, path)
	}
	return id, nil
}

// writeDurably replaces a file in one step that survives a power loss.
func writeDurably(path, text string) error {
	err := durable.Replace(durable.OS, path, func(*os.File) ([]byte, error) { return []byte(text), nil })
	if err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return nil
}

// announce leaves the server's URL in the directory for commands that find it
// locked. A full disk keeps nobody from being served.
func (n *Node) announce(url string) error {
	err := writeDurably(filepath.Join(n.dir, addressFile), url+"\n")
	if durable.IsFull(err) {
		n.log.Error("the data directory's disk is full: commands do not find this server by --data until it is started again", "err", err)
		return nil
	}
	return err
}

// withdraw removes what announce left.
func (n *Node) withdraw() error {
	err := os.Remove(filepath.Join(n.dir, addressFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
