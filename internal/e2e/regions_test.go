package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	sdk "github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// regionTags are the tags that two regions share: counted, shown as codes, and begun anew each year.
var regionTags = []string{"orders", "coupons", "invoices"}

// regionConfig has every other number issued: those of one region of two.
func regionConfig(region int, tinyid string) string {
	numbers := fmt.Sprintf("step: 20, max_step: 100, delta: 2, remainder: %d", region)
	return fmt.Sprintf("tags:\n  orders: {%s}\n  coupons: {%s, code: 'C{id:8}{check}'}\n  invoices: {%s, code: '{yyyy}-{seq:8}', zone: UTC}\n", numbers, numbers, numbers) +
		fmt.Sprintf("compat: {tinyid: {http: %q, tokens: {orders: ['sha256:%x']}}}\n", tinyid, sha256.Sum256([]byte(tinyidToken)))
}

// A region is a server on a store of its own, and all that speaks to it.
type region struct {
	t            *testing.T
	index        int
	dir, data    string // data lies in dir
	config       string // a file
	tinyid, year string

	server *serving
	client *sdk.Client
	redis  *redis.Client
	rpc    map[string]hapaxv1connect.IssueServiceClient

	mu     sync.Mutex // guards ids and leased
	ids    map[string][]hapax.ID
	leased map[string]*sdk.Segment
}

func newRegion(t *testing.T, index int) *region {
	r := &region{
		t: t, index: index, dir: t.TempDir(), data: "d", tinyid: freeAddress(t),
		year: time.Now().UTC().Format("2006"), ids: map[string][]hapax.ID{},
	}
	r.config = filepath.Join(r.dir, "hapax.yaml")
	if err := os.WriteFile(r.config, []byte(regionConfig(index, r.tinyid)), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// start starts the server and connects all clients to it.
func (r *region) start(ctx context.Context) {
	r.t.Helper()
	t := r.t
	r.server = serve(t, r.dir, nil, "--config", r.config, "--data", r.data)
	var err error
	if r.client, err = sdk.Dial(ctx, sdk.Options{Timeout: patience.Call}, r.server.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	r.redis = redis.NewClient(&redis.Options{Addr: r.server.respAddress(), MaxRetries: -1})
	t.Cleanup(func() { _ = r.redis.Close() })
	plain := &http.Transport{Protocols: new(http.Protocols)}
	plain.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(plain.CloseIdleConnections)
	r.rpc = map[string]hapaxv1connect.IssueServiceClient{
		"gRPC":     hapaxv1connect.NewIssueServiceClient(&http.Client{Transport: plain}, r.server.url, connect.WithGRPC()),
		"gRPC-Web": hapaxv1connect.NewIssueServiceClient(http.DefaultClient, r.server.url, connect.WithGRPCWeb()),
		"Connect":  hapaxv1connect.NewIssueServiceClient(http.DefaultClient, r.server.url, connect.WithProtoJSON()),
	}
	r.leased = map[string]*sdk.Segment{}
}

// segment returns the client's issuer of leased numbers.
func (r *region) segment(ctx context.Context, tag string) (*sdk.Segment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leased[tag] != nil {
		return r.leased[tag], nil
	}
	segment, err := r.client.Segment(ctx, tag, hapax.SegmentOptions{})
	if err == nil {
		r.leased[tag] = segment
	}
	return segment, err
}

// command returns what a command prints.
func (r *region) command(args ...string) (string, error) {
	res := run(r.t, r.dir, args...)
	if res.code != 0 {
		return res.out, errors.New(res.err)
	}
	return res.out, nil
}

// next returns the numbers that hapax next prints.
func (r *region) next(args ...string) ([]hapax.ID, error) {
	out, err := r.command(append([]string{"next"}, args...)...)
	if err != nil {
		return nil, err
	}
	return numbers(out)
}

// parsed returns the numbers of codes.
func (r *region) parsed(ctx context.Context, tag string, texts []string) (ids []hapax.ID, err error) {
	for _, text := range texts {
		p, err := r.client.ParseCode(ctx, tag, text)
		if err != nil {
			return ids, err
		}
		ids = append(ids, p.ID)
	}
	return ids, nil
}

// fetch returns the body of an answer over HTTP.
func (r *region) fetch(method, url, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := patient.Do(req)
	if err != nil {
		return nil, err
	}
	return answer(res)
}

// take leases or takes numbers by what the clients in other languages send, and hands half back.
func (r *region) take(tag, body string) ([]hapax.ID, error) {
	text, err := r.fetch(http.MethodPost, r.server.url+"/v1/tags/"+tag+"/take", body)
	var taken struct {
		Count        int
		First, Delta hapax.ID
		IDs          []hapax.ID
		Receipt      string
		Returnable   int64
	}
	if err == nil {
		err = json.Unmarshal(text, &taken)
	}
	if err != nil {
		return nil, err
	}
	ids := taken.IDs
	for i := len(ids); i < taken.Count; i++ {
		ids = append(ids, taken.First+hapax.ID(i)*taken.Delta)
	}
	if back := taken.Returnable / 2; back > 0 {
		ids = ids[:len(ids)-int(back)]
		_, err = r.fetch(http.MethodPost, r.server.url+"/v1/tags/"+tag+"/handback", fmt.Sprintf(`{"receipt": %q, "unused": %d}`, taken.Receipt, back))
		if refused(err) == hapax.ErrLeaseLost.Code() { // the next lease was given meanwhile
			err = nil
		}
	}
	return ids, err
}

// numbers reads one number in each field.
func numbers(text string) (ids []hapax.ID, err error) {
	for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune("\n ,", r) }) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, err
		}
		ids = append(ids, hapax.ID(n))
	}
	return ids, nil
}

func ids64(ids []int64) (all []hapax.ID) {
	for _, id := range ids {
		all = append(all, hapax.ID(id))
	}
	return all
}

// note takes numbers by a way, and checks that they are the region's.
func (r *region) note(ctx context.Context, w way) {
	ids, err := w.take(ctx, r)
	if err != nil {
		r.t.Errorf("%s of %s in region %d: %v", w.name, w.tag, r.index, err)
	}
	if i := slices.IndexFunc(ids, func(id hapax.ID) bool { return id < 1 || int(id%2) != r.index }); i >= 0 {
		r.t.Errorf("%s of %s in region %d: %v: %d is no number of this region", w.name, w.tag, r.index, ids, ids[i])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[w.tag] = append(r.ids[w.tag], ids...)
}

// all takes numbers by every way through the server, so many times and at the same time.
func (r *region) all(ctx context.Context, rounds int) {
	var wg sync.WaitGroup
	for _, w := range servedWays() {
		wg.Go(func() {
			for range rounds {
				r.note(ctx, w)
			}
		})
	}
	wg.Wait()
}

// stop hands back what the clients have left, and ends the server.
func (r *region) stop() {
	r.t.Helper()
	if err := r.client.Close(); err != nil {
		r.t.Error(err)
	}
	if code := r.server.stop(); code != 0 {
		r.t.Errorf("exit code %d: %s", code, r.server.logged())
	}
}

// keptApart fails the test where a number came twice, in whichever regions.
func keptApart(t *testing.T, regions ...*region) {
	t.Helper()
	for _, tag := range regionTags {
		var all []hapax.ID
		for _, r := range regions {
			if len(r.ids[tag]) == 0 {
				t.Errorf("region %d: no numbers of %s", r.index, tag)
			}
			all = append(all, r.ids[tag]...)
		}
		distinct(t, tag, all)
	}
}

// Two regions with stores of their own share tags by delta and remainder: by no way are two callers
// given the same number, whichever regions they are in.
func TestRegionsByEveryWay(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience.Long)
	defer cancel()
	regions := []*region{newRegion(t, 0), newRegion(t, 1)}
	var wg sync.WaitGroup
	for _, r := range regions {
		r.start(ctx)
		wg.Go(func() { r.all(ctx, 3) })
	}
	wg.Wait()
	for _, r := range regions {
		r.stop()
		for _, w := range storedWays() {
			r.note(ctx, w)
		}
	}
	keptApart(t, regions...)
}

// A region whose store has the tags with the numbers of another one issues none of them by any way,
// and says what is stored and what is configured.
func TestRegionThatIsStoredOtherwise(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience.Long)
	defer cancel()
	r := newRegion(t, 1)
	for _, tag := range regionTags { // as a command makes them that is given neither delta nor code
		args := []string{"tags", "create", tag, "--data", r.data}
		switch tag {
		case "coupons":
			args = append(args, "--code", "C{id:8}{check}")
		case "invoices":
			args = append(args, "--code", "{yyyy}-{seq:8}", "--zone", "UTC")
		}
		ok(t, r.dir, args...)
		ok(t, r.dir, "next", tag, "--data", r.data)
	}
	refused := func(w way) {
		ids, err := w.take(ctx, r)
		ids = slices.DeleteFunc(ids, func(id hapax.ID) bool { return id == 0 }) // beside an error
		said := strings.ReplaceAll(fmt.Sprint(err), `\`, "")                    // of JSON
		named := strings.Contains(said, `tag "`+w.tag) &&                       // or the line of its period
			strings.Contains(said, "has delta 1 and remainder 0 in the store, which cannot change, and delta 2 and remainder 1 in the configuration")
		if strings.HasPrefix(w.name, "TinyID") { // whose routes have no words for it, and answer with nothing
			named = true
		}
		if len(ids) > 0 || !named {
			t.Errorf("%s of %s: %v, %v; want it refused", w.name, w.tag, ids, err)
		}
	}
	r.start(ctx)
	var wg sync.WaitGroup
	for _, w := range servedWays() {
		wg.Go(func() { refused(w) })
	}
	wg.Wait()
	r.stop()
	for _, w := range storedWays() {
		if strings.HasSuffix(w.name, "configured") {
			refused(w)
		}
	}
}

// A copy of a region that is adopted, and then loses its store, issues numbers of the region only,
// and none of those that the original went on to issue within the margin.
func TestRegionIsAdopted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience.Long)
	defer cancel()
	r := newRegion(t, 1)
	r.start(ctx)
	r.all(ctx, 1)
	r.stop()
	if err := os.CopyFS(filepath.Join(r.dir, "copy"), os.DirFS(filepath.Join(r.dir, r.data))); err != nil {
		t.Fatal(err)
	}
	const margin, batch = 500, 100
	for _, tag := range regionTags {
		for range margin / batch {
			r.note(ctx, way{"the original", tag, func(context.Context, *region) ([]hapax.ID, error) {
				return r.next(tag, "-n", fmt.Sprint(batch), "--data", r.data, "--config", r.config)
			}})
		}
	}
	r.data = "copy"
	if _, err := r.command("adopt", "--data", r.data, "--margin", fmt.Sprint(margin), "--yes"); err != nil {
		t.Fatal(err)
	}
	r.start(ctx)
	r.all(ctx, 1)
	r.stop()
	for _, w := range storedWays() {
		r.note(ctx, w)
	}
	// A floor is stated without regard to whose number it is.
	if _, err := r.command("tags", "set", "orders", "--floor", "100000", "--data", r.data); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.dir, r.data, "hapax.db")); err != nil {
		t.Fatal(err)
	}
	r.start(ctx)
	r.all(ctx, 1)
	r.stop()
	for _, w := range storedWays() {
		r.note(ctx, w)
	}
	keptApart(t, r)
}

// A region's shared store went back while a node that can know is missing: a floor is stated for it,
// without regard to whose number that is, and every number is the region's all the same.
func TestRegionIsAdoptedWithAFloor(t *testing.T) {
	t.Parallel()
	const floor = 1_000_000 // the other region's
	store := testservers.Redis(t)
	store.MustControl()
	f := &crew{t: t, dir: t.TempDir(), nodes: map[string]*serving{}}
	f.args = []string{"--store", store.URL, "--max-wait", "10s", "--tags", "{orders: {step: 1000, max_step: 1000, delta: 2, remainder: 1}}"}
	for _, name := range []string{"a", "b"} {
		f.start(name)
		f.ids = append(f.ids, takeSoon(t, f.nodes[name], "orders", 100)...)
	}
	store.Stop()
	backup := filepath.Join(t.TempDir(), "copy")
	copyData(t, store.Dir, backup)
	store.Start()
	for _, name := range []string{"a", "b"} {
		f.ids = append(f.ids, takeSoon(t, f.nodes[name], "orders", 3000)...)
	}
	store.Kill()
	f.nodes["b"].kill() // before anybody sees it silent
	delete(f.nodes, "b")
	copyData(t, backup, store.Dir)
	store.Start()
	f.awaitFence()
	f.awaitMissing("a", "b")
	if r := speak(t, f.dir, "adopt", "--server", f.nodes["a"].url, "--floor", fmt.Sprint(floor), "--yes"); r.code != 0 {
		t.Fatalf("adopt: exit code %d, %s%s", r.code, r.out, r.err)
	}
	f.awaitHealed("after a floor was stated")
	f.start("b")
	f.awaitHealed("after the missing node's return")
	for _, id := range f.ids {
		if id%2 != 1 {
			t.Fatalf("%d is no number of this region", id)
		}
	}
	if last := f.ids[len(f.ids)-1]; last < floor {
		t.Errorf("%d is below the floor", last)
	}
	f.stop()
}
