package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// peers are the servers that hapax is measured beside: both write a counter.
var peers = map[string]func(net.Listener) error{
	"net/http": func(l net.Listener) error {
		var n atomic.Int64
		return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(strconv.AppendInt(nil, n.Add(1), 10))
		}))
	},
	"fasthttp": func(l net.Listener) error {
		var n atomic.Int64
		return fasthttp.Serve(l, func(ctx *fasthttp.RequestCtx) {
			ctx.Response.AppendBody(strconv.AppendInt(nil, n.Add(1), 10))
		})
	},
}

// serve is what a process of a peer does, until it is interrupted.
func serve(ctx context.Context, name, address string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- peers[name](l) }() // ends with the process
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	return err
}

// startPeer runs this program again, to serve.
func startPeer(ctx context.Context, name string) (*host.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := host.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + port
	s, err := host.Start(ctx, self, "-serve", name, "-at", address)
	if err != nil {
		return nil, err
	}
	s.HTTP = address
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return s, conn.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			s.Stop()
			return nil, fmt.Errorf("the %s server does not answer: %w", name, err)
		}
	}
}
