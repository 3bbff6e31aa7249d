package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/memstore"
)

// FuzzFront holds the front's understanding to that of net/http: every
// request that it takes is that one, up to the same byte, and is answered as the routes
// answer it, with tokens on. The front and the routes have a service each, and both have
// issued the same numbers before every input.
func FuzzFront(f *testing.F) {
	token, other := auth.NewToken(), auth.NewToken()
	shown := with(hot, "Authorization: Bearer TOKEN")
	for _, seed := range []string{
		hot, cold, hot + hot, strings.Replace(hot, "orders", "a%2fb", 1), strings.Replace(hot, "orders", "..", 1), strings.ReplaceAll(hot, "\r\n", "\n"),
		strings.Replace(hot, "Host: localhost", "Host: localhost\r\nHost: localhost", 1), strings.Replace(hot, "Host: localhost", "Host : localhost", 1),
		strings.Replace(hot, "Host: localhost", "Host: localhost\r\n folded", 1), strings.Replace(hot, "Host: localhost", "hOST:\tlocalhost \r\nAccept: */*\r\nConnection: Keep-Alive\r\nUser-Agent: x", 1),
		strings.Replace(hot, "\r\n\r\n", "\r\nContent-Length: 5\r\n\r\n", 1), strings.Replace(hot, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n", 1),
		strings.Replace(hot, "Host", "Ho\u017ft", 1), strings.Replace(hot, "Host: localhost", "Host: localhost\v", 1), strings.Replace(hot, "Host: localhost", "Host: localhost\r", 1),
		strings.Replace(shown, "/ids", "/ids?count=3", 1), shown + post, strings.Replace(post, "?count=3", "", 1), strings.Replace(post, "count=3", "count=03", 1), strings.Replace(post, "count=3", "count=3&count=4", 1),
		strings.Replace(post, "Length: 0", "Length: 5", 1), with(post, "Content-Length: 0"), with(post, "Content-Type: application/json"), with(hot, "Content-Length: 0"),
		shown, with(shown, "Authorization: Bearer y"), with(hot, "Authorization:"), with(hot, "Authorization:\tBearer\tTOKEN "), with(hot, "Authorization: bearer  TOKEN"), with(hot, "Authorization: Bearer OTHER"),
		strings.Replace(shown, "HTTP/1.1", "HTTP/1.0", 1), strings.Replace(shown, "/next", "/next?count=2", 1), strings.Replace(shown, "/next", "/next?format=code&count=2", 1), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		with(post, "Authorization: Bearer TOKEN"), strings.Replace(with(post, "Authorization: Bearer TOKEN"), "?count=3", "?count=3&format=code", 1), strings.Replace(with(post, "Authorization: Bearer TOKEN"), "?count=3", "?format=id", 1),
		strings.Replace(with(post, "Authorization: Bearer TOKEN"), "*/*", "application/json, text/plain, */*", 1), with(shown, "Accept: text/plain;q=0.5, application/json"), with(shown, "Accept: application/json"),
		with(with(shown, "Accept: application/json"), "Accept: text/plain"), strings.Replace(shown, "orders/next", "coded/next?format=code&format=code", 1), strings.Replace(shown, "/next", "/next?count=2&count=2", 1),
		strings.Replace(shown, "orders", "coded", 1), strings.Replace(with(shown, "Content-Type: application/json\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "orders/next", "coded/next?format=code", 1),
		with(shown, "Connection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c"), with(shown, "Connection: close"), with(shown, "Expect: 100-continue"),
	} {
		f.Add([]byte(seed))
	}
	policy, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": {Hash: auth.HashToken(token)}, "other": {Hash: auth.HashToken(other), Tags: []string{"coded"}}})
	if err != nil {
		f.Fatal(err)
	}
	made := func() *restAPI {
		quiet := slog.New(slog.DiscardHandler)
		svc, err := service.New(context.Background(), memstore.New(), service.Options{
			Logger: quiet, NoAutoCreate: true, MaxCount: 1000, Tags: map[string]service.TagConfig{"orders": {}, "coded": {Code: "C-{id:6}"}},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = svc.Close(context.Background()) })
		return New(svc, Options{LoopbackOnly: true, Policy: policy, Logger: quiet, Gatherer: nopGatherer}).(*restAPI)
	}
	front, routes := made(), made()
	nc, _ := net.Pipe()
	f.Fuzz(func(t *testing.T, in []byte) {
		in = bytes.ReplaceAll(bytes.ReplaceAll(in, []byte("TOKEN"), []byte(token)), []byte("OTHER"), []byte(other))
		c := newFrontConn(context.Background(), front, nc, &auth.Conn{})
		asked, size := c.match(in)
		if size == 0 {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(in[:size])))
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		if values := r.Header["Authorization"]; len(values) > 1 || len(values) == 1 && (values[0] != string(asked.authorization) || values[0] == "") || len(values) == 0 && asked.authorization != nil {
			t.Fatalf("%q shows %q to net/http, and %q here", in, values, asked.authorization)
		}
		if !isOwn(r, isLoopbackHost) || r.Host != string(c.host) || r.ContentLength != 0 || r.Body != http.NoBody || r.Close || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Header["Expect"] != nil {
			t.Fatalf("%q is %+v to net/http", in, r)
		}
		if !bytes.HasSuffix(in[:size], []byte("\r\n\r\n")) || bytes.Count(in[:size], []byte("\r\n\r\n")) != 1 {
			t.Fatalf("%q ends elsewhere", in[:size])
		}
		if rest, _ := c.answer(in[:size]); len(rest) > 0 {
			return // it is not somebody's who may: the routes say so
		}
		ours, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.out)), r)
		if err != nil {
			t.Fatalf("%q: the answer is %q: %v", in, c.out, err)
		}
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		theirs := w.Result()
		if got, err := io.ReadAll(ours.Body); err != nil || ours.StatusCode != theirs.StatusCode || !bytes.Equal(got, w.Body.Bytes()) {
			t.Fatalf("%q: %d %q, %v; and by the route %d %q", in, ours.StatusCode, got, err, theirs.StatusCode, w.Body)
		}
		for _, name := range []string{"Content-Type", "Cache-Control", "Server", "Retry-After", "Www-Authenticate"} {
			if !slices.Equal(ours.Header[name], theirs.Header[name]) {
				t.Fatalf("%q: %s is %q, and by the route %q", in, name, ours.Header[name], theirs.Header[name])
			}
		}
	})
}

// What common clients send by themselves keeps them in the front: these are the headers
// of curl, Python's requests and http.client, fetch and http in Node.js, axios, HttpClient
// and HttpURLConnection in Java, okhttp and Go, and of proxies before a server.
func TestFrontServesClients(t *testing.T) {
	a := &restAPI{hosts: isLoopbackHost, svc: newService(t)}
	for name, headers := range map[string]string{
		"curl":               "Host: 127.0.0.1:18099|User-Agent: curl/7.88.1|Accept: */*|Content-Length: 0|Content-Type: application/x-www-form-urlencoded",
		"requests":           "Host: 127.0.0.1:18099|User-Agent: python-requests/2.34.2|Accept-Encoding: gzip, deflate|Accept: */*|Connection: keep-alive|Content-Length: 0",
		"http.client":        "Host: 127.0.0.1:18099|Accept-Encoding: identity",
		"fetch":              "host: 127.0.0.1:18099|connection: keep-alive|accept: */*|accept-language: *|sec-fetch-mode: cors|user-agent: node|accept-encoding: gzip, deflate|content-length: 0",
		"node:http":          "Host: 127.0.0.1:18099|Connection: keep-alive|Content-Length: 0",
		"axios":              "Accept: application/json, text/plain, */*|Content-Type: application/x-www-form-urlencoded|User-Agent: axios/1.7.9|Content-Length: 0|Accept-Encoding: gzip, compress, deflate, br|Host: 127.0.0.1:18099|Connection: keep-alive",
		"HttpClient":         "Connection: Upgrade, HTTP2-Settings|Content-Length: 0|Host: 127.0.0.1:18099|HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA|Upgrade: h2c|User-Agent: Java-http-client/17.0.15",
		"HttpURLConnection":  "User-Agent: Java/17.0.15|Host: 127.0.0.1:18099|Accept: text/html, image/gif, image/jpeg, */*; q=0.2|Connection: keep-alive|Content-type: application/x-www-form-urlencoded|Content-Length: 0",
		"okhttp":             "Content-Length: 0|Host: 127.0.0.1:18099|Connection: Keep-Alive|Accept-Encoding: gzip|User-Agent: okhttp/4.12.0",
		"net/http":           "Host: 127.0.0.1:18099|User-Agent: Go-http-client/1.1|Content-Length: 0|Content-Type: application/json|Accept-Encoding: gzip",
		"with a trace":       "Host: 127.0.0.1:18099|Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01|Tracestate: a=1|Baggage: b=2|X-Request-ID: 3",
		"of a reverse proxy": "Host: 127.0.0.1:18099|X-Forwarded-For: 192.0.2.1|X-Forwarded-Host: ids|X-Forwarded-Port: 443|X-Forwarded-Proto: https|X-Real-IP: 192.0.2.1|Forwarded: for=192.0.2.1|Via: 1.1 proxy",
	} {
		headers = strings.ReplaceAll(headers, "|", "\r\n") + "\r\nAuthorization: Bearer x\r\n\r\n"
		for _, line := range []string{"GET /v1/tags/orders/next HTTP/1.1\r\n", "POST /v1/tags/orders/ids?count=3 HTTP/1.1\r\n"} {
			if _, size := (&frontConn{api: a}).match([]byte(line + headers)); size != len(line+headers) {
				t.Errorf("%s: %q is not the front's", name, line+headers)
			}
		}
	}
}
