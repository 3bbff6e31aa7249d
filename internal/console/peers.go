package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/witness"
)

// Limits on asking other nodes.
const (
	askTimeout  = 700 * time.Millisecond
	askAgain    = time.Second // after which an answer is old
	maxPeers    = 64          // that are asked and shown
	maxCalled   = 80          // runes of a name that are shown
	maxAnswer   = 2 << 20
	silentAfter = 5 * time.Second // without a heartbeat
)

// peers asks the other nodes of the store for their facts. Their addresses come from the
// store, where anybody may have written who can write there. So nothing that is sent to
// one is of use to it: no token of anybody ever, and of the fleet key only a code of
// the one address and a random word. An answer to that is sealed under both, so that it
// can only come from who has the key, and only be read by who asked. Where there is no
// key, others are asked whose address is on loopback; over TLS all are, by the
// certificate with which they and this node show who they are.
type peers struct {
	key  []byte
	self string
	web  *http.Client
	tls  bool

	mu   sync.Mutex // guards the fields below
	last []nodeView
	more int // rows that are neither asked nor shown
	at   time.Time
}

func newPeers(o Options) *peers {
	p := &peers{key: o.FleetKey, self: o.Address, tls: o.TLS != nil}
	dialer := &net.Dialer{Timeout: askTimeout, Control: p.mayDial}
	transport := &http.Transport{
		DialContext:           dialer.DialContext,
		ResponseHeaderTimeout: askTimeout, MaxConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, MaxResponseHeaderBytes: 16 << 10,
	}
	if o.TLS != nil {
		transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) { // the certificates may have changed
			return (&tls.Dialer{NetDialer: dialer, Config: o.TLS()}).DialContext(ctx, network, addr)
		}
	}
	p.web = &http.Client{
		Transport: transport, Timeout: askTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// A nodeView is a node as pages show it.
type nodeView struct {
	witness.Node
	Facts *facts        // nil: it did not answer
	Alive bool          // its facts are there, or its heartbeat is
	Trip  time.Duration // how long the question took
	Off   time.Duration // its clock less ours
	Err   string        // why there are no facts
}

// Says returns the state of a node in one word, or a few.
func (n nodeView) Says() string {
	switch {
	case n.Facts != nil && n.Facts.Readiness.Leaving:
		return "leaving"
	case n.Facts != nil:
		return n.Facts.Readiness.State
	case n.State == "missing":
		return "missing"
	case !n.Alive:
		return "dead"
	}
	return n.State + ", not heard"
}

// Class returns how bad a node's state is: good, warn or bad.
func (n nodeView) Class() string {
	switch {
	case n.Facts == nil && n.Alive:
		return "warn"
	case n.Facts == nil, !n.Facts.Readiness.Ready:
		return "bad"
	case n.Facts.Readiness.Degraded || n.Facts.Code != "":
		return "warn"
	}
	return "good"
}

// Called returns a name to show.
func (n nodeView) Called() string { return shown(cmp.Or(n.Name, n.Address, n.Row)) }

// shown returns a text as a page can hold it: whoever writes a row chooses its length.
func shown(text string) string {
	if runes := []rune(text); len(runes) > maxCalled {
		return string(runes[:maxCalled/2]) + "…" + string(runes[len(runes)-maxCalled/2:])
	}
	return text
}

// nodes returns this node, first, and the others, and how many more there are.
func (c *Console) nodes(ctx context.Context) (all []nodeView, more int) {
	own := c.own(ctx)
	self := nodeView{Node: witness.Node{Name: own.Name, Address: own.Address, Self: true, State: own.Readiness.State}, Facts: &own, Alive: true}
	g := c.svc.Guard()
	if g == nil {
		return []nodeView{self}, 0
	}
	p := c.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= askAgain {
		rows := c.rowsLocked(ctx, g)
		p.more = max(0, len(rows)-maxPeers)
		p.askLocked(ctx, rows[:len(rows)-p.more])
	}
	all = []nodeView{self}
	for _, n := range p.last {
		if n.Self {
			all[0].Row, all[0].Beats, all[0].Grants = n.Row, n.Beats, n.Grants
			continue
		}
		all = append(all, n)
	}
	return all, p.more
}

// rowsLocked returns the rows of the store that are worth to show, first those that live
// or are missed; of a store that does not answer those that were seen last. The caller
// holds the lock of c.peers.
func (c *Console) rowsLocked(ctx context.Context, g *witness.Guarded) []witness.Node {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	all, err := g.Nodes(ctx)
	if err != nil {
		for _, n := range c.peers.last {
			all = append(all, n.Node)
		}
	}
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
		old := living[n.Name] || ended[n.Name]
		ended[n.Name] = true
		return old
	})
	slices.SortStableFunc(all, func(a, b witness.Node) int {
		return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// askLocked asks nodes all at once.
func (p *peers) askLocked(ctx context.Context, rows []witness.Node) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	all := make([]nodeView, len(rows))
	var asking sync.WaitGroup
	for i, row := range rows {
		all[i].Node = row
		if row.Self {
			continue
		}
		asking.Go(func() {
			began := time.Now()
			f, err := ask[facts](ctx, p, row.Address, "")
			all[i].Trip = time.Since(began)
			all[i].Alive = err == nil || row.Seen > 0 && row.Seen < silentAfter && row.State != "silent"
			if err != nil {
				all[i].Err = hapax.Message(err)
				return
			}
			all[i].Facts, all[i].Off = &f, f.Now.Sub(began.Add(all[i].Trip/2))
		})
	}
	asking.Wait()
	p.last, p.at = all, time.Now()
}

// mayAsk checks an address that stands in the store.
func (p *peers) mayAsk(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" || strings.ContainsAny(address, "/?#@\\ ") {
		return fmt.Errorf("its row has no address that can be asked; set advertise there")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return p.mayReach(ip)
	}
	if !p.isOpen() && host != "localhost" {
		return errFar
	}
	return nil
}

var errFar = errors.New("it was not asked: nodes on other machines see each other with a fleet_key, or over TLS")

// isOpen reports whether nodes beyond loopback are asked.
func (p *peers) isOpen() bool { return len(p.key) > 0 || p.tls }

// mayReach checks where a question goes. A cloud's metadata, which is for this machine
// alone, is on the link.
func (p *peers) mayReach(ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return nil
	case !p.isOpen():
		return errFar
	case ip.IsLinkLocalUnicast(), ip.IsMulticast(), ip.IsUnspecified(), ip == metadataIPv6, ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("it was not asked: no node has the address %s", ip)
	}
	return nil
}

// metadataIPv6 is where a cloud tells a machine its secrets, beside the link.
var metadataIPv6 = netip.MustParseAddr("fd00:ec2::254")

// mayDial is mayReach for the address of a name.
func (p *peers) mayDial(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return p.mayReach(at.Addr())
}

const fleetHeader = "Hapax-Fleet"

// sum returns a code of the parts under the fleet key.
func (p *peers) sum(parts ...string) []byte {
	h := hmac.New(sha256.New, p.key)
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return h.Sum(nil)
}

// seal returns the cipher of the answer to a question.
func (p *peers) seal(address, word string) (cipher.AEAD, error) {
	block, err := aes.NewCipher(p.sum("answer", address, word))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// ask asks a node one thing: its facts, or with a query what that says.
func ask[T any](ctx context.Context, p *peers, address, query string) (answer T, err error) {
	if err := p.mayAsk(address); err != nil {
		return answer, err
	}
	scheme := "http://"
	if p.tls {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+Prefix+"peer?"+query, nil)
	if err != nil {
		return answer, errors.New("its row has no address that can be asked")
	}
	word := rand.Text()
	if len(p.key) > 0 {
		req.Header.Set(fleetHeader, word+"."+base64.RawURLEncoding.EncodeToString(p.sum("ask", address, word, query)))
	}
	res, err := p.web.Do(req)
	if err != nil {
		return answer, fmt.Errorf("it does not answer at %s: %s", address, short(err))
	}
	defer func() { _ = res.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return answer, fmt.Errorf("it does not answer at %s: %s", address, short(err))
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return answer, fmt.Errorf("it does not let this node see it: give both the same fleet_key, and %s as its advertise", address)
	case res.StatusCode == http.StatusNotFound:
		return answer, fmt.Errorf("it serves no console there, at %s", address)
	case res.StatusCode != http.StatusOK:
		return answer, fmt.Errorf("it answers %d at %s", res.StatusCode, address)
	}
	if len(p.key) > 0 {
		aead, err := p.seal(address, word)
		if err == nil {
			body, err = aead.Open(nil, nil, body, nil)
		}
		if err != nil {
			return answer, fmt.Errorf("what answers at %s does not have the same fleet_key", address)
		}
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("what answers at %s is not a node of this version", address)
	}
	return answer, nil
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

// tellPeer answers another node, or whoever may see the console.
func (c *Console) tellPeer(w http.ResponseWriter, r *http.Request) {
	word, code, _ := strings.Cut(r.Header.Get(fleetHeader), ".")
	sealed := word != "" && len(c.peers.key) > 0
	if sealed {
		mac, err := base64.RawURLEncoding.DecodeString(code)
		if err != nil || !hmac.Equal(mac, c.peers.sum("ask", c.opts.Address, word, r.URL.RawQuery)) {
			http.Error(w, "another fleet key, or another address than this node's", http.StatusForbidden)
			return
		}
	} else {
		v, done, err := c.admit(r)
		if err == nil {
			defer done()
			err = v.caller.Allow(auth.Watch, "")
		}
		if err != nil {
			http.Error(w, messageOf(err), statusOf(err))
			return
		}
	}
	var answer any = c.own(r.Context())
	if q := r.URL.Query(); q.Get("trace") != "" {
		t, err := c.svc.Trace(r.Context(), traceOf(q))
		if err != nil {
			http.Error(w, messageOf(err), statusOf(err))
			return
		}
		answer = t
	}
	body, err := json.Marshal(answer)
	if err == nil && sealed {
		var aead cipher.AEAD
		if aead, err = c.peers.seal(c.opts.Address, word); err == nil {
			body = aead.Seal(nil, nil, body, nil) //nolint:gosec // it makes its own nonce
		}
	}
	if err != nil {
		http.Error(w, "an internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // an error means that the client has disconnected
}

// traces asks all nodes for a number, this one first.
func (c *Console) traces(ctx context.Context, req service.TraceRequest) (all []traced) {
	own, err := c.svc.Trace(ctx, req)
	first := traced{Node: c.opts.Name, Trace: own}
	if err != nil {
		first.Err = messageOf(err)
	}
	all = append(all, first)
	nodes, _ := c.nodes(ctx)
	others := nodes[1:]
	more := make([]traced, len(others))
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for i, n := range others {
		more[i].Node = n.Called()
		asking.Go(func() {
			t, err := ask[api.Trace](ctx, c.peers, n.Address, queryOf(req).Encode())
			if more[i].Trace = t; err != nil {
				more[i].Err = messageOf(err)
			}
		})
	}
	asking.Wait()
	return append(all, more...)
}

// A traced is what one node knows of a number.
type traced struct {
	Node string
	api.Trace
	Err string
}
