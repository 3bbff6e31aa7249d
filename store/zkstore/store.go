// Package zkstore keeps a store in ZooKeeper 3.5 or later.
//
// # Nodes
//
// Every node lies below the URL's path, /hapax unless another is given, and is
// persistent. The contents are JSON; integers are exact. In names of tags,
// tables and rows, all but letters, digits and "-_:@+=,." is percent-encoded.
//
//	/hapax/store                       {"id":"…"}
//	/hapax/tags/<name>                 {"kind":"segment","step":1000,…,"mark":4001}
//	/hapax/rows/pools/<name>           {"layout":"…"}
//	/hapax/rows/workers%2F<pool>/<19 digits> {"mark":…,"from":…,"token":3,…}
//
// # Safety
//
// A change is one write on condition of the node's version, or one creation, and
// of the version of /hapax/store: that node is written whenever another is removed
// or, after 2^30 changes, made anew, since versions then begin at zero again. In
// the steady state a change is one round trip, with the version from the handle's
// last write. Where a read decides, a sync goes before it, since a server may
// lag behind its leader; a stale version only loses the write. What is asked on one
// connection is answered in that order, and nothing waits for an answer that it does not
// depend on. Neither ephemeral
// nor sequential nodes are used: safety rests on marks alone.
//
// A handle's session ends with its connection. The next connection begins with a
// look at the store's identity, which is ErrStoreReplaced if it is another one,
// and with no knowledge of versions. A store that was restored from an older copy
// cannot be noticed here: guarded calls tell the epoch of the leader, and which run of a
// server that stands alone has answered (driver.Contact.Primary), and whoever beats
// (store/witness) finds out whether what was acknowledged to it is there.
//
// ZooKeeper acknowledges a write once a quorum has it on disk. An ensemble that
// runs with forceSync=no gives that up, and cannot be told from outside.
//
// # Limits
//
// ZooKeeper lists the children of a node only as a whole, and some hundred thousand are
// too many for one reply. What many nodes hold is read by a request for many, which the
// client library lacks, on a connection of its own for the time of one listing; where the
// server does not know it (it came with 3.6), or New was given the connection, by a request
// each, of which 64 are under way at a time. A hundred thousand tags take about a second so,
// and several otherwise. Guarded calls of one handle take turns.
package zkstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coord"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Paced = (*Store)(nil)
	_ driver.KV    = (*space)(nil)
)

// Options change how a store is used. The zero value is useful.
type Options struct {
	// Timeout bounds each call, also when its context allows more; default 5 s.
	Timeout time.Duration

	// Look has Open change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. Nothing may be written to the store then.
	Look bool

	// Existing, if set, is asked before a store would be made: where it returns true, New
	// makes none, and fails with a *driver.WouldChangeError. See witness.Witness.KnowsStore.
	Existing func() bool

	// Warn receives what an operator should know about the ensemble's setup, with
	// a stable code: "few_members" (the ensemble has fewer than three voting
	// members: a lost disk loses the store). It is called by Open only.
	Warn func(code, message string)
}

var urlForm = coord.Form{Scheme: "zk", Port: "2181", Params: []string{"acl"}}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a handle on a store in ZooKeeper. Its methods are safe for
// concurrent use. It connects again by itself when it is next used.
type Store struct {
	*base // tags and rows
	space *space
}

// Open connects to the ensemble that the URL names and creates the store if
// there is none below the path:
//
//	zk://[user:password@]host[:port][,host…][/path][?acl=open&tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The port defaults to 2181. User, password and path are percent-encoded. User
// and password are for the digest scheme. acl tells who may use the nodes that
// are created: "creator" is whoever knows user and password, and the default
// with them; "open" is everybody, and the default without. zks:// and tls=true
// ask for TLS; ca names the file with the authorities to trust instead of the
// system's, cert and key the client's own certificate, all in PEM form.
// ErrInvalidArgument, ErrStoreUnavailable, ErrStoreCorrupt.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	u, access, err := parse(url)
	if err != nil {
		return nil, err
	}
	s := newStore(u.Prefix, u.Hosts, opts)
	s.space.tls, s.space.acl = u.TLS, access
	if u.User != "" {
		s.space.auth = u.User + ":" + u.Password
	}
	return s.start(ctx, opts.Warn)
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
func CheckURL(url string) error {
	_, _, err := parse(url)
	return err
}

// New is Open with a connection that the caller has made, logged in where that is
// needed, and closes after the store. The path lies above every node; empty
// stands for "hapax". The nodes that are created get the given access list; nil
// lets everybody use them.
//
// The client library mends a connection by itself and sends requests that waited
// meanwhile. The handle looks at the store's identity again after every call
// that failed with the connection, and every write is refused by a store of
// another identity. Its pings do not tell a connection that hangs: give the
// calls deadlines. That a server that stands alone was started anew shows only to a store
// that Open has opened.
func New(ctx context.Context, conn *zk.Conn, path string, acl []zk.ACL, opts Options) (*Store, error) {
	if path = strings.Trim(path, "/"); path == "" {
		path = coord.DefaultPrefix
	}
	s := newStore(path, []string{conn.Server()}, opts)
	s.space.given, s.space.acl = conn, acl
	if acl == nil {
		s.space.acl = zk.WorldACL(zk.PermAll)
	}
	return s.start(ctx, opts.Warn)
}

func newStore(path string, hosts []string, opts Options) *Store {
	life, end := context.WithCancelCause(context.Background())
	k := &space{
		calls: driver.Calls{Service: "ZooKeeper at " + strings.Join(hosts, ","), Timeout: opts.Timeout},
		hosts: hosts,
		base:  "/" + path,
		looks: opts.Look, existing: opts.Existing,
		renewAt: renewVersion,
		convoy:  coord.Convoy{Alone: true},
		life:    life,
		end:     end,
	}
	return &Store{base: driver.NewBase(&k.calls, k, driver.BaseOptions{Absent: true}), space: k}
}

// parse returns what a URL says, and who may use the nodes that are created.
func parse(url string) (coord.URL, []zk.ACL, error) {
	u, err := urlForm.Parse(url)
	if err != nil {
		return u, nil, err
	}
	access := zk.WorldACL(zk.PermAll)
	switch given := u.Params.Get("acl"); {
	case given == "creator" && u.User != "", given == "" && u.User != "":
		access = zk.AuthACL(zk.PermAll)
	case given != "open" && given != "":
		return u, nil, fmt.Errorf("%w: ZooKeeper URL: acl is open, or creator together with user:password", hapax.ErrInvalidArgument)
	}
	return u, access, validPath(u.Prefix)
}

func validPath(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || escape(part) != part {
			return &hapax.ValueError{Field: "path of the ZooKeeper URL", Value: path, Allowed: "parts of letters, digits and -_:@+=,.", Err: hapax.ErrInvalidArgument}
		}
	}
	return nil
}

// start makes the first connection, or closes the store.
func (s *Store) start(ctx context.Context, warn func(code, message string)) (*Store, error) {
	s.space.made, s.space.founding = driver.NewStoreID(ctx), driver.FoundingIn(ctx)
	err := validPath(strings.TrimPrefix(s.space.base, "/"))
	if err == nil {
		err = s.space.linked(ctx, func(_ context.Context, l *link) error {
			// That the server does not tell, perhaps is not even permitted to, is no reason to warn.
			if warn != nil && l.voters >= 0 && l.voters < 3 {
				warn("few_members", fmt.Sprintf("the ZooKeeper ensemble has %d voting members: with fewer than three, one lost disk loses the store or its quorum", max(1, l.voters)))
			}
			return nil
		})
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// StoreID implements driver.Store.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.Ping(ctx); err != nil {
		return "", err
	}
	return s.OpenedID(), nil
}

// OpenedID implements driver.Opened. A store that is replaced under a connection shows with the
// next write.
func (s *Store) OpenedID() string {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.space.id
}

// BeatTrips implements driver.Paced: a row that another handle has written is read before it is raised.
func (s *Store) BeatTrips() int { return 2 }

// OpenToAll implements driver.Founded. Other handles that were opened before read everything anew.
func (s *Store) OpenToAll(ctx context.Context) error {
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.space.openToAll(ctx)
}

// Ping implements driver.Store. It reads the store's identity.
func (s *Store) Ping(ctx context.Context) error { return s.space.linked(ctx, s.space.verify) }

// Close implements driver.Store. Calls in flight fail; Close waits for the
// goroutines of the handle, a second or two if the server does not answer.
func (s *Store) Close() error {
	if !s.space.calls.End() {
		return nil
	}
	s.space.mu.Lock() // whoever begins to connect has seen the store open, and is waited for
	s.space.end(fmt.Errorf("%w: the store in %s", hapax.ErrClosed, s.space.calls.Service))
	s.space.mu.Unlock()
	s.space.running.Wait()
	return nil
}
