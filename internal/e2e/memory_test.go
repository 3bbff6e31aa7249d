package e2e

import (
	"bytes"
	"crypto/sha256"
	be "encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// An attack is what clients that have shown nothing do to a port: each of its
// connections is opened anew when the server cuts it.
type attack struct {
	name  string
	holds bool // it says so much and then waits, and is not only for a soak
	port  func(ports) string
	conns int
	on    func(nc net.Conn)
}

// ports are the addresses at which strangers can begin.
type ports struct{ http, resp, dubbo, vesta, tinyid string }

func httpPort(p ports) string { return p.http }
func respPort(p ports) string { return p.resp }

// mostForStrangers is how much more memory the server may hold than at rest.
const mostForStrangers = 64 << 20

// What clients make the server keep before they have shown a token, or where none is
// asked for, is bounded: its resident size grows by 64 MiB at most, whatever they do at
// any of its ports. Meanwhile, and afterwards, clients are served. Here each attacker says
// what it has to say once, and holds its connection for as long as it may.
func TestMemoryForStrangers(t *testing.T) {
	t.Parallel()
	s, p, takes := serveStrangers(t)
	before := s.resident()
	for _, a := range attacks() {
		if !a.holds {
			continue
		}
		s.forgetPeak()
		said, stop := a.begin(t, a.port(p), true)
		patience.Until(t, "all attackers of "+a.name+" are cut off, or wait", func() bool { return said() >= a.conns }, s)
		takes[a.port(p)]()
		a.judge(t, before, s.peak())
		stop()
	}
	for _, take := range takes {
		take()
	}
}

// TestMemoryForStrangersSoak: every attack goes on, on a server that was attacked in no
// other way.
func TestMemoryForStrangersSoak(t *testing.T) {
	patience.Soak(t, "thousands of connections that flood the server")
	for _, a := range attacks() {
		s, p, takes := serveStrangers(t)
		before := s.resident()
		s.forgetPeak()
		_, stop := a.begin(t, a.port(p), false)
		patience.Slow(8 * time.Second)
		takes[a.port(p)]()
		peak := s.peak()
		stop()
		a.judge(t, before, peak)
		for _, take := range takes {
			take()
		}
		s.kill()
	}
}

// judge tells by how much the server grew, and fails the test where that is too much.
func (a attack) judge(t *testing.T, before, peak int64) {
	t.Helper()
	grown := peak - before
	t.Logf("%s: %.1f MiB at rest, at most %.1f MiB more", a.name, float64(before)/(1<<20), float64(grown)/(1<<20))
	if grown > mostForStrangers {
		t.Errorf("%s: %d connections made the server take %.1f MiB more, want at most %d", a.name, a.conns, float64(grown)/(1<<20), mostForStrangers>>20)
	}
}

// begin attacks until stop is called, which waits for the end: each attacker comes again
// and again, or once. said tells how many have said all that they have to say, or are not
// listened to any more.
func (a attack) begin(t *testing.T, address string, once bool) (said func() int, stop func()) {
	t.Helper()
	var attackers sync.WaitGroup
	var silent atomic.Int64
	var mu sync.Mutex // guards the rest
	open, over := map[net.Conn]bool{}, false
	ended := make(chan struct{}) // closed when over
	for i := range a.conns {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%8))}, Timeout: time.Second}
		attackers.Go(func() {
			for {
				nc, err := from.Dial("tcp", address)
				mu.Lock()
				if over {
					mu.Unlock()
					if err == nil {
						_ = nc.Close()
					}
					return
				}
				if err != nil {
					mu.Unlock()
					patience.Again() // the server's queue is full
					continue
				}
				open[nc] = true
				mu.Unlock()
				if once {
					speaker := &speaker{Conn: nc, silent: sync.OnceFunc(func() { silent.Add(1) })}
					_ = nc.SetWriteDeadline(time.Now().Add(patience.Scale(2 * time.Second))) // the server may not read all of it
					a.on(speaker)
					speaker.silent()
					<-ended
				} else {
					a.on(nc)
				}
				_ = nc.Close()
				mu.Lock()
				delete(open, nc)
				mu.Unlock()
			}
		})
	}
	return func() int { return int(silent.Load()) }, func() {
		mu.Lock()
		over = true
		close(ended)
		for nc := range open {
			_ = nc.Close()
		}
		mu.Unlock()
		attackers.Wait()
	}
}

// A speaker is a connection of an attacker, all said once it reads.
type speaker struct {
	net.Conn
	silent func()
}

func (s *speaker) Read(p []byte) (int, error) {
	s.silent()
	return s.Conn.Read(p)
}

// serveStrangers starts a server with default limits that speaks at every port it can,
// and returns what takes a number at each of them as an honest client.
func serveStrangers(t *testing.T) (*serving, ports, map[string]func()) {
	t.Helper()
	const secret = "0f673adf80504e2eaa552f5d791b644c"
	token, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	p := ports{dubbo: freeAddress(t), vesta: freeAddress(t), tinyid: freeAddress(t)}
	text := fmt.Sprintf(`tokens: {app: {hash: '%s'}}
tags: {orders: {}}
compat:
  vesta: {machine: 'fixed:7', http: '%s', dubbo: '%s'}
  tinyid: {http: '%s', tokens: {orders: ['sha256:%x']}}
`, hash, p.vesta, p.dubbo, p.tinyid, sha256.Sum256([]byte(secret)))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config)
	a := s.addresses()
	p.http, p.resp = strings.TrimPrefix(a.HTTP, "http://"), a.RESP
	asking := func(address, request, want string) func() {
		return func() {
			t.Helper()
			var got []byte
			var err error
			if late := patience.Try("an honest client of "+address, func() bool {
				got, err = ask(address, request, len(want))
				return err == nil && string(got) == want
			}); late != nil {
				t.Errorf("%v: %q, %v", late, got, err)
			}
		}
	}
	const get, answered = "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", "HTTP/1.1 200 OK"
	takes := map[string]func(){
		p.http:   asking(p.http, fmt.Sprintf(get, "/v1/tags/orders/next", "Authorization: Bearer "+token+"\r\n"), answered),
		p.resp:   asking(p.resp, "AUTH "+token+"\r\nINCR orders\r\n", "+OK\r\n:"),
		p.tinyid: asking(p.tinyid, fmt.Sprintf(get, "/tinyid/id/nextIdSimple?bizType=orders&token="+secret, ""), answered),
		p.vesta:  asking(p.vesta, fmt.Sprintf(get, "/genid", ""), answered),
		p.dubbo:  asking(p.dubbo, string(dubboCall("genId", "", nil)), "\xda\xbb\x02\x14"),
	}
	for _, take := range takes {
		take()
	}
	return s, p, takes
}

// ask sends a request over a connection of its own, and returns the first bytes of the answer that
// comes back.
func ask(address, request string, n int) ([]byte, error) {
	nc, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience.Call))
	if _, err = io.WriteString(nc, request); err != nil {
		return nil, err
	}
	got := make([]byte, n)
	read, err := io.ReadFull(nc, got)
	return got[:read], err
}

// forgetPeak has the system begin anew to note the highest resident size.
func (s *serving) forgetPeak() {
	s.t.Helper()
	const peak = "5"
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte(peak), 0o600); err != nil {
		s.t.Skipf("the system does not tell peaks: %v", err)
	}
}

// peak returns the highest resident size since forgetPeak.
func (s *serving) peak() int64 { return s.status("VmHWM:") }

func attacks() []attack {
	return []attack{
		{"HTTP/2 bodies", true, httpPort, 600, h2Attack(func(stream uint32) []byte {
			b := h2Request(stream, "/hapax.v1.IssueService/Next", "application/proto", false)
			for range 4 {
				b = append(append(b, h2Frame(h2Data, 0, stream, 16000)...), make([]byte, 16000)...)
			}
			return b
		}, 128)},
		{"HTTP/2 rapid reset", false, httpPort, 200, h2Attack(h2Reset1, 0)},
		{"HTTP/2 rapid reset, many", false, httpPort, 600, h2Attack(h2Reset1, 0)},
		{"HTTP/2 health checks", true, httpPort, 1000, h2Attack(func(stream uint32) []byte {
			b := h2Request(stream, "/grpc.health.v1.Health/Check", "application/grpc", true)
			return append(append(b, h2Frame(h2Data, 0, stream, 1000)...), make([]byte, 1000)...)
		}, 128)},
		{"HTTP/2 references to a long header", false, httpPort, 500, h2Attack(h2Bomb, 0)},
		{"HTTP/2 settings unread", false, httpPort, 500, h2Attack(func(uint32) []byte { return bytes.Repeat(h2Frame(h2Settings, 0, 0, 0), 100) }, 0)},
		{"HTTP/2 a header without end", false, httpPort, 500, h2Attack(h2Endless, 0)},
		{"HTTP/1 headers without end", true, httpPort, 1000, hold("GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-a: a\r\n", 1500))},
		{"HTTP/1 bodies without end", true, httpPort, 2000, hold("POST /hapax.v1.IssueService/Next HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/proto\r\nContent-Length: 4000000\r\n\r\n" + strings.Repeat("a", 64<<10))},
		{"HTTP/1 requests unread", false, httpPort, 1000, flood("GET /v1/tags/orders/next HTTP/1.1\r\nHost: localhost\r\n\r\n")},
		{"Redis, half a command", true, respPort, 1000, hold("*2\r\n$4\r\nAUTH\r\n$60000\r\n" + strings.Repeat("a", 59_000))},
		{"Redis, a part of a command", true, respPort, 2000, hold("*2\r\n$4\r\nAUTH\r\n$4000\r\n" + strings.Repeat("a", 3900))},
		{"Redis, replies unread", false, respPort, 1000, flood("INCR orders\r\n")},
		{"Redis, empty arguments", false, respPort, 1000, flood("*1000\r\n" + strings.Repeat("$0\r\n\r\n", 1000))},
		{"Dubbo, replies unread", false, func(p ports) string { return p.dubbo }, 500, flood(string(dubboCall("$echo", "Ljava/lang/Object;", make([]byte, 15_000))))},
		{"Dubbo, silent", true, func(p ports) string { return p.dubbo }, 1100, hold("")},
		{"Dubbo, half a frame", true, func(p ports) string { return p.dubbo }, 1100, hold(string(dubboCall("$echo", "Ljava/lang/Object;", make([]byte, 15_000))[:15_000]))},
		{"Vesta, headers without end", true, func(p ports) string { return p.vesta }, 2000, hold("GET /genid HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-a: a\r\n", 1500))},
		{"TinyID, replies unread", false, func(p ports) string { return p.tinyid }, 1000, flood("GET /tinyid/id/nextId?bizType=orders&token=x HTTP/1.1\r\nHost: localhost\r\n\r\n")},
	}
}

// hold says something, and then nothing more, until the server cuts the connection.
func hold(text string) func(net.Conn) {
	return func(nc net.Conn) {
		if _, err := io.WriteString(nc, text); err == nil {
			_, _ = io.Copy(io.Discard, nc)
		}
	}
}

// flood says something again and again, and reads nothing.
func flood(text string) func(net.Conn) {
	block := []byte(strings.Repeat(text, 1+(8<<10)/len(text)))
	return func(nc net.Conn) {
		_ = nc.(*net.TCPConn).SetReadBuffer(4 << 10)
		for {
			if _, err := nc.Write(block); err != nil {
				return
			}
		}
	}
}

// h2Attack begins HTTP/2 and says for each stream what frames returns, for so many
// streams and then nothing more; 0 is without end.
func h2Attack(frames func(stream uint32) []byte, streams int) func(net.Conn) {
	return func(nc net.Conn) {
		if _, err := nc.Write(append([]byte(h2Preface), h2Frame(h2Settings, 0, 0, 0)...)); err != nil {
			return
		}
		for i := uint32(0); streams == 0 || i < uint32(streams); i++ {
			if _, err := nc.Write(frames(2*i + 1)); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, nc)
	}
}

const h2Continuation, h2EndStream, h2EndHeaders = 9, 1, 4

// h2Request begins a request whose body does not end, perhaps with a long header that
// takes one byte from the second time on.
func h2Request(stream uint32, path, contentType string, long bool) []byte {
	block := append([]byte{0x83, 0x86, 0x01, 9}, "localhost"...)
	block = append(append(block, 0x04, byte(len(path))), path...)
	block = append(append(block, 0x0f, 31-15, byte(len(contentType))), contentType...)
	switch {
	case long && stream == 1:
		block = append(block, h2Long()...)
	case long:
		block = append(block, 0x80|62)
	}
	return append(h2Frame(h2Headers, h2EndHeaders, stream, len(block)), block...)
}

// h2Long is a header of nearly 4,000 bytes that the server is to remember.
func h2Long() []byte {
	const long = 3900
	b := []byte{0x40, 3, 'x', '-', 'b', 0x7f, byte((long-127)&0x7f) | 0x80, byte((long - 127) >> 7)}
	return append(b, bytes.Repeat([]byte("a"), long)...)
}

// h2Reset1 asks for something, and takes it back at once.
func h2Reset1(stream uint32) []byte {
	block := append([]byte{0x82, 0x86, 0x01, 9}, "localhost"...)
	block = append(append(block, 0x04, 20), "/v1/tags/orders/next"...)
	b := append(h2Frame(h2Headers, h2EndHeaders|h2EndStream, stream, len(block)), block...)
	return be.BigEndian.AppendUint32(append(b, h2Frame(h2Reset, 0, stream, 4)...), 8)
}

// h2Bomb refers to a long header many times.
func h2Bomb(stream uint32) []byte {
	block := append([]byte{0x82, 0x86, 0x01, 9}, "localhost"...)
	block = append(append(block, 0x04, 8), "/healthz"...)
	if stream == 1 {
		block = append(block, h2Long()...)
	}
	block = append(block, bytes.Repeat([]byte{0x80 | 62}, 4)...)
	return append(h2Frame(h2Headers, h2EndHeaders|h2EndStream, stream, len(block)), block...)
}

// h2Endless is a request's header that goes on and on.
func h2Endless(stream uint32) []byte {
	if stream == 1 {
		block := append([]byte{0x82, 0x86, 0x01, 9}, "localhost"...)
		return append(h2Frame(h2Headers, 0, 1, len(block)), block...)
	}
	block := h2Long()
	block[0] = 0x10 // not to be remembered
	return append(h2Frame(h2Continuation, 0, 1, len(block)), block...)
}

// dubboCall is a call of IdService with Dubbo.
func dubboCall(method, types string, argument []byte) []byte {
	text := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	long := func(b []byte, s string) []byte { // of 32 bytes and more
		return append(be.BigEndian.AppendUint16(append(b, 'S'), uint16(len(s))), s...)
	}
	body := long(text(nil, "2.0.2"), "com.robert.vesta.service.intf.IdService")
	body = text(text(text(body, "0.0.0"), method), types)
	if argument != nil {
		body = long(body, strings.Repeat("a", len(argument)))
	}
	body = append(body, 'N')
	head := be.BigEndian.AppendUint64([]byte{0xda, 0xbb, 0xc2, 0}, 1)
	return append(be.BigEndian.AppendUint32(head, uint32(len(body))), body...)
}
