package mongostore_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return mongostore.Open(ctx, url, mongostore.Options{Timeout: patience.Call})
	})
}

// open opens a store that the test's end closes. Its time limit is not the store's.
func open(t testing.TB, url string, opts mongostore.Options) *mongostore.Store {
	t.Helper()
	opts.Timeout = cmp.Or(opts.Timeout, patience.Call)
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	s, err := mongostore.Open(ctx, url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// raw returns the database itself.
func raw(t testing.TB, s *testservers.Server) *mongo.Database {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(s.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c.Database("hapax")
}

// own starts a server that the test controls; without one it is skipped.
func own(t testing.TB) *testservers.Server {
	t.Helper()
	srv := testservers.MongoDB(t)
	if srv.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	return srv
}

// must returns v, or ends the test.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func create(t testing.TB, s *mongostore.Store, def hapax.Tag) hapax.Tag {
	t.Helper()
	def = must[hapax.Tag](t)(def.WithDefaults())
	return must[hapax.Tag](t)(s.CreateTag(t.Context(), def, hapax.CreateExplicit))
}

func allocate(t testing.TB, s *mongostore.Store, tag string, n int64) hapax.Grant {
	t.Helper()
	return must[hapax.Allocation](t)(s.Allocate(t.Context(), tag, n, "")).Grant
}

// allocateUntil allocates until it succeeds.
func allocateUntil(t testing.TB, s *mongostore.Store, tag string) hapax.Grant {
	t.Helper()
	return patience.Await(t, "a grant", func() (hapax.Grant, error) {
		a, err := s.Allocate(t.Context(), tag, 1, "")
		return a.Grant, err
	}, func(hapax.Grant) bool { return true })
}

func acquire(t testing.TB, s *mongostore.Store) hapax.Lease {
	t.Helper()
	return must[hapax.Lease](t)(s.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: layout(t), Workers: hapax.WorkerRange{Hi: 4}, Holder: "h", Term: term(time.Second),
	}))
}

func layout(t testing.TB) hapax.Layout { return must[hapax.Layout](t)(hapax.ParseLayout("leaf")) }

// extend extends a lease to somewhat more than a length from now.
func extend(ctx context.Context, t testing.TB, s *mongostore.Store, lease hapax.Lease, length time.Duration) (hapax.Lease, error) {
	t.Helper()
	return s.ExtendWorker(ctx, lease, layout(t), term(length))
}

func term(length time.Duration) hapax.Term {
	return hapax.Term{Now: time.Now(), Length: length, TTL: time.Minute}
}

func wantErr(t testing.TB, what string, err error, sentinel *hapax.Error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: error is %v; want %v", what, err, sentinel)
	}
}

func TestConformance(t *testing.T) {
	srv := testservers.MongoDB(t)
	h := harness(srv, srv.URL)
	h.Another = func(t testing.TB) storetest.Harness { return harness(srv, database(t, srv)) }
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	url := database(t, testservers.MongoDB(t))
	storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) {
		return mongostore.Open(ctx, url, mongostore.Options{Timeout: patience.Call})
	})
}

// No step writes to another store that stands where the opened one stood.
func TestReplaced(t *testing.T) {
	srv := own(t)
	db := raw(t, srv)
	storetest.RunReplaced(t, func(ctx context.Context) (storetest.Handle, error) {
		return mongostore.Open(ctx, srv.URL, mongostore.Options{Timeout: patience.Call})
	}, func(ctx context.Context) error {
		for collection, field := range map[string]string{"hapax_store": "id", "hapax_tags": "store", "hapax_rows": "store"} {
			set := bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: "another"}}}}
			if _, err := db.Collection(collection).UpdateMany(ctx, bson.D{}, set); err != nil {
				return err
			}
		}
		return nil
	})
}

func harness(srv *testservers.Server, url string) storetest.Harness {
	return storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return open(t, url, mongostore.Options{}) },
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true},
		Silence: testservers.Silence(srv, url, func(ctx context.Context, url string, timeout time.Duration) (storetest.Handle, error) {
			return mongostore.Open(ctx, url, mongostore.Options{Timeout: timeout})
		}),
	}
}

// database returns the URL of a database of its own, which the test's end drops. The
// stand-in for MongoDB reads whole collections, so that they had better stay small.
func database(t testing.TB, srv *testservers.Server) string {
	t.Helper()
	u := must[*url.URL](t)(url.Parse(srv.URL))
	name := "check_" + rand.Text()[:12]
	u.Path = "/" + name
	client := raw(t, srv).Client()
	t.Cleanup(func() {
		if err := client.Database(name).Drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return u.String()
}

// Marks go beyond what a double or a 32-bit integer holds.
func TestTopOfTheRange(t *testing.T) {
	s := open(t, testservers.MongoDB(t).URL, mongostore.Options{Prefix: "top_" + fmt.Sprint(time.Now().UnixNano()) + "_"})
	for _, lo := range []int64{1<<31 - 3, 1<<53 - 1, 1<<53 + 1, 1<<62 + 1} {
		name := fmt.Sprint("t", lo)
		create(t, s, hapax.Tag{Name: name, Start: lo, Step: 7})
		for i := range int64(3) {
			want := hapax.Grant{Lo: lo + 7*i, Hi: lo + 7*i + 7}
			if got := allocate(t, s, name, 7*(i&1)); got != want {
				t.Errorf("allocation is %v; want %v", got, want)
			}
		}
	}
	create(t, s, hapax.Tag{Name: "end", Start: hapax.MaxMark - 10, Step: 7})
	for _, n := range []int64{11, hapax.MaxStep} {
		_, err := s.Allocate(t.Context(), "end", n, "")
		wantErr(t, "too many numbers", err, hapax.ErrLineExhausted)
	}
	if got, want := allocate(t, s, "end", 0), (hapax.Grant{Lo: hapax.MaxMark - 10, Hi: hapax.MaxMark - 3}); got != want {
		t.Errorf("allocation is %v; want %v", got, want)
	}
	_, err := s.Allocate(t.Context(), "end", 0, "")
	wantErr(t, "a whole step at the end", err, hapax.ErrLineExhausted)
	if got, want := allocate(t, s, "end", 3), (hapax.Grant{Lo: hapax.MaxMark - 3, Hi: hapax.MaxMark}); got != want {
		t.Errorf("allocation is %v; want %v", got, want)
	}
}

// A step that another handle changed is adopted with the next grant, whole.
func TestStepChanges(t *testing.T) {
	srv := testservers.MongoDB(t)
	prefix := "step_" + fmt.Sprint(time.Now().UnixNano()) + "_"
	a, b := open(t, srv.URL, mongostore.Options{Prefix: prefix}), open(t, srv.URL, mongostore.Options{Prefix: prefix})
	create(t, a, hapax.Tag{Name: "t", Step: 10})
	last := allocate(t, a, "t", 0)
	for _, step := range []int64{20, 5, 5, 30} {
		if _, err := b.UpdateTag(t.Context(), "t", driver.TagUpdate{Step: &step, MinStep: new(int64(1))}); err != nil {
			t.Fatal(err)
		}
		got := must[hapax.Allocation](t)(a.Allocate(t.Context(), "t", 0, ""))
		if want := (hapax.Grant{Lo: last.Hi, Hi: last.Hi + step}); got.Grant != want || got.Tag.Step != step {
			t.Errorf("allocation is %v; want %v", got, want)
		}
		last = got.Grant
	}
}

// Grants that were acknowledged while a server was killed are not repeated.
func TestCrashUnderLoad(t *testing.T) {
	srv := own(t)
	s := open(t, srv.URL, mongostore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	var mu sync.Mutex // guards granted
	var granted []hapax.Grant
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if a, err := s.Allocate(ctx, "t", 3, ""); err == nil {
					mu.Lock()
					granted = append(granted, a.Grant)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(granted)
	}
	for range 2 {
		want := 10 + count()
		patience.Until(t, "more grants", func() bool { return count() >= want })
		srv.Kill()
		srv.Start()
		allocateUntil(t, s, "t")
	}
	cancel()
	wg.Wait()
	granted = append(granted, allocateUntil(t, s, "t"))
	slices.SortFunc(granted, func(a, b hapax.Grant) int { return int(a.Lo - b.Lo) })
	for i := 1; i < len(granted); i++ {
		if granted[i].Lo < granted[i-1].Hi {
			t.Fatalf("%v was granted after %v", granted[i], granted[i-1])
		}
	}
	t.Logf("%d grants", len(granted))
}

// A store whose data was deleted under it notices at every call, and makes
// nothing new.
func TestEmptied(t *testing.T) {
	srv := own(t)
	s := open(t, srv.URL, mongostore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	ctx := t.Context()
	granted := must[hapax.Allocation](t)(s.Allocate(ctx, "t", 1, ""))
	check := func(t *testing.T, sameNames bool) {
		step := int64(5)
		calls := map[string]func() error{
			"StoreID":      func() error { _, err := s.StoreID(ctx); return err },
			"Ping":         func() error { return s.Ping(ctx) },
			"Allocate":     func() error { _, err := s.Allocate(ctx, "t", 1, ""); return err },
			"own step":     func() error { _, err := s.Allocate(ctx, "t", 0, ""); return err },
			"CreateTag":    func() error { _, err := s.CreateTag(ctx, hapax.Tag{Name: "t"}, hapax.CreateFirstUse); return err },
			"Tag":          func() error { _, err := s.Tag(ctx, "t"); return err },
			"Tags":         func() error { _, err := s.Tags(ctx, "", 1); return err },
			"UpdateTag":    func() error { _, err := s.UpdateTag(ctx, "t", driver.TagUpdate{Step: &step}); return err },
			"DeleteTag":    func() error { _, err := s.DeleteTag(ctx, "t"); return err },
			"HandBack":     func() error { return s.HandBack(ctx, granted, granted.Grant.Lo) },
			"Row":          func() error { _, err := s.Row(ctx, "table", "row"); return err },
			"ListRows":     func() error { _, err := s.ListRows(ctx, "table", "", 1); return err },
			"CreatePool":   func() error { _, err := s.CreatePool(ctx, "p", "leaf"); return err },
			"Pools":        func() error { _, err := s.Pools(ctx); return err },
			"Workers":      func() error { _, err := s.Workers(ctx, "p"); return err },
			"ExtendWorker": func() error { _, err := extend(ctx, t, s, lease, time.Minute); return err },
			"a new row":    func() error { _, err := s.SwapRow(ctx, "table", "row", nil, []byte("x")); return err },
			"a row":        func() error { _, err := s.SwapRow(ctx, "table", "row", []byte("x"), []byte("y")); return err },
			"no row":       func() error { _, err := s.SwapRow(ctx, "table", "row", []byte("x"), nil); return err },
		}
		for name, call := range calls {
			wantErr(t, name, call(), hapax.ErrStoreReplaced)
		}
	}
	db := raw(t, srv)
	if err := db.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	t.Run("empty", func(t *testing.T) { check(t, false) })
	if names := must[[]string](t)(db.ListCollectionNames(ctx, bson.D{})); len(names) != 0 {
		for _, name := range names {
			if n := must[int64](t)(db.Collection(name).CountDocuments(ctx, bson.D{})); n != 0 {
				t.Errorf("%d documents were made in %s of an empty database", n, name)
			}
		}
	}
	other := open(t, srv.URL, mongostore.Options{})
	t.Run("another store", func(t *testing.T) { check(t, false) })
	create(t, other, hapax.Tag{Name: "t"})
	acquire(t, other)
	t.Run("another store with the same names", func(t *testing.T) { check(t, true) })
}

// When the answer to a grant is lost, the numbers are skipped.
func TestLostAnswer(t *testing.T) {
	srv := own(t)
	proxy := testservers.NewProxy(t, srv.Addr)
	s := open(t, proxy.URL(srv.URL)+"?retryWrites=false", mongostore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	lease := acquire(t, s)
	last := allocate(t, s, "t", 10)
	for i, cut := range []func(func([]byte) bool){proxy.CutReply, proxy.CutRequest} {
		cut(testservers.Contains("update\x00\x0b\x00\x00\x00hapax_tags"))
		_, err := s.Allocate(t.Context(), "t", 10, "")
		wantErr(t, "a lost answer", err, hapax.ErrStoreUnavailable)
		if n := proxy.Fired(); n != i+1 {
			t.Fatalf("the proxy cut %d connections; want %d", n, i+1)
		}
	}
	want := hapax.Grant{Lo: last.Hi + 10, Hi: last.Hi + 20} // one grant was lost, one never happened
	if got := allocate(t, s, "t", 10); got != want {
		t.Errorf("the grant after a lost one is %v; want %v", got, want)
	}

	// An extension whose answer was lost is granted with the next one.
	proxy.CutReply(testservers.Contains("update\x00\x0b\x00\x00\x00hapax_rows"))
	_, err := extend(t.Context(), t, s, lease, 10*time.Second)
	wantErr(t, "a lost extension", err, hapax.ErrStoreUnavailable)
	extended := must[hapax.Lease](t)(extend(t.Context(), t, s, lease, 20*time.Second))
	if extended.Grant.Lo != lease.Grant.Hi || extended.Grant.Len() < 15_000 {
		t.Errorf("the extension after a lost one is %v; want 20 s from %d on", extended.Grant, lease.Grant.Hi)
	}
}

// Calls end with their context, and the error tells so.
func TestSilence(t *testing.T) {
	srv := own(t)
	proxy := testservers.NewProxy(t, srv.Addr)
	patient := open(t, proxy.URL(srv.URL), mongostore.Options{Timeout: time.Hour})
	hasty := open(t, proxy.URL(srv.URL), mongostore.Options{Timeout: time.Second})
	create(t, patient, hapax.Tag{Name: "t"})
	proxy.Blackhole()
	tests := map[string]struct {
		s    *mongostore.Store
		ctx  func() (context.Context, context.CancelFunc)
		want error
	}{
		"cancelled": {patient, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
		"deadline": {patient, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 50*time.Millisecond)
		}, context.DeadlineExceeded},
		"no deadline": {hasty, func() (context.Context, context.CancelFunc) {
			return context.WithCancel(t.Context())
		}, context.DeadlineExceeded},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := tt.ctx()
			defer cancel()
			_, err := tt.s.Allocate(ctx, "t", 1, "")
			if !errors.Is(err, tt.want) || !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("error is %v; want %v and ErrStoreUnavailable", err, tt.want)
			}
		})
	}
	proxy.Pass()
	allocateUntil(t, hasty, "t")
}

func TestOpenRefuses(t *testing.T) {
	for name, url := range map[string]string{
		"scheme":   "redis://localhost",
		"database": "mongodb://localhost/a.b",
		"prefix":   "mongodb://localhost/?prefix=a$b",
		"option":   "mongodb://localhost/?maxPoolSize=many",
		"password": "mongodb://user:pa/s3cret@localhost",
		"percent":  "mongodb://user:%zzs3cret@localhost",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mongostore.Open(t.Context(), url, mongostore.Options{})
			wantErr(t, url, err, hapax.ErrInvalidArgument)
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := mongostore.Open(ctx, "mongodb://user:s3cret@127.0.0.1:1", mongostore.Options{})
	wantErr(t, "a server that is not there", err, hapax.ErrStoreUnavailable)
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error tells the password: %v", err)
	}
}

// Grants wait for a journalled majority, and reads see what it has, whatever the
// URL says.
func TestWriteConcern(t *testing.T) {
	srv := own(t)
	proxy := testservers.NewProxy(t, srv.Addr)
	var writes, majority, reads, weak atomic.Int64
	proxy.CutRequest(func(request []byte) bool {
		if bytes.Contains(request, []byte("findAndModify")) || bytes.Contains(request, []byte("\x02update\x00")) || bytes.Contains(request, []byte("\x02insert\x00")) {
			writes.Add(1)
			if bytes.Contains(request, []byte("\x02w\x00\x09\x00\x00\x00majority\x00\x08j\x00\x01")) || bytes.Contains(request, []byte("\x08j\x00\x01\x02w\x00\x09\x00\x00\x00majority\x00")) {
				majority.Add(1)
			}
		}
		if bytes.Contains(request, []byte("\x02find\x00")) {
			reads.Add(1)
			if !bytes.Contains(request, []byte("\x02level\x00\x09\x00\x00\x00majority\x00")) {
				weak.Add(1)
			}
		}
		return false
	})
	s := open(t, proxy.URL(srv.URL)+"?w=1&journal=false&readConcernLevel=local&readPreference=secondary", mongostore.Options{})
	create(t, s, hapax.Tag{Name: "t"})
	allocate(t, s, "t", 1)
	lease := acquire(t, s)
	must[hapax.Lease](t)(extend(t.Context(), t, s, lease, time.Minute))
	if w, m := writes.Load(), majority.Load(); w < 6 || m != w {
		t.Errorf("%d of %d writes ask for a journalled majority; want all of at least 6", m, w)
	}
	if r, w := reads.Load(), weak.Load(); r == 0 || w != 0 {
		t.Errorf("%d of %d reads may see what a majority does not have; want none of some", w, r)
	}
}

func TestWarnings(t *testing.T) {
	var codes []string
	s := open(t, own(t).URL, mongostore.Options{Warn: func(code, _ string) { codes = append(codes, code) }})
	if !slices.Equal(codes, []string{mongostore.WarnSingleMember}) {
		t.Errorf("warnings are %q; want %q", codes, mongostore.WarnSingleMember)
	}
	now := must[time.Time](t)(s.StoreTime(t.Context()))
	if d := time.Since(now).Abs(); d > time.Minute {
		t.Errorf("the server's clock is %v away", d)
	}
}

func BenchmarkAllocate(b *testing.B) {
	s := open(b, testservers.MongoDB(b).URL, mongostore.Options{Prefix: "bench_"})
	if _, err := s.Tag(b.Context(), "t"); err != nil {
		create(b, s, hapax.Tag{Name: "t"})
	}
	for b.Loop() {
		allocate(b, s, "t", 0)
	}
}

// A store of a client that exists leaves it connected, and waits for a majority
// as any other.
// TestHandBackAmongGrants: of many hand-backs, one whose tag is granted on between the look
// at the tags and the write is not told as made, and those that are made are.
func TestHandBackAmongGrants(t *testing.T) {
	srv := own(t)
	other, ctx := open(t, srv.URL, mongostore.Options{}), t.Context()
	var once sync.Once
	var grantOn atomic.Bool
	monitor := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "update" && e.Command.Lookup("update").StringValue() == "hapax_tags" && grantOn.Load() {
			once.Do(func() { allocate(t, other, "b", 10) })
		}
	}}
	c := must[*mongo.Client](t)(mongo.Connect(options.Client().ApplyURI(srv.URL).SetMonitor(monitor)))
	defer func() { _ = c.Disconnect(context.Background()) }()
	s := must[*mongostore.Store](t)(mongostore.New(ctx, c.Database("hapax"), mongostore.Options{}))
	var all []driver.HandBackOf
	for _, name := range []string{"a", "b"} {
		create(t, s, hapax.Tag{Name: name})
		all = append(all, driver.HandBackOf{Allocation: must[hapax.Allocation](t)(s.Allocate(ctx, name, 10, "")), Next: 5})
	}
	was := driver.Beat{Count: 1}
	must[bool](t)(s.SwapRow(ctx, driver.TableBeats, "n", nil, was.Encode()))
	grantOn.Store(true)
	given, contact, err := s.HandBackAllWith(ctx, driver.Pulse{Row: "n", Was: was, Now: driver.Beat{Count: 2}}, all)
	if err != nil || !contact.Met || !slices.Equal(given, []bool{true, false}) {
		t.Errorf("%v were handed back, contact %+v, error %v; want the first alone", given, contact, err)
	}
	for name, mark := range map[string]int64{"a": 5, "b": 21} {
		if tag := must[hapax.Tag](t)(s.Tag(ctx, name)); tag.Mark != mark {
			t.Errorf("tag %s has mark %d; want %d", name, tag.Mark, mark)
		}
	}
}

func TestNew(t *testing.T) {
	srv := own(t)
	db, ctx := raw(t, srv), t.Context()
	s := must[*mongostore.Store](t)(mongostore.New(ctx, db, mongostore.Options{}))
	create(t, s, hapax.Tag{Name: "t"})
	last := allocate(t, s, "t", 10)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, err := s.Allocate(ctx, "t", 1, "")
	wantErr(t, "Allocate on a closed store", err, hapax.ErrClosed)
	wantErr(t, "Ping on a closed store", s.Ping(ctx), hapax.ErrClosed)
	if err := db.Client().Ping(ctx, nil); err != nil {
		t.Errorf("the client: %v", err)
	}
	if g := allocate(t, open(t, srv.URL, mongostore.Options{}), "t", 1); g.Lo != last.Hi {
		t.Errorf("%v was granted after %v", g, last)
	}
	_, err = mongostore.New(ctx, db, mongostore.Options{Prefix: "a$b"})
	wantErr(t, "a prefix", err, hapax.ErrInvalidArgument)
}
