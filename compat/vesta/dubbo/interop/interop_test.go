package interop

import (
	"context"
	"net"
	"testing"
	"time"

	"dubbo.apache.org/dubbo-go/v3/client"
	_ "dubbo.apache.org/dubbo-go/v3/imports"
	hessian "github.com/apache/dubbo-go-hessian2"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/store/memstore"
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

func init() { hessian.RegisterPOJO(&ID{}) }

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
	issuer, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Layout: layout, Workers: hapax.Grant{Lo: 924, Hi: 1024}})
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
	cli, err := client.NewClient(client.WithClientProtocolDubbo(), client.WithClientSerialization("hessian2"), client.WithClientRequestTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := cli.Dial(dubbo.DefaultInterface, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func call[T any](t testing.TB, c *client.Connection, method string, args ...any) (got T) {
	t.Helper()
	if args == nil {
		args = []any{}
	}
	if err := c.CallUnary(t.Context(), args, &got, method); err != nil {
		t.Fatalf("%s%v: %v", method, args, err)
	}
	return got
}

func TestDirect(t *testing.T) {
	p := provide(t, memstore.New(), "127.0.0.1:0")
	c := consume(t, client.WithURL("dubbo://"+p.addr))
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
