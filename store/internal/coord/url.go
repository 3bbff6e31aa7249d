// Package coord is what the drivers for coordination services, etcd and ZooKeeper, stand on: the
// form of their URLs, and the convoy of calls that share a beat.
package coord

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
)

// DefaultPrefix begins the names of everything in a store that has no other prefix.
const DefaultPrefix = "hapax"

const (
	maxHosts  = 32
	maxPrefix = 256 // bytes
)

// A Form is what the URLs of one service look like:
//
//	scheme://[user:password@]host[:port][,host…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE]
//
// The scheme with an "s" after it asks for TLS, as tls=true does.
type Form struct {
	Scheme string
	Port   string   // where none is given
	Params []string // names of further parameters
}

// A URL tells where a store is.
type URL struct {
	Hosts          []string // each with its port
	User, Password string   // both or none
	Prefix         string   // without slashes at its ends; "hapax" if none is given
	TLS            *tls.Config
	Params         url.Values
}

// Parse takes a URL apart; by hand, as it may name several hosts. No error
// repeats the URL, which may hold a password.
func (f Form) Parse(raw string) (URL, error) {
	var u URL
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != f.Scheme && scheme != f.Scheme+"s" {
		return u, f.bad("it must begin with %s:// or %[1]ss://", f.Scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	// The last one, so that a password with an @ that was not encoded does not become part of a host in an
	// error.
	at := strings.LastIndexByte(authority, '@')
	if at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		u.User, err1 = url.PathUnescape(user)
		u.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || u.User == "" || u.Password == "" {
			return u, f.bad("the credentials must be user:password, percent-encoded")
		}
	}
	hosts := strings.Split(authority[at+1:], ",")
	if len(hosts) > maxHosts {
		return u, f.bad("it names %d hosts; at most %d are allowed", len(hosts), maxHosts)
	}
	for _, host := range hosts {
		host, err := f.host(host)
		if err != nil {
			return u, err
		}
		u.Hosts = append(u.Hosts, host)
	}
	var err error
	u.Prefix, err = url.PathUnescape(strings.Trim(path, "/"))
	if err != nil || len(u.Prefix) > maxPrefix {
		return u, f.bad("the prefix after the hosts must be percent-encoded and at most %d bytes long", maxPrefix)
	}
	if u.Prefix == "" {
		u.Prefix = DefaultPrefix
	}
	if u.Params, err = url.ParseQuery(query); err != nil {
		return u, f.bad("the part after ? cannot be understood")
	}
	u.TLS, err = f.tls(scheme != f.Scheme, u.Params)
	return u, err
}

// bad never gets a part of the URL that may be a secret.
func (f Form) bad(format string, args ...any) error {
	var extra strings.Builder
	for _, name := range f.Params {
		extra.WriteString("&" + name + "=…")
	}
	return fmt.Errorf("%w: %s URL: %s; the form is %[2]s://[user:password@]host[:port][,host…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE%[4]s]",
		hapax.ErrInvalidArgument, f.Scheme, fmt.Sprintf(format, args...), extra.String())
}

// host completes host[:port].
func (f Form) host(host string) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil { // no port, perhaps
		name, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), f.Port
		if strings.Contains(name, ":") && !strings.HasPrefix(host, "[") {
			return "", f.bad("an IPv6 address must stand in brackets")
		}
	}
	if name == "" || port == "" || strings.ContainsAny(name, "@[] \t") {
		return "", f.bad("every host must be a name or address with an optional port")
	}
	return net.JoinHostPort(name, port), nil
}

// tls returns nil for connections without TLS.
func (f Form) tls(secure bool, params url.Values) (*tls.Config, error) {
	for name, values := range params {
		if !slices.Contains(f.Params, name) && !slices.Contains([]string{"tls", "ca", "cert", "key"}, name) {
			return nil, f.bad("parameter %.20q is unknown", name)
		}
		if len(values) > 1 {
			return nil, f.bad("parameter %s is given twice", name)
		}
	}
	switch given := params.Get("tls"); {
	case given == "true":
		secure = true
	case given == "false" && secure:
		return nil, f.bad("%ss:// contradicts tls=false", f.Scheme)
	case given != "" && given != "false":
		return nil, f.bad("tls must be true or false")
	}
	ca, cert, key := params.Get("ca"), params.Get("cert"), params.Get("key")
	switch {
	case !secure && ca+cert+key != "":
		return nil, f.bad("ca, cert and key need tls=true")
	case !secure:
		return nil, nil
	case (cert == "") != (key == ""):
		return nil, f.bad("cert and key go together")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%w: %s URL: ca: %w", hapax.ErrInvalidArgument, f.Scheme, err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, f.bad("ca: the file holds no certificate in PEM form")
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: %s URL: cert and key: %w", hapax.ErrInvalidArgument, f.Scheme, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}
