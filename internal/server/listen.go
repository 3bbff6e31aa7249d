package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/hapax-id/hapax"
)

// listeners are what clients connect to.
type listeners struct {
	http  net.Listener
	admin net.Listener // nil: http does its part, too
	resp  net.Listener // nil: the Redis protocol is not spoken
}

// An endpoint is an address to listen on, as it is configured.
type endpoint struct {
	setting, address, example string
	optional                  bool
	foreign                   *foreignEndpoint // nil: clients are asked for tokens or certificates there
}

// A foreignEndpoint is spoken to by clients that show no credentials.
type foreignEndpoint struct {
	allowed bool // only networks that are listed are let in
}

// endpoints are the addresses of the listeners, in the order of listeners' fields.
func (c Config) endpoints() []endpoint {
	return []endpoint{
		{"http", c.HTTP, "127.0.0.1:8080", false, nil},
		{"admin_http", c.AdminHTTP, "127.0.0.1:8081", true, nil},
		{"resp", c.RESP, "127.0.0.1:6380", true, nil},
	}
}

// listenAll opens the listeners that the configuration asks for, if it allows
// their addresses.
func listenAll(ctx context.Context, c Config) (ls listeners, err error) {
	to := []*net.Listener{&ls.http, &ls.admin, &ls.resp}
	for i, e := range c.endpoints() {
		if e.address == "" && e.optional {
			continue
		}
		if *to[i], err = listen(ctx, c, e); err != nil {
			return ls, errors.Join(err, ls.close())
		}
	}
	return ls, nil
}

// checkAddresses judges the addresses as listenAll does, without using them.
func checkAddresses(ctx context.Context, c Config) error {
	for _, e := range slices.Concat(c.endpoints(), c.mountEndpoints()) {
		if e.address == "" && e.optional {
			continue
		}
		host, port, err := net.SplitHostPort(e.address)
		if err == nil {
			_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
		}
		var addr *net.TCPAddr
		if err == nil {
			addr, err = net.ResolveTCPAddr("tcp", net.JoinHostPort(host, port))
		}
		if err != nil {
			return e.malformed()
		}
		if err := c.mayListen(e, addr); err != nil {
			return err
		}
	}
	return nil
}

// all returns those that are open.
func (ls listeners) all() []net.Listener {
	return slices.DeleteFunc([]net.Listener{ls.http, ls.admin, ls.resp}, func(l net.Listener) bool { return l == nil })
}

func (ls listeners) close() error {
	var errs []error
	for _, l := range ls.all() {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// listen opens one listener.
func listen(ctx context.Context, c Config, e endpoint) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", e.address)
	flag := "--" + Setting{Name: e.setting}.Flag()
	if e.foreign != nil {
		flag = e.setting
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the address %s is in use by another process; stop it, or choose another address with %s", e.address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("the address %s may not be listened on by this user; choose another one with %s", e.address, flag)
	case err != nil:
		return nil, e.malformed()
	}
	if err := c.mayListen(e, listener.Addr()); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func (e endpoint) malformed() error {
	return &hapax.ValueError{Field: e.setting, Value: e.address, Allowed: "an address of this machine as HOST:PORT, such as " + e.example, Err: hapax.ErrInvalidArgument}
}

// mayListen refuses an address that other machines reach, unless it asks for
// credentials.
func (c Config) mayListen(e endpoint, at net.Addr) error {
	if isLoopbackAddr(at) || c.AllowUnauthenticated {
		return nil
	}
	if e.foreign != nil {
		if e.foreign.allowed {
			return nil
		}
		return &hapax.ValueError{
			Field: e.setting, Value: e.address,
			Allowed: "an address on loopback, such as " + e.example + ", because nobody is asked for credentials; the networks of the clients in allow, beside it, lift this",
			Err:     hapax.ErrInvalidArgument,
		}
	}
	if c.asksForCredentials() {
		return nil
	}
	return &hapax.ValueError{
		Field: e.setting, Value: e.address,
		Allowed: "an address on loopback, such as " + e.example + ", because nobody is asked for credentials; tokens or --allow-unauthenticated lift this",
		Err:     hapax.ErrInvalidArgument,
	}
}

// URL returns where the server that runs with the configuration is administered.
func (c Config) URL() string {
	address, scheme := c.HTTP, "http://"
	if c.AdminHTTP != "" {
		address = c.AdminHTTP
	}
	if c.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + address
}

// advertised returns where operators find a node that listens there.
func (c Config) advertised(l net.Listener) string {
	if c.Advertise != "" || l == nil {
		return c.Advertise
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return ""
	}
	// Nobody finds a node by the address that stands for all of them.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host, _ = os.Hostname()
	}
	return net.JoinHostPort(host, port)
}

// asksForCredentials reports whether only callers get in that have a token or a
// certificate.
func (c Config) asksForCredentials() bool { return len(c.Tokens) > 0 || c.TLSClientCA != "" }

func isLoopback(l net.Listener) bool { return isLoopbackAddr(l.Addr()) }

func isLoopbackAddr(at net.Addr) bool {
	addr, ok := at.(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}
