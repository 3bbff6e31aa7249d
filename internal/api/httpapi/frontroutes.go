package httpapi

import (
	"bufio"
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
)

// frontRoutes are the paths of a handler that a front asks, and what the last request on
// its connection was: clients say the same again and again.
type frontRoutes struct {
	handler http.Handler
	paths   []string

	target string
	url    *url.URL // of the target
	block  []byte   // the headers, with the empty line behind them
	header http.Header
	host   string
}

var frontGetAny = []byte("GET ")

// routed has the handler answer the request at the front of a buffer, and returns its
// length: 0 if it is not one for the front.
func (c *frontConn) routed(in []byte) (size int) {
	target, headers, ok := c.routes.cut(in)
	if !ok || !c.readHeaders(headers) || !c.routes.parse(target) {
		return 0
	}
	if c.api != nil && c.api.opts.Policy == nil {
		c.conn.Vouch()
	}
	if c.caller != nil {
		c.calledBy(nil) // what was shown before is not good here
	}
	w := recorded{header: make(http.Header, 4)}
	c.routes.handler.ServeHTTP(&w, c.request())
	if !c.client.HasLeft() {
		c.write(&w)
	}
	return len(in) - len(headers) + len(c.routes.block)
}

// cut returns the target of a GET for one of the paths, and what follows the first line.
func (f *frontRoutes) cut(in []byte) (target, headers []byte, ok bool) {
	in, ok = bytes.CutPrefix(in, frontGetAny)
	if !ok || !slices.ContainsFunc(f.paths, func(p string) bool { return len(in) >= len(p) && string(in[:len(p)]) == p }) {
		return nil, nil, false
	}
	end := max(0, bytes.IndexByte(in, ' '))
	headers, ok = bytes.CutPrefix(in[end:], frontProtocol)
	return in[:end], headers, ok
}

// parse reads a target as net/http does.
func (f *frontRoutes) parse(target []byte) bool {
	if f.url != nil && string(target) == f.target {
		return true
	}
	text := string(target)
	u, err := url.ParseRequestURI(text)
	if err != nil {
		return false
	}
	f.target, f.url = text, u
	return true
}

// readHeaders reads the headers of a request that the front may answer.
func (c *frontConn) readHeaders(in []byte) bool {
	f := &c.routes
	// The block ends with the empty line: the same bytes are the same headers, and no more of them.
	if len(f.block) > 0 && bytes.HasPrefix(in, f.block) {
		return true
	}
	size, ok := c.matchHeaders(new(frontRequest), in)
	if !ok {
		return false
	}
	header, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(in[:size]))).ReadMIMEHeader()
	if err != nil {
		return false
	}
	f.block, f.header, f.host = bytes.Clone(in[:size]), http.Header(header), header.Get("Host")
	delete(f.header, "Host")
	return true
}

// request returns the request that was read, as net/http would.
func (c *frontConn) request() *http.Request {
	r := &http.Request{
		Method: http.MethodGet, URL: c.routes.url, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: c.routes.header, Body: http.NoBody,
		Host: c.routes.host, RemoteAddr: c.address, RequestURI: c.routes.target, TLS: c.secured,
	}
	return r.WithContext(c.client)
}
