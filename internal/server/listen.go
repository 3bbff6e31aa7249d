package server

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// listenAll opens the listeners that the configuration asks for, if it allows
// their addresses.
func listenAll(ctx context.Context, c Config) (ls listeners, err error) {
	for _, l := range []struct {
		to                        *net.Listener
		setting, address, example string
		optional                  bool
	}{
		{&ls.http, "http", c.HTTP, "127.0.0.1:8080", false},
		{&ls.admin, "admin_http", c.AdminHTTP, "127.0.0.1:8081", true},
		{&ls.resp, "resp", c.RESP, "127.0.0.1:6380", true},
	} {
		if l.address == "" && l.optional {
			continue
		}
		if *l.to, err = listen(ctx, c, l.setting, l.address, l.example); err != nil {
			return ls, errors.Join(err, ls.close())
		}
	}
	return ls, nil
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

// listen opens the listener of a setting; example is an address for its errors.
func listen(ctx context.Context, c Config, setting, address, example string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	flag := Setting{Name: setting}.Flag()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the address %s is in use by another process; stop it, or choose another address with --%s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("the address %s may not be listened on by this user; choose another one with --%s", address, flag)
	case err != nil:
		return nil, &hapax.ValueError{Field: setting, Value: address, Allowed: "an address of this machine as HOST:PORT, such as " + example, Err: hapax.ErrInvalidArgument}
	}
	if !isLoopback(listener) && !c.asksForCredentials() && !c.AllowUnauthenticated {
		return nil, errors.Join(&hapax.ValueError{
			Field: setting, Value: address,
			Allowed: "an address on loopback, such as " + example + ", because nobody is asked for credentials; tokens or --allow-unauthenticated lift this",
			Err:     hapax.ErrInvalidArgument,
		}, listener.Close())
	}
	return listener, nil
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

// asksForCredentials tells that only those get in who have a token or a
// certificate.
func (c Config) asksForCredentials() bool { return len(c.Tokens) > 0 || c.TLSClientCA != "" }

func isLoopback(l net.Listener) bool {
	addr, ok := l.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}
