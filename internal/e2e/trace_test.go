package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
)

// traced is what a test looks at of the answer of hapax trace --json.
type traced struct {
	Lines []struct {
		Line    string
		Verdict string
		Why     string
		Grants  []struct {
			Node, Caller, Given string
			Lo, Hi              int64 `json:",string"`
			Time                time.Time
		}
		Issued []struct {
			Caller, Address string
			First, Last     hapax.ID
			From, Until     time.Time
		}
	}
	Nodes []struct{ Node string }
}

// A sighting is what a test knows of a number that it was given.
type sighting struct {
	tag, caller, node string
	from, until       time.Time
}

// A tracing test has nodes over one store, with a history and tokens.
type tracing struct {
	t      *testing.T
	dir    string
	tokens map[string]string
	seen   map[string]sighting // by tag and number
}

func newTracing(t *testing.T, config string) *tracing {
	tr := &tracing{t: t, dir: t.TempDir(), tokens: map[string]string{}, seen: map[string]sighting{}}
	var tokens strings.Builder
	for name, scopes := range map[string]string{"web": "[issue]", "batch": "[issue]", "sdk": "[lease]", "boss": "[admin]"} {
		token, hash := newToken(t)
		tr.tokens[name] = token
		fmt.Fprintf(&tokens, "  %s: {hash: \"%s\", scopes: %s}\n", name, hash, scopes)
	}
	text := config + "\ntokens:\n" + tokens.String() + "tags: {orders: {step: 1000, max_step: 1000}}\n"
	if err := os.WriteFile(filepath.Join(tr.dir, "hapax.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr *tracing) start(data, store string) *serving {
	return serve(tr.t, tr.dir, nil, "--config", "hapax.yaml", "--data", data, "--store", store, "--max-wait", "10s")
}

// note remembers the callers for which the test took numbers.
func (tr *tracing) note(s sighting, ids []hapax.ID) {
	tr.t.Helper()
	for _, id := range ids {
		key := s.tag + " " + id.String()
		if _, again := tr.seen[key]; again {
			tr.t.Fatalf("%s was issued twice", key)
		}
		tr.seen[key] = s
	}
}

// web takes numbers over HTTP, and batch over the Redis protocol.
func (tr *tracing) web(s *serving, node, tag string, n int) (ids []hapax.ID) {
	tr.t.Helper()
	from := time.Now()
	client := &http.Client{Transport: bearer(tr.tokens["web"])}
	ids, err := take(client, s.url, tag, n)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.note(sighting{tag, "web", node, from, time.Now()}, ids)
	return ids
}

func (tr *tracing) batch(s *serving, node, tag string, n int) (ids []hapax.ID) {
	tr.t.Helper()
	from := time.Now()
	r := redis.NewClient(&redis.Options{Addr: s.addresses().RESP, Password: tr.tokens["batch"], Protocol: 2, DisableIdentity: true})
	defer r.Close()
	for range n {
		id, err := r.Incr(tr.t.Context(), tag).Result()
		if err != nil {
			tr.t.Fatal(err)
		}
		ids = append(ids, hapax.ID(id))
	}
	tr.note(sighting{tag, "batch", node, from, time.Now()}, ids)
	return ids
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// trace asks nodes about a number.
func (tr *tracing) trace(tag string, id hapax.ID, nodes ...string) traced {
	tr.t.Helper()
	r := runWith(tr.t, tr.dir, "", []string{"HAPAX_TOKEN=" + tr.tokens["boss"]}, append([]string{"trace", id.String(), "--tag", tag, "--json"}, nodes...)...)
	var found traced
	if r.code != 0 || json.Unmarshal([]byte(r.out), &found) != nil || len(found.Lines) != 1 {
		tr.t.Fatalf("tracing %d of %s: exit code %d, %s%s", id, tag, r.code, r.out, r.err)
	}
	return found
}

// check holds what the nodes say of a number against what the test saw.
func (tr *tracing) check(tag string, id hapax.ID, nodes ...string) {
	tr.t.Helper()
	want, ok := tr.seen[tag+" "+id.String()]
	if !ok {
		tr.t.Fatalf("%d of %s was never seen", id, tag)
	}
	l := tr.trace(tag, id, nodes...).Lines[0]
	bad := func(format string, args ...any) {
		tr.t.Errorf("%d of %s, which %s got of node %s: %s\n%+v", id, tag, want.caller, want.node, fmt.Sprintf(format, args...), l)
	}
	if l.Verdict != "issued" || len(l.Issued) != 1 {
		bad("the verdict is %s, because %s", l.Verdict, l.Why)
		return
	}
	i := l.Issued[0]
	if i.Caller != want.caller || !strings.HasPrefix(i.Address, "127.0.0.1:") || i.First > id || i.Last < id {
		bad("issued to %s at %s", i.Caller, i.Address)
	}
	if i.From.Before(want.from.Truncate(time.Millisecond)) || i.Until.After(want.until) {
		bad("issued between %v and %v, and taken between %v and %v", i.From, i.Until, want.from, want.until)
	}
	var held []string
	for _, g := range l.Grants {
		if g.Given == "" {
			held = append(held, g.Node)
		}
	}
	if len(held) != 1 || !strings.HasSuffix(held[0], "/"+want.node) {
		bad("granted to %q", held)
	}
}

// sample returns some of the numbers, the first and the last among them.
func sample(ids []hapax.ID) []hapax.ID {
	return []hapax.ID{ids[0], ids[len(ids)/2], ids[len(ids)-1]}
}

// What trace says of numbers is what the test knows of them, after kill -9, restarts
// and hand-backs.
func TestTrace(t *testing.T) {
	t.Parallel()
	for _, store := range sharedStores {
		if store.name == "redis" || store.name == "mariadb" || patience.Soaking() {
			t.Run(store.name, func(t *testing.T) { t.Parallel(); testTrace(t, store.start(t).URL) })
		}
	}
}

func testTrace(t *testing.T, store string) {
	tr := newTracing(t, "plugins: {who: {kind: history, sync: true}}")
	a := tr.start("a", store)
	b := tr.start("b", store)
	onA := tr.web(a, "a", "orders", 300)
	onA = append(onA, tr.batch(a, "a", "orders", 5)...)
	times := append(tr.web(a, "a", "snowflake", 20), tr.batch(b, "b", "snowflake", 2)...)
	burnt := onA[len(onA)-1] + 1
	a.kill()
	a = tr.start("a", store)
	onA = append(onA, tr.web(a, "a", "orders", 10)...)
	onA = append(onA, tr.batch(a, "a", "orders", 2)...)
	times = append(times, tr.web(a, "a", "snowflake", 3)...)

	leased := leaseAndReturn(t, a.url, tr.tokens["sdk"])

	last := onA[len(onA)-1]
	if code := a.stop(); code != 0 {
		t.Fatalf("exit code %d: %s", code, a.logged())
	}
	onB := append(tr.web(b, "b", "orders", 7), tr.batch(b, "b", "orders", 3)...)
	if leased[0] < onB[0] {
		t.Logf("leased %v, then b was granted %d", leased, onB[0]) // b goes on where the lease was handed back
	}

	nodes := []string{"--data", "a", "--server", b.url}
	for _, id := range append(append(sample(onA[:305]), sample(onA[305:])...), sample(onB)...) {
		tr.check("orders", id, nodes...)
	}
	for _, id := range append(sample(times), times[20], times[22]) {
		tr.check("snowflake", id, nodes...)
	}
	says := func(id hapax.ID, verdict, why string, nodes ...string) {
		t.Helper()
		l := tr.trace("orders", id, nodes...).Lines[0]
		if l.Verdict != verdict || !strings.Contains(l.Why, why) {
			t.Errorf("%d: %+v, want %s because %q", id, l, verdict, why)
		}
	}
	says(burnt, "granted", "the history does not have it", nodes...)
	says(leased[0], "granted", `leased to token "sdk" at 127.0.0.1:`, nodes...)
	says(last, "elsewhere", "another node was granted it", "--server", b.url)
	says(onB[len(onB)-1]+5000, "never_granted", "at or above the store's mark", nodes...)
	says(0, "never_granted", "begins at 1", "--server", b.url)
	says(onB[0], "handed_back", "without being issued", "--data", "a") // what a knows alone

	if code := b.stop(); code != 0 {
		t.Fatalf("exit code %d: %s", code, b.logged())
	}
	rest := onB[len(onB)-1] + 1
	says(rest, "handed_back", "what became of it then is not known here", "--data", "a", "--data", "b")
	b = tr.start("b", store)
	says(rest, "handed_back", "nobody was granted it since", "--data", "a", "--server", b.url)

	var dump strings.Builder
	for _, id := range append(append(append([]hapax.ID{}, onA...), onB...), leased...) {
		fmt.Fprintln(&dump, id)
	}
	audit := func(in string) result {
		return runWith(t, tr.dir, in, nil, "audit", "--grants", "a", "--grants", "b", "--tag", "orders", "-")
	}
	if r := audit(dump.String()); r.code != 0 || !strings.Contains(r.out, "outside every grant\t0\n") {
		t.Errorf("the audit: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := audit(dump.String() + rest.String() + "\n"); r.code != 1 || !strings.Contains(r.out, "outside\t"+rest.String()+"\t") {
		t.Errorf("the audit with a number that was handed back: exit code %d\n%s%s", r.code, r.out, r.err)
	}
}

// leaseAndReturn takes a few numbers from a lease, and gives the rest back.
func leaseAndReturn(t *testing.T, url, token string) (ids []hapax.ID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	c, err := sdk.Dial(ctx, sdk.Options{Token: token}, url)
	if err != nil {
		t.Fatal(err)
	}
	segment, err := c.Segment(ctx, "orders", hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		id, err := segment.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// A node alone answers for its numbers, too, and only administrators are answered.
func TestTraceAlone(t *testing.T) {
	t.Parallel()
	tr := newTracing(t, "plugins: {who: {kind: history}}")
	s := tr.start("a", "bolt:")
	ids := tr.web(s, "a", "orders", 10)
	for _, id := range sample(ids) {
		tr.check("orders", id, "--data", "a")
	}
	for name, want := range map[string]int{"boss": http.StatusOK, "web": http.StatusForbidden, "sdk": http.StatusForbidden} {
		if status, code := request(t, http.DefaultClient, http.MethodGet, s.url+"/v1/trace/1?tag=orders", "Authorization: Bearer "+tr.tokens[name]); status != want {
			t.Errorf("%s: %d %s", name, status, code)
		}
	}
}

// A ledger that cannot be opened stops a server only where it is required.
func TestLedgerThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "ledger"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--data", "a")
	s.await("the ledger of grants cannot be opened")
	mustTake(t, s, "orders", 1)
	if status, code := request(t, http.DefaultClient, http.MethodGet, s.url+"/v1/trace/1"); status != http.StatusNotImplemented {
		t.Errorf("without a ledger: %d %s", status, code)
	}
	s.stop()
	r := run(t, dir, "serve", "--data", "a", "--http", "127.0.0.1:0", "--ledger", "required")
	if r.code != 1 || !strings.Contains(r.err, "the ledger of grants cannot be written") {
		t.Errorf("required: exit code %d, %s", r.code, r.err)
	}
}
