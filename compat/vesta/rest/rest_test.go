package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
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
	spring := handler(t, source{id: published &^ (3 << 60)}, rest.Options{Zone: shanghai, Shape: rest.Spring})
	netty := handler(t, source{id: published &^ (3 << 60)}, rest.Options{Zone: shanghai})
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
		{"makeid, the last counts", "/makeid?time=1&time=94990103&seq=7&seq=0&machine=3&machine=-1", netty, nettyText, "2407837855670862845"},
		{"makeid, semicolons", "/makeid?time=94990103;seq=0;other=x", netty, nettyText, "2407837855670862845"},
		{"makeid, Spring takes the first", "/makeid?time=94990103&time=1&seq=0", spring, jsonType, "2407837855670862845"},
		{"makeid, a machine that is missing within", "/makeid?genMethod=2&time=94990103&seq=0", netty, nettyText, "-1"},
		{"makeid, a method that is missing within", "/makeid?type=0&machine=1021&time=94990103&seq=0", netty, nettyText, "-1050926658149678083"},
		{"makeid, a type that is missing within", "/makeid?version=0&genMethod=2&machine=1021&time=94990103&seq=0", netty, nettyText, "-2203848162756525059"},
		{"makeid, all but the version are missing", "/makeid?version=0&time=5&seq=2", spring, jsonType, "-1"},
		{"makeid, no time", "/makeid?seq=1", netty, nettyText, "Both time and seq are required.-1"},
		{"makeid, no seq", "/makeid?time=1&seq=-1", netty, nettyText, "Both time and seq are required.-1"},
		{"expid, no number", "/expid", netty, nettyText, `{"genMethod":3,"machine":1023,"seq":1023,"time":1099511627775,"type":1,"version":1}`},
		{"expid, no number, Spring", "/expid.json;a=1", spring, jsonType, `{"machine":0,"seq":0,"time":0,"genMethod":0,"type":0,"version":0}`},
		{"transtime, no time", "/transtime", netty, nettyText, "Wed Dec 31 23:59:59 CST 2014"},
		{"transtime, no time, Spring", "/transtime/", spring, springText, "Wed Dec 31 23:59:59 CST 2014"},
		{"help", "/", netty, nettyText, help},
		{"help, paths are exact", "/genid/", netty, nettyText, help},
		{"help, whatever is asked", "/genid.json?id=1", netty, nettyText, help},
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

const help = "\r\nPlease input right URI:" +
	"\r\n    Example 1: http://ip:port/genid" +
	"\r\n    Example 2: http://ip:port/expid?id=?" +
	"\r\n    Example 3: http://ip:port/transtime?time=?" +
	"\r\n    Example 4: http://ip:port/makeid?version=?&type=?&genmethod=?&machine=?&time=?&seq=?"

// TestRefusals: what Vesta makes a wrong number of is refused.
func TestRefusals(t *testing.T) {
	h := handler(t, source{}, rest.Options{})
	for target, want := range map[string]string{
		"/transtime?time=9223372036854775807":                            "invalid time",
		"/makeid?time=1&seq=1&machine=1024":                              "invalid machine 1024: want 0 to 1023",
		"/makeid?time=1&seq=1&machine=-2":                                "invalid machine -2",
		"/makeid?time=1&seq=1048576":                                     "invalid seq 1048576",
		"/makeid?version=0&type=1&genMethod=0&machine=0&time=1&seq=1024": "invalid seq 1024: want 0 to 1023",
		"/makeid?version=0&type=2&genMethod=0&machine=0&time=1&seq=1":    "invalid type 2",
		"/genid?" + strings.Repeat("a", 4097):                            "invalid query",
		"/makeid?time=1&seq=1&genMethod=4&machine=1":                     "invalid genMethod 4",
		"/makeid?time=1099511627776&seq=1":                               "invalid time",
	} {
		r := get(h, http.MethodGet, target)
		if text := body(t, r); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s; want 400 with %q", target, r.StatusCode, text, want)
		}
	}
}

// TestClosed: a parameter that is no number ends the connection, whatever was asked.
func TestClosed(t *testing.T) {
	server := httptest.NewServer(handler(t, source{}, rest.Options{}))
	defer server.Close()
	for _, target := range []string{
		"/expid?id=x", "/expid?id=", "/expid?id=9223372036854775808", "/genid?seq=x", "/none?time=1%20", "/makeid?time=1&seq=1&seq=x", "/makeid?time=%zz",
	} {
		if res, err := http.Get(server.URL + target); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s: %d; want no answer", target, res.StatusCode)
		}
	}
}

// TestSpringFaults: what Vesta on Spring throws is shown as Spring Boot shows it.
func TestSpringFaults(t *testing.T) {
	h := handler(t, source{}, rest.Options{Shape: rest.Spring})
	for target, want := range map[string]string{
		"/makeid?time=1":      "500 Both time and seq are required.",
		"/expid?id=x":         "400 Failed to convert value",
		"/transtime?time=1.5": "400 Failed to convert value",
		"/none":               "404 No message available",
	} {
		r := get(h, http.MethodGet, target)
		status, message, _ := strings.Cut(want, " ")
		if text := body(t, r); strconv.Itoa(r.StatusCode) != status || !strings.Contains(text, `"message":"`+message) {
			t.Errorf("%s: %d %s; want %s", target, r.StatusCode, text, want)
		}
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
