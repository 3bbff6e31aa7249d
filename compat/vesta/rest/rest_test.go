package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/compat/vesta/rest"
)

// source issues one number over and over, or fails.
type source struct {
	id  hapax.ID
	err error
}

func (s source) Next(ctx context.Context) (hapax.ID, error) {
	if errors.Is(s.err, context.DeadlineExceeded) {
		<-ctx.Done()
	}
	return s.id, s.err
}
func (source) Machine() int64 { return 1021 }

func handler(t *testing.T, from vesta.Source, opts rest.Options) http.Handler {
	t.Helper()
	ids, err := vesta.New(from, vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := rest.NewHandler(ids, opts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, method, target string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(b.String(), "\r\n\r\n")
	return text
}

func TestGolden(t *testing.T) {
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	const published = 2407837855670862845
	spring := handler(t, source{id: published &^ (3 << 60)}, rest.Options{Zone: shanghai})
	netty := handler(t, source{id: published &^ (3 << 60)}, rest.Options{Zone: shanghai, Shape: rest.Netty})
	const jsonType, springText, nettyText = "application/json;charset=UTF-8", "text/plain;charset=UTF-8", "text/plain"
	for _, c := range []struct {
		name, target string
		h            http.Handler
		kind, want   string
	}{
		{"genid, Spring", "/genid", spring, jsonType, "2407837855670862845"},
		{"genid, Netty", "/genid", netty, nettyText, "2407837855670862845"},
		{"expid, Spring", "/expid?id=2319542600899494910", spring, jsonType, `{"machine":1022,"seq":0,"time":12758739,"genMethod":2,"type":0,"version":0}`},
		{"expid, Netty", "/expid?id=2319542600899494910", netty, nettyText, `{"genMethod":2,"machine":1022,"seq":0,"time":12758739,"type":0,"version":0}`},
		{"expid, the other type", "/expid?id=4625064526062031873", netty, nettyText, `{"genMethod":0,"machine":1,"seq":5,"time":12758739123,"type":1,"version":0}`},
		{"expid, negative", "/expid?id=-1", spring, jsonType, `{"machine":1023,"seq":1023,"time":1099511627775,"genMethod":3,"type":1,"version":1}`},
		{"transtime, Spring", "/transtime?time=12758739", spring, springText, "Thu May 28 16:05:39 CST 2015"},
		{"transtime, Netty", "/transtime?time=12758739", netty, nettyText, "Thu May 28 16:05:39 CST 2015"},
		{"makeid", "/makeid?genMethod=2&machine=1021&time=94990103&seq=0", spring, jsonType, "2407837855670862845"},
		{"makeid, all fields", "/makeid?version=0&type=0&genMethod=2&machine=1021&time=94990103&seq=0", netty, nettyText, "2407837855670862845"},
		{"makeid, two fields", "/makeid?time=94990103&seq=0", netty, nettyText, "2407837855670862845"},
		{"makeid, minus one", "/makeid?version=-1&type=-1&genMethod=-1&machine=-1&time=94990103&seq=0", spring, jsonType, "2407837855670862845"},
		{"makeid, type", "/makeid?type=1&genMethod=0&machine=1&time=12758739123&seq=5", spring, jsonType, "4625064526062031873"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
				r := get(c.h, method, c.target)
				if got := body(t, r); r.StatusCode != http.StatusOK || got != c.want {
					t.Errorf("%s: %d %s\nwant %s", method, r.StatusCode, got, c.want)
				}
				if got := r.Header.Get("Content-Type"); got != c.kind {
					t.Errorf("%s: Content-Type %q; want %q", method, got, c.kind)
				}
				if got := r.Header.Get("Cache-Control"); got != "no-store" {
					t.Errorf("%s: Cache-Control %q", method, got)
				}
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	h := handler(t, source{}, rest.Options{})
	for target, want := range map[string]string{
		"/expid":                               "missing id",
		"/expid?id=":                           "missing id",
		"/expid?id=9223372036854775808":        "invalid id",
		"/expid?id=1&id=2":                     `invalid id "1, 2"`,
		"/transtime?time=-1":                   "invalid time -1: want 0 to 1073741823",
		"/transtime?time=1073741824":           "invalid time 1073741824",
		"/makeid":                              "missing time",
		"/makeid?time=1":                       "missing seq",
		"/makeid?time=-1&seq=1":                "missing time",
		"/makeid?time=1&seq=1&machine=1024":    "invalid machine 1024: want 0 to 1023",
		"/makeid?time=1&seq=1&machine=-2":      "invalid machine -2",
		"/makeid?time=1&seq=1048576":           "invalid seq 1048576",
		"/makeid?time=1&seq=1024&type=1":       "invalid seq 1024: want 0 to 1023",
		"/makeid?time=1&seq=1&type=2":          "invalid type 2",
		"/makeid?time=1&seq=x":                 "invalid seq",
		"/makeid?time=1%zz":                    "invalid query",
		"/genid?" + strings.Repeat("a", 1025):  "invalid query",
		"/makeid?time=1&seq=1&genMethod=4":     "invalid genMethod 4",
		"/makeid?time=1&seq=1&version=2":       "invalid version 2",
		"/makeid?time=1099511627776&seq=1":     "invalid time",
		"/makeid?time=1&seq=1&machine=1&seq=2": "invalid seq",
	} {
		r := get(h, http.MethodGet, target)
		if text := body(t, r); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s; want 400 with %q", target, r.StatusCode, text, want)
		}
	}
	if r := get(h, http.MethodGet, "/"); r.StatusCode != http.StatusNotFound {
		t.Errorf("/: %d", r.StatusCode)
	}
}

func TestNoNumber(t *testing.T) {
	for name, err := range map[string]error{
		"store": hapax.ErrStoreUnavailable,
		"late":  context.DeadlineExceeded,
		"value": &hapax.ValueError{Field: "workers", Value: 1, Allowed: "none", Err: hapax.ErrInvalidArgument},
	} {
		r := get(handler(t, source{err: err}, rest.Options{Wait: time.Millisecond}), http.MethodGet, "/genid")
		if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || r.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", name, r.StatusCode, r.Header)
		}
	}
}

func TestZones(t *testing.T) {
	for name, want := range map[string]string{
		"UTC":              "Thu May 28 08:05:39 UTC 2015",
		"Asia/Singapore":   "Thu May 28 16:05:39 GMT+08:00 2015",
		"America/New_York": "Thu May 28 04:05:39 EDT 2015",
	} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		r := get(handler(t, source{}, rest.Options{Zone: zone}), http.MethodGet, "/transtime?time=12758739")
		if got := body(t, r); got != want {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	ids, err := vesta.New(source{}, vesta.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []rest.Options{{Shape: "tomcat"}, {Wait: -1}} {
		if _, err := rest.NewHandler(ids, opts); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}
