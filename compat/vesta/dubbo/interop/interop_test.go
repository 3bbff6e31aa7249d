package interop

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dubbo.apache.org/dubbo-go/v3/client"
	dubboregistry "dubbo.apache.org/dubbo-go/v3/registry"
	getty "github.com/apache/dubbo-getty"
	hessian "github.com/apache/dubbo-go-hessian2"
	"github.com/dubbogo/gost/log/logger"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"

	// The parts of dubbo-go that a consumer of ours needs, instead of its package imports, which brings
	// every registry and gateway there is and takes minutes to compile.
	_ "dubbo.apache.org/dubbo-go/v3/cluster/cluster/failover"
	_ "dubbo.apache.org/dubbo-go/v3/cluster/loadbalance/random"
	_ "dubbo.apache.org/dubbo-go/v3/filter/graceful_shutdown"
	_ "dubbo.apache.org/dubbo-go/v3/metadata/mapping/metadata"
	_ "dubbo.apache.org/dubbo-go/v3/protocol/dubbo"
	_ "dubbo.apache.org/dubbo-go/v3/proxy/proxy_factory"
	_ "dubbo.apache.org/dubbo-go/v3/registry/directory"
	_ "dubbo.apache.org/dubbo-go/v3/registry/protocol"
	_ "dubbo.apache.org/dubbo-go/v3/registry/zookeeper"
)

// ID is the class that expId returns.
type ID struct {
	Machine   int64
	Seq       int64
	Time      int64
	GenMethod int64
	Type      int64
	Version   int64
}

// JavaClassName implements hessian.POJO.
func (ID) JavaClassName() string { return "com.robert.vesta.service.bean.Id" }

func TestMain(m *testing.M) {
	hessian.RegisterPOJO(&ID{})
	logger.SetLoggerLevel("fatal") // they log every call
	if err := getty.SetLoggerLevel(getty.LoggerLevelFatal); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A provider is one central server.
type provider struct {
	addr   string
	server *dubbo.Server
	served chan error
	issuer *hapax.Snowflake
}

// provide starts a provider on an address, with a worker ID of a store.
func provide(t testing.TB, store hapax.WorkerStore, addr string) *provider {
	t.Helper()
	layout, err := hapax.ParseLayout(hapax.LayoutVestaMaxPeak)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Layout: layout, Workers: hapax.WorkerRange{Lo: 924, Hi: 1024}})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := vesta.New(vesta.FromSnowflake(issuer), vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := dubbo.NewServer(ids, dubbo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{addr: ln.Addr().String(), server: server, served: make(chan error, 1), issuer: issuer}
	go func() { p.served <- server.Serve(ln) }()
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *provider) stop(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	if err := p.server.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := p.issuer.Close(ctx); err != nil {
		t.Error(err)
	}
}

// consume returns a consumer of the service.
func consume(t testing.TB, opts ...client.ReferenceOption) *client.Connection {
	t.Helper()
	cli, err := client.NewClient(client.WithClientProtocolDubbo(), client.WithClientSerialization("hessian2"), client.WithClientRequestTimeout(patience.Call))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := cli.Dial(dubbo.DefaultInterface, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// within bounds every call: without it, dubbo-go waits for ever for the reply to a request
// that a closing connection has taken.
var within = client.WithCallRequestTimeout(patience.Call)

func call[T any](t testing.TB, c *client.Connection, method string, args ...any) (got T) {
	t.Helper()
	if args == nil {
		args = []any{}
	}
	err := patience.Await(t, method+" sent", func() (error, error) {
		return c.CallUnary(t.Context(), args, &got, method, within), nil
	}, func(err error) bool { return !isUnsent(err) })
	if err != nil {
		t.Fatalf("%s%v: %v", method, args, err)
	}
	return got
}

// isUnsent reports whether a call failed before it was sent: for a while after a provider
// ended, dubbo-go still chooses its connection for some calls.
func isUnsent(err error) bool {
	return err != nil && strings.Contains(err.Error(), getty.ErrSessionClosed.Error())
}

func TestDirect(t *testing.T) {
	p := provide(t, memstore.New(), "127.0.0.1:0")
	c := consume(t, client.WithURL("dubbo://"+p.addr))
	everyMethod(t, c)

	p.stop(t)
	provide(t, memstore.New(), p.addr)
	eventually(t, c)
	everyMethod(t, c)
}

// everyMethod calls the eight methods of the service.
func everyMethod(t *testing.T, c *client.Connection) {
	t.Helper()
	before := time.Now().Unix()
	id := call[int64](t, c, "genId")
	got := call[*ID](t, c, "expId", id)
	if at := got.Time + 1420041600; got.GenMethod != 1 || got.Type != 0 || got.Machine < 924 || at < before-1 || at > time.Now().Unix()+2 {
		t.Errorf("%d is %+v", id, got)
	}
	const sample = int64(2407837855670862845)
	if got, want := *call[*ID](t, c, "expId", sample), (ID{Machine: 1021, Time: 94990103, GenMethod: 2}); got != want {
		t.Errorf("%d is %+v; want %+v", sample, got, want)
	}
	if got, want := call[time.Time](t, c, "transTime", int64(12758739)), time.Date(2015, 5, 28, 8, 5, 39, 0, time.UTC); !got.Equal(want) {
		t.Errorf("transTime is %v; want %v", got, want)
	}
	machine := got.Machine
	for _, args := range [][]any{
		{int64(94990103), int64(5)},
		{int64(94990103), int64(5), machine},
		{int64(1), int64(94990103), int64(5), machine},
		{int64(0), int64(1), int64(94990103), int64(5), machine},
		{int64(0), int64(0), int64(1), int64(94990103), int64(5), machine},
	} {
		made := call[int64](t, c, "makeId", args...)
		if got, want := *call[*ID](t, c, "expId", made), (ID{Machine: machine, Seq: 5, Time: 94990103, GenMethod: 1}); got != want {
			t.Errorf("makeId%v made %d, which is %+v; want %+v", args, made, got, want)
		}
	}
}

// TestErrors shows that a consumer gets a text, and that the connection goes on.
func TestErrors(t *testing.T) {
	p := provide(t, memstore.New(), "127.0.0.1:0")
	c := consume(t, client.WithURL("dubbo://"+p.addr))
	for _, bad := range []struct {
		method string
		args   []any
		want   string
	}{
		{"genIds", []any{}, "no method \"genIds\""},
		{"genId", []any{int64(1)}, "no method \"genId\""},
		{"expId", []any{"1"}, "no method \"expId\" with the parameters \"Ljava/lang/String;\""},
		{"makeId", []any{int64(1), int64(1), int64(1024)}, "invalid machine 1024: want 0 to 1023"},
		{"makeId", []any{int64(1) << 30, int64(1)}, "invalid time 1073741824: want 0 to 1073741823"},
		{"transTime", []any{int64(1) << 62}, "invalid time 4611686018427387904"},
	} {
		var got int64
		err := c.CallUnary(t.Context(), bad.args, &got, bad.method, within, client.WithCallRetries(0))
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s%v: %v; want an error with %q", bad.method, bad.args, err, bad.want)
		}
	}
	everyMethod(t, c)
}

// TestRegistry finds providers through ZooKeeper, and goes on when one is replaced by
// another at another address.
func TestRegistry(t *testing.T) {
	zk := testservers.ZooKeeper(t)
	store := memstore.New()
	register := func(p *provider) *registry.Registration {
		t.Helper()
		r, err := registry.Register(t.Context(), zk.URL, []string{dubbo.DefaultInterface}, p.addr, registry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	first := provide(t, store, "127.0.0.1:0")
	registered := register(first)
	c := consume(t, client.WithRegistry(dubboregistry.WithZookeeper(), dubboregistry.WithAddress(zk.Addr), dubboregistry.WithRegisterInterface()))
	everyMethod(t, c)

	// The provider restarts: first on its address, then it moves to another one.
	registered.Close()
	first.stop(t)
	again := provide(t, store, first.addr)
	registered = register(again)
	eventually(t, c)
	everyMethod(t, c)

	registered.Close()
	again.stop(t)
	register(provide(t, store, "127.0.0.1:0"))
	eventually(t, c)
	everyMethod(t, c)
}

// eventually waits until a consumer has found a provider.
func eventually(t *testing.T, c *client.Connection) {
	t.Helper()
	patience.Await(t, "a provider", func() (id int64, err error) {
		err = c.CallUnary(t.Context(), []any{}, &id, "genId", within)
		return id, err
	}, func(int64) bool { return true })
}

// TestCrowd takes numbers through eight consumers from two providers.
func TestCrowd(t *testing.T) { crowd(t, 20_000) }

func TestCrowdSoak(t *testing.T) {
	patience.Soak(t, "a million calls")
	crowd(t, 1_000_000)
}

func crowd(t *testing.T, total int) {
	t.Helper()
	const consumers, inFlight = 8, 16
	store := memstore.New()
	providers := []*provider{provide(t, store, "127.0.0.1:0"), provide(t, store, "127.0.0.1:0")}
	url := "dubbo://" + providers[0].addr + ";dubbo://" + providers[1].addr
	taken := make([][]int64, consumers*inFlight)
	var wg sync.WaitGroup
	for i := range consumers {
		c := consume(t, client.WithURL(url))
		for j := range inFlight {
			wg.Go(func() {
				ids := make([]int64, 0, total/len(taken)+1)
				for len(ids) < cap(ids) {
					var id int64
					if err := c.CallUnary(t.Context(), []any{}, &id, "genId", client.WithCallRequestTimeout(patience.Long)); err != nil {
						t.Error(err)
						return
					}
					ids = append(ids, id)
				}
				taken[i*inFlight+j] = ids
			})
		}
	}
	wg.Wait()
	all := slices.Concat(taken...)
	slices.Sort(all)
	machines := map[int64]int{}
	for i, id := range all {
		if i > 0 && id == all[i-1] {
			t.Fatalf("%d was issued twice", id)
		}
		machines[id&1023]++
	}
	if len(all) < total || len(machines) != 2 {
		t.Errorf("%d numbers of the machines %v; want %d of two", len(all), machines, total)
	}
}
