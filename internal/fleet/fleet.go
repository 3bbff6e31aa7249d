// Package fleet asks the other nodes of a store. It is the one way in which nodes speak to each
// other: the console and the API of one node show what it brings.
//
//	console, API ---> Status, Trace, Ask ---> the rows of the store ---> GET /fleet of each node
//	                                          say where nodes are        a Teller answers
//
// The addresses come from the store, and anybody with the right to write there may have written
// them. So a node sends nothing of use to a stranger: no token ever, and of the fleet key only a
// code over the one address and a random word. See sealer.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/witness"
)

// Path is where a node answers others.
const Path = "/fleet"

// Limits on asking other nodes.
const (
	Timeout   = 700 * time.Millisecond
	maxPeers  = 64 // that are asked
	MaxAnswer = 2 << 20
)

// Options are what a fleet is made from. Service is required.
type Options struct {
	Service *service.Service
	Policy  *auth.Policy // may be nil

	Name    string // what operators know this node by
	Address string // where others find it, as HOST:PORT

	// Key lets nodes see each other; nil: only nodes on loopback are asked, and those that
	// show a certificate.
	Key []byte

	// TLS is how other nodes are dialled; nil: without TLS.
	TLS func() *tls.Config
}

// A Teller answers one kind of question.
type Teller func(ctx context.Context, q url.Values) (any, error)

// A Fleet asks other nodes, and answers them.
type Fleet struct {
	opts    Options
	key     sealer
	web     *http.Client
	tellers map[string]Teller
	heard   heard

	mu   sync.Mutex // guards last
	last []witness.Node
}

// New returns a fleet, whose nodes tell each other their status and what they know of a number.
func New(o Options) *Fleet {
	f := &Fleet{opts: o, key: o.Key, tellers: map[string]Teller{}}
	dialer := &net.Dialer{Timeout: Timeout, Control: f.mayDial}
	transport := &http.Transport{
		DialContext:           dialer.DialContext,
		ResponseHeaderTimeout: Timeout, MaxConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, MaxResponseHeaderBytes: 16 << 10,
	}
	if o.TLS != nil {
		transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) { // the certificates may have changed
			return (&tls.Dialer{NetDialer: dialer, Config: o.TLS()}).DialContext(ctx, network, addr)
		}
	}
	f.web = &http.Client{
		Transport: transport, Timeout: Timeout,
		// No redirect is followed: a question's code is for the address that was asked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f.Tell(aboutStatus, f.tellStatus)
	f.Tell(aboutTrace, f.tellTrace)
	return f
}

// Tell has a kind of question answered. It must not be called once questions may come.
func (f *Fleet) Tell(about string, t Teller) { f.tellers[about] = t }

// Rows returns the rows of the store that are worth asking, the most important first, and how many
// more there are; of a store that does not answer, those that were seen last.
func (f *Fleet) Rows(ctx context.Context) (rows []witness.Node, more int) {
	g := f.opts.Service.Guard()
	if g == nil {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout) // as in Ask
	defer cancel()
	all, err := g.Nodes(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.last = worth(all)
	}
	more = max(0, len(f.last)-maxPeers)
	return slices.Clone(f.last[:len(f.last)-more]), more
}

// worth returns the rows of nodes that live, or are missed.
func worth(all []witness.Node) []witness.Node {
	living := map[string]bool{}
	for _, n := range all {
		if n.State != "left" && n.State != "silent" {
			living[n.Name] = true
		}
	}
	ended := map[string]bool{}
	slices.SortFunc(all, func(a, b witness.Node) int { return cmp.Compare(b.Row, a.Row) }) // the newest first
	all = slices.DeleteFunc(all, func(n witness.Node) bool {
		if n.State == "left" {
			return true
		}
		if n.State != "silent" {
			return false
		}
		// Of the starts of a node that fell silent, the last one tells enough.
		old := living[n.Name] || ended[n.Name]
		ended[n.Name] = true
		return old
	})
	slices.SortStableFunc(all, func(a, b witness.Node) int {
		return cmp.Or(cmp.Compare(Weight(a), Weight(b)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Weight orders rows, the most important first.
func Weight(n witness.Node) int {
	switch {
	case n.State == "missing":
		return 0
	case n.Self:
		return 1
	case n.State == "left":
		return 5
	case n.State == "silent":
		return 4
	case n.Seen == 0: // nobody has seen it beat since this process started
		return 3
	}
	return 2
}

// An Answer is what one node said.
type Answer[T any] struct {
	witness.Node
	Said T
	Err  error         // why it said nothing
	Trip time.Duration // how long the question took
	At   time.Time     // when it was asked
}

// Ask asks nodes one question all at once, and returns an answer for each. This node's row gets an
// empty one.
func Ask[T any](ctx context.Context, f *Fleet, rows []witness.Node, about string, q url.Values) []Answer[T] {
	// The console keeps the answers for other pages, too, when the one that asked is left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	values := url.Values{"about": {about}}
	maps.Copy(values, q)
	query := values.Encode()
	all := make([]Answer[T], len(rows))
	var asking sync.WaitGroup
	for i, row := range rows {
		all[i].Node = row
		if row.Self {
			continue
		}
		asking.Go(func() {
			a := &all[i]
			a.At = time.Now()
			body, err := f.ask(ctx, row.Address, query)
			a.Trip = time.Since(a.At)
			if err == nil && json.Unmarshal(body, &a.Said) != nil {
				err = fmt.Errorf("what answers at %s is not a node, or one of an earlier build", row.Address)
			}
			a.Err = err
		})
	}
	asking.Wait()
	return all
}

// ask asks the node at an address.
func (f *Fleet) ask(ctx context.Context, address, query string) ([]byte, error) {
	if err := f.mayAsk(address); err != nil {
		return nil, err
	}
	scheme := "http://"
	if f.opts.TLS != nil {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+Path+"?"+query, nil)
	if err != nil {
		return nil, errors.New("its row has no address that can be asked")
	}
	asked := question{address, rand.Text(), query}
	if len(f.key) > 0 {
		req.Header.Set(Header, f.key.proof(asked))
	}
	res, err := f.web.Do(req)
	if err != nil {
		return nil, fmt.Errorf("it does not answer at %s: %s", address, short(err))
	}
	defer func() { _ = res.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case len(body) > MaxAnswer:
		return nil, fmt.Errorf("its answer at %s has more than %d bytes", address, MaxAnswer)
	case err != nil:
		return nil, fmt.Errorf("it does not answer at %s: %s", address, short(err))
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("it does not let this node see it: give both the same fleet_key, and %s as its advertise", address)
	case res.StatusCode == http.StatusNotImplemented:
		return nil, ErrNothing
	case res.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("what answers at %s is not a node, or one of an earlier build", address)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answers %d at %s", res.StatusCode, address)
	}
	if len(f.key) == 0 {
		return body, nil
	}
	// Until it has shown the key, nothing that it says is used.
	if f.opts.TLS != nil {
		err = f.key.shown(asked, body, res.Header.Get(Header))
	} else {
		body, err = f.key.open(asked, body)
	}
	if err != nil {
		return nil, fmt.Errorf("what answers at %s does not have the same fleet_key", address)
	}
	return body, nil
}

// ErrNothing is the error of a node's answer if the node has no Teller for the question.
var ErrNothing = errors.New("it has nothing to say about that")

// mayAsk checks an address that stands in the store.
func (f *Fleet) mayAsk(address string) error {
	host, port, err := net.SplitHostPort(address)
	// It becomes a part of a URL, and anybody who may write rows has chosen it.
	if err != nil || host == "" || port == "" || strings.ContainsAny(address, "/?#@\\ ") {
		return fmt.Errorf("its row has no address that can be asked; set advertise there")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return f.mayReach(ip)
	}
	if !f.isOpen() && host != "localhost" {
		return errFar
	}
	return nil
}

var errFar = errors.New("it was not asked: nodes on other machines see each other with a fleet_key, or over TLS")

// isOpen reports whether nodes beyond loopback are asked.
func (f *Fleet) isOpen() bool { return len(f.key) > 0 || f.opts.TLS != nil }

// mayReach checks where a question goes. A cloud's metadata, which is for this machine
// alone, is on the link.
func (f *Fleet) mayReach(ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return nil
	case !f.isOpen():
		return errFar
	case ip.IsLinkLocalUnicast(), ip.IsMulticast(), ip.IsUnspecified(), ip == metadataIPv6, ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("it was not asked: no node has the address %s", ip)
	}
	return nil
}

// metadataIPv6 is where a cloud tells a machine its secrets, beside the link.
var metadataIPv6 = netip.MustParseAddr("fd00:ec2::254")

// mayDial is mayReach for the address of a name.
func (f *Fleet) mayDial(_, address string, _ syscall.RawConn) error {
	// A name may lead elsewhere at each look-up: the address that is dialled counts.
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return f.mayReach(at.Addr())
}

// short returns the cause of an error of the network, which names address and URL over
// and over.
func short(err error) string {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// called returns the name of a node for operators.
func called(n witness.Node) string { return cmp.Or(n.Name, n.Address, n.Row) }

// message returns what an operator may know of an error.
func message(err error) string {
	if err == nil {
		return ""
	}
	return hapax.Message(err)
}
