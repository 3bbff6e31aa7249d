package vesta_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/rest"
	"github.com/hapax-id/hapax/store/memstore"
)

// An IdService in the process: the machine ID comes from the property vesta.machine,
// the store sees to it that no other process issues with it at the same time.
func Example_embedded() {
	ctx := context.Background()
	machine, release, err := vesta.Property{Value: "7", Host: vesta.Host{Dir: os.TempDir(), Pool: "example"}}.Machine(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer release()
	layout, err := hapax.ParseLayout(hapax.LayoutVestaMaxPeak)
	if err != nil {
		fmt.Println(err)
		return
	}
	issuer, err := hapax.NewSnowflake(ctx, memstore.New(), hapax.SnowflakeOptions{
		Layout: layout, Workers: hapax.WorkerRange{Lo: machine, Hi: machine + 1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer issuer.Close(ctx)

	ids, err := vesta.New(vesta.FromSnowflake(issuer), vesta.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := ids.GenID(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	parts, err := ids.ExpID(id)
	fmt.Println("machine", parts.Machine, "method", parts.GenMethod, err)
	fmt.Println(ids.MakeID(94990103, 0))
	// Output:
	// machine 7 method 0 <nil>
	// 101994846457167879 <nil>
}

// One issuer behind a central server and a REST server.
func Example_servers() {
	ctx := context.Background()
	layout, err := hapax.ParseLayout(hapax.LayoutVestaMaxPeak)
	if err != nil {
		fmt.Println(err)
		return
	}
	issuer, err := hapax.NewSnowflake(ctx, memstore.New(), hapax.SnowflakeOptions{Layout: layout, Workers: vesta.ServerMachines})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer issuer.Close(ctx)
	ids, err := vesta.New(vesta.FromSnowflake(issuer), vesta.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	central, err := dubbo.NewServer(ids, dubbo.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // Dubbo's own port is 20880
	if err != nil {
		fmt.Println(err)
		return
	}
	go central.Serve(ln) // returns dubbo.ErrServerClosed
	defer central.Close(ctx)

	handler, err := rest.NewHandler(ids, rest.Options{Shape: rest.Netty})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/expid?id=2319542600899494910", nil))
	fmt.Println(answer.Body)
	// Output:
	// {"genMethod":2,"machine":1022,"seq":0,"time":12758739,"type":0,"version":0}
}
