package redisstore

import (
	"crypto/tls"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
)

func TestParseURL(t *testing.T) {
	type want struct {
		single, user, password, sentinelUser, sentinelPassword string
		addrs                                                  []string
		master                                                 string
		db                                                     int
		tls                                                    bool
		prefix                                                 string
		wait                                                   int
	}
	for url, w := range map[string]want{
		"redis://localhost":                             {single: "localhost:6379"},
		"redis://[::1]:7000/3":                          {single: "[::1]:7000", db: 3},
		"rediss://u:p%2Fw%40@h:1/?prefix=a:&wait=2":     {single: "h:1", user: "u", password: "p/w@", tls: true, prefix: "a:", wait: 2},
		"redis://:secret@h?pool_size=3":                 {single: "h:6379", password: "secret"},
		"unix://u:p@/run/redis.sock?db=2":               {single: "/run/redis.sock", user: "u", password: "p", db: 2},
		"redis+sentinel://a,b:1,[::1]/my%20master/2":    {addrs: []string{"a:6379", "b:1", "[::1]:6379"}, master: "my master", db: 2},
		"rediss+sentinel://u:p@a/m?sentinel_username=x": {addrs: []string{"a:6379"}, master: "m", user: "u", password: "p", sentinelUser: "x", tls: true},
		"redis+sentinel://u:p@a/m?sentinel_password=y":  {addrs: []string{"a:6379"}, master: "m", user: "u", password: "p", sentinelPassword: "y"},
		"redis+cluster://u:p@a:1,b:2,c:3?wait=1":        {addrs: []string{"a:1", "b:2", "c:3"}, user: "u", password: "p", wait: 1},
	} {
		t.Run(url, func(t *testing.T) {
			got, err := parseURL(url, Options{})
			if err != nil {
				t.Fatal(err)
			}
			g := want{prefix: got.opts.Prefix, wait: got.opts.Wait}
			switch {
			case got.single != nil:
				o := got.single
				g.single, g.user, g.password, g.db, g.tls = o.Addr, o.Username, o.Password, o.DB, o.TLSConfig != nil
			case got.sentinel != nil:
				o := got.sentinel
				g.addrs, g.master, g.user, g.password, g.db, g.tls = o.SentinelAddrs, o.MasterName, o.Username, o.Password, o.DB, o.TLSConfig != nil
				g.sentinelUser, g.sentinelPassword = o.SentinelUsername, o.SentinelPassword
			default:
				o := got.cluster
				g.addrs, g.user, g.password, g.tls = o.Addrs, o.Username, o.Password, o.TLSConfig != nil
			}
			if w.prefix == "" {
				w.prefix = DefaultPrefix
			}
			if !reflect.DeepEqual(g, w) {
				t.Errorf("got %+v; want %+v", g, w)
			}
		})
	}
}

func TestParseURLRefuses(t *testing.T) {
	for name, url := range map[string]string{
		"nothing":            "",
		"scheme":             "mysql://u:s3cret@h",
		"mode":               "redis+ring://u:s3cret@h",
		"slash in password":  "redis://u:pa/s3cret@h",
		"escape":             "redis://u:%zzs3cret@h",
		"escape in options":  "redis://u:s3cret@h?prefix=%zz",
		"port":               "redis://u:s3cret@h:port",
		"several hosts":      "redis://u:s3cret@a,b",
		"no master":          "redis+sentinel://u:s3cret@a",
		"database":           "redis://u:s3cret@h/x",
		"database, cluster":  "redis+cluster://u:s3cret@h/1",
		"unknown option":     "redis://u:s3cret@h?s3cret=1",
		"bad option":         "redis://u:s3cret@h?pool_size=s3cret",
		"brace in prefix":    "redis://u:s3cret@h?prefix=a{b",
		"prefix too long":    "redis://u:s3cret@h?prefix=" + strings.Repeat("x", 65),
		"wait not a number":  "redis://u:s3cret@h?wait=x",
		"wait too many":      "redis://u:s3cret@h?wait=101",
		"colons in the host": "redis://u:s3cret@h:1:2",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseURL(url, Options{})
			if !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Fatalf("error is %v; want ErrInvalidArgument", err)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestConnectOptions(t *testing.T) {
	own := &tls.Config{ServerName: "own"}
	got, err := parseURL("rediss+cluster://a,b?read_only=true", Options{TLS: own, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := got.connect().Close(); err != nil {
		t.Fatal(err)
	}
	if o := got.cluster; o.ReadOnly || o.TLSConfig.ServerName != "own" || o.ReadTimeout != time.Minute {
		t.Errorf("options are read-only %v, server name %q, read timeout %v; want false, own, 1m", o.ReadOnly, o.TLSConfig.ServerName, o.ReadTimeout)
	}
	// Of several servers each proves its own name.
	for url, want := range map[string]string{"rediss://a": "a", "rediss+cluster://a,b": "", "rediss+sentinel://a,b/m": ""} {
		got, err := parseURL(url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := got.connect().Close(); err != nil {
			t.Error(err)
		}
		var conf *tls.Config
		switch {
		case got.single != nil:
			conf = got.single.TLSConfig
		case got.sentinel != nil:
			conf = got.sentinel.TLSConfig
		default:
			conf = got.cluster.TLSConfig
		}
		if conf == nil {
			t.Errorf("%s: no TLS", url)
		} else if conf.ServerName != want {
			t.Errorf("%s: TLS for the name %q; want %q", url, conf.ServerName, want)
		}
	}
}
