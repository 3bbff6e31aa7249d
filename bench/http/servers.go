package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// peers are the servers that hapax is measured beside.
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
	"tls.Conn loop": serveLoop,
	"fasthttp, 100 numbers": func(l net.Listener) error {
		var n atomic.Int64
		return fasthttp.Serve(l, func(ctx *fasthttp.RequestCtx) {
			last := n.Add(100)
			ctx.SetContentType("application/json")
			b := append(ctx.Response.Body(), `{"ids":[`...)
			for id := last - 99; id <= last; id++ {
				b = append(strconv.AppendInt(append(b, '"'), id, 10), `",`...)
			}
			ctx.Response.SetBodyRaw(append(b[:len(b)-1], "]}\n"...))
		})
	},
}

// serveLoop answers whatever it reads over TLS with hapax's answer: nothing that speaks
// TLS in Go can take less.
func serveLoop(l net.Listener) error {
	dir, err := os.MkdirTemp("", "hapax-bench-")
	if err != nil {
		return err
	}
	cert, key, err := host.Certificate(dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	answer := []byte("HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nServer: " + build.Product() + "\r\nContent-Type: text/plain; charset=utf-8\r\n" +
		"Date: " + time.Now().UTC().Format(http.TimeFormat) + "\r\nContent-Length: 7\r\n\r\n1234567")
	for l := tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}); ; {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { // ends with the connection
			defer nc.Close()
			buf := make([]byte, 4<<10)
			for {
				if _, err := nc.Read(buf); err != nil {
					return
				}
				if _, err := nc.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// routes has the foreign systems' routes, by the name of the server that serves them.
var routes = map[string]string{"hapax, Leaf's route": leafRoute, "hapax, TinyID's route": tinyidRoute}

// asked is a server and the request that wrk sends to it.
type asked struct {
	*host.Server
	scheme, route string
	flags         []string // of wrk
}

// start starts the server of that name; those of hapax keep their data below dir.
func start(ctx context.Context, name, dir string) (*asked, error) {
	a := &asked{scheme: "http://", route: route}
	if name == "tls.Conn loop" || strings.HasSuffix(name, "over TLS") {
		a.scheme = "https://"
	}
	if strings.HasSuffix(name, "100 numbers") {
		a.route = several
		script := filepath.Join(dir, "post.lua")
		if err := os.WriteFile(script, []byte(`wrk.method = "POST"`), 0o600); err != nil {
			return nil, err
		}
		a.flags = []string{"-s", script}
	}
	var err error
	if peers[name] != nil {
		a.Server, err = startPeer(ctx, name)
		return a, err
	}
	var flags []string
	own := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, "over TLS") {
		cert, key, err := host.Certificate(own)
		if err != nil {
			return nil, err
		}
		flags = []string{"--tls-cert", cert, "--tls-key", key}
	}
	if strings.HasPrefix(name, "hapax with a token") {
		token := auth.NewToken()
		config := filepath.Join(own, "hapax.yaml")
		if err := os.WriteFile(config, []byte("tokens: {bench: {hash: '"+auth.HashToken(token)+"'}}\n"), 0o600); err != nil {
			return nil, err
		}
		flags, a.flags = append(flags, "--config", config), []string{"-H", "Authorization: Bearer " + token}
	}
	if foreign := routes[name]; foreign != "" {
		config := filepath.Join(own, "hapax.yaml")
		hash := sha256.Sum256([]byte("bench"))
		if err := os.WriteFile(config, fmt.Appendf(nil, "tags: {calls: {}}\ncompat: {leaf: {}, tinyid: {tokens: {calls: ['sha256:%x']}}}\n", hash), 0o600); err != nil {
			return nil, err
		}
		flags, a.route = append(flags, "--config", config), foreign
	}
	a.Server, err = host.StartHapax(ctx, own, flags...)
	return a, err
}

// serve runs a peer until it is interrupted.
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
	if err := host.Await(ctx, address); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}
