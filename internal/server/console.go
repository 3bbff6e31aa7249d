package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/console"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/mount"
)

// consoleFile is the file of a data directory that keeps the key of the console's
// sessions.
const consoleFile = "console"

// The length of the key with which nodes see each other, in bytes.
const (
	minFleetKey = 16
	maxFleetKey = 1024
)

// fleetKey reads the key with which nodes see each other; nil if there is none. Its
// errors do not repeat it.
func (c Config) fleetKey() ([]byte, error) {
	if c.FleetKey == "" {
		return nil, nil
	}
	// With room for the line break, which is no part of the key.
	text, err := mount.ReadBounded(c.FleetKey, maxFleetKey+2)
	if err != nil {
		return nil, mount.Errorf(err, "fleet_key")
	}
	key := strings.TrimRight(string(text), "\r\n")
	if len(key) < minFleetKey || len(key) > maxFleetKey {
		return nil, &hapax.ValueError{
			Field: "fleet_key", Value: fmt.Sprintf("(a file with %d bytes)", len(key)), Err: hapax.ErrInvalidArgument,
			Allowed: fmt.Sprintf("a file with %d to %d bytes, such as openssl rand -hex 32 prints", minFleetKey, maxFleetKey),
		}
	}
	return []byte(key), nil
}

// administers reports whether a listener is the one that administers, where the console
// is.
func (s *server) administers(l net.Listener) bool {
	return l == s.listeners.administering()
}

// administering returns the listener that administers.
func (ls listeners) administering() net.Listener {
	if ls.admin != nil {
		return ls.admin
	}
	return ls.http
}

// openFleet makes the part that asks the other nodes of the store, and answers them.
func (s *server) openFleet() {
	opts := fleet.Options{
		Service: s.service, Policy: s.policy,
		Name: newOpener(s.config, s.log).nodeName(), Address: s.config.address, Key: s.fleetKey,
	}
	if s.certs != nil {
		opts.TLS = func() *tls.Config { return s.certs.asClient(len(s.fleetKey) > 0) }
	}
	s.fleet = fleet.New(opts)
}

// openConsole makes the console, unless it is off.
func (s *server) openConsole(log *console.Log) {
	if !s.config.Console {
		return
	}
	s.console = console.New(console.Options{
		Service: s.service, Policy: s.policy, Logger: s.log, Log: log, Fleet: s.fleet,
		Name: newOpener(s.config, s.log).nodeName(), Address: s.config.address, URL: s.url(s.listeners.administering()),
		Secrets: filepath.Join(s.config.Data, consoleFile),
	})
}

// adminRoutes returns the routes that only the administering listener has, beside the API's.
func (s *server) adminRoutes(l net.Listener) map[string]http.Handler {
	routes := map[string]http.Handler{}
	if !s.administers(l) {
		return routes
	}
	routes[fleet.Path] = s.fleet
	if s.console != nil {
		for _, pattern := range s.console.Routes() {
			routes[pattern] = s.console
		}
	}
	return routes
}

// knownToConsole returns the function that reports whether a request comes with a session; nil for
// a listener without the console.
func (s *server) knownToConsole(l net.Listener) func(*http.Request) bool {
	if s.console == nil || !s.administers(l) {
		return nil
	}
	return s.console.Knows
}

// asClient returns how a node shows itself to others: by the certificate that it shows
// its clients. It trusts its own certificate and the authorities of clients. Those that
// the system trusts vouch for names, and anybody can have one: they do only where a key
// shows that it is a node.
func (c *certificates) asClient(keyed bool) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if system, err := x509.SystemCertPool(); err == nil && keyed {
		config.RootCAs = system
	}
	for _, file := range []string{c.files[0], c.files[2]} {
		if file == "" {
			continue
		}
		if pem, err := os.ReadFile(file); err == nil { // a file that is gone is told of where it is reloaded
			config.RootCAs.AppendCertsFromPEM(pem)
		}
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		// For each connection anew, since certificates are replaced while the server runs.
		pair, err := tls.LoadX509KeyPair(c.files[0], c.files[1])
		if err != nil {
			return new(tls.Certificate), nil //nolint:nilerr // none is shown, and the other node says what it misses
		}
		return &pair, nil
	}
	return config
}
