package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
)

const (
	defaultPort   = "2379"
	defaultPrefix = "hapax"
	maxHosts      = 32
	maxPrefix     = 256 // bytes
)

// target is what a URL says.
type target struct {
	endpoints      []string // with scheme, as the client wants them
	user, password string
	prefix         string // begins every key; ends in a slash
	tls            *tls.Config
}

// parseURL takes the URL apart by hand, as it may name several hosts. No error
// repeats the URL, which may hold a password.
func parseURL(raw string) (target, error) {
	var t target
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != "etcd" && scheme != "etcds" {
		return t, badURL("it must begin with etcd:// or etcds://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		t.user, err1 = url.PathUnescape(user)
		t.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || t.user == "" || t.password == "" {
			return t, badURL("the credentials must be user:password, percent-encoded")
		}
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return t, badURL("the part after ? cannot be understood")
	}
	if t.tls, err = tlsConfig(scheme == "etcds", params); err != nil {
		return t, err
	}
	for _, host := range strings.Split(hosts, ",") {
		endpoint, err := endpoint(host, t.tls != nil)
		if err != nil {
			return t, err
		}
		t.endpoints = append(t.endpoints, endpoint)
	}
	if len(t.endpoints) > maxHosts {
		return t, badURL(fmt.Sprintf("it names %d hosts; at most %d are allowed", len(t.endpoints), maxHosts))
	}
	prefix, err := url.PathUnescape(strings.Trim(path, "/"))
	if err != nil || len(prefix) > maxPrefix {
		return t, badURL(fmt.Sprintf("the prefix after the hosts must be percent-encoded and at most %d bytes long", maxPrefix))
	}
	if prefix == "" {
		prefix = defaultPrefix
	}
	t.prefix = prefix + "/"
	return t, nil
}

func badURL(why string) error {
	return fmt.Errorf("%w: etcd URL: %s; the form is etcd://[user:password@]host[:port][,host…][/prefix][?tls=true&ca=FILE&cert=FILE&key=FILE]", hapax.ErrInvalidArgument, why)
}

func endpoint(host string, secure bool) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil { // no port, perhaps
		name, port = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), defaultPort
		if strings.Contains(name, ":") && !strings.HasPrefix(host, "[") {
			return "", badURL("an IPv6 address must stand in brackets")
		}
	}
	if name == "" || port == "" || strings.ContainsAny(name, "@ \t") {
		return "", badURL("every host must be a name or address with an optional port")
	}
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(name, port), nil
}

// tlsConfig returns nil for a connection without TLS.
func tlsConfig(secure bool, params url.Values) (*tls.Config, error) {
	for name := range params {
		switch name {
		case "tls", "ca", "cert", "key":
		default:
			return nil, badURL(fmt.Sprintf("parameter %.20q is unknown", name))
		}
	}
	switch params.Get("tls") {
	case "true":
		secure = true
	case "false":
		if secure {
			return nil, badURL("etcds:// contradicts tls=false")
		}
	case "":
	default:
		return nil, badURL("tls must be true or false")
	}
	ca, cert, key := params.Get("ca"), params.Get("cert"), params.Get("key")
	if !secure {
		if ca+cert+key != "" {
			return nil, badURL("ca, cert and key need tls=true")
		}
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%w: etcd URL: ca: %w", hapax.ErrInvalidArgument, err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: etcd URL: ca: %s holds no certificate in PEM form", hapax.ErrInvalidArgument, ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, badURL("cert and key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%w: etcd URL: cert and key: %w", hapax.ErrInvalidArgument, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}
