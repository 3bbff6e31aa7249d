package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	be "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/patience"
)

// hangUp has the server read its configuration anew.
func (s *serving) hangUp(awaited string) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	s.await(awaited)
}

// A name in a certificate stands for a token, in every protocol, until it is revoked.
func TestCertificateNames(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign("server", false)
	ca.sign("billing", false, &url.URL{Scheme: "spiffe", Host: "example", Path: "/billing"})
	ca.sign("reports", false)
	ca.sign("unnamed", false, &url.URL{Scheme: "spiffe", Host: "example", Path: "/billing/other"})
	token, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	write := func(billing string) {
		t.Helper()
		text := fmt.Sprintf("tokens:\n  app: {hash: '%s', tags: [app]}\n  reports: {certificate: reports, scopes: [metrics]}\n%s", hash, billing)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("  billing: {certificate: 'spiffe://example/billing', tags: [orders]}\n")
	s := serve(t, dir, nil, "--config", config, "--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"), "--tls-client-ca", ca.file("ca.pem"))
	a := s.addresses()
	type client struct {
		name string
		next func(token, tag string) error
	}
	clients := func(cert string) []client {
		config := ca.client(cert)
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		web := &http.Client{Transport: transport}
		rpc := hapaxv1connect.NewIssueServiceClient(web, a.HTTP, connect.WithGRPC())
		kept := redis.NewClient(&redis.Options{Addr: a.RESP, TLSConfig: config, MaxRetries: -1, PoolSize: 1, Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = kept.Close() })
		return []client{
			{"HTTP", func(token, tag string) error {
				headers := []string{}
				if token != "" {
					headers = append(headers, "Authorization: Bearer "+token)
				}
				if status, code := request(t, web, "GET", a.HTTP+"/v1/tags/"+tag+"/next", headers...); status != http.StatusOK {
					return fmt.Errorf("%s", code)
				}
				return nil
			}},
			{"gRPC", func(token, tag string) error {
				ctx, info := connect.NewClientContext(t.Context())
				if token != "" {
					info.RequestHeader().Set("Authorization", "Bearer "+token)
				}
				_, err := rpc.Next(ctx, &hapaxv1.NextRequest{Tag: tag})
				return err
			}},
			{"Redis", func(token, tag string) error {
				if token == "" {
					return kept.Incr(t.Context(), tag).Err()
				}
				c := redis.NewClient(&redis.Options{Addr: a.RESP, TLSConfig: config, MaxRetries: -1, Password: token})
				defer c.Close()
				return c.Incr(t.Context(), tag).Err()
			}},
		}
	}
	certs := map[string][]client{}
	for _, cert := range []string{"billing", "reports", "unnamed"} {
		certs[cert] = clients(cert)
	}
	check := func(cert, token, tag string, want string) {
		t.Helper()
		for _, c := range certs[cert] {
			err := c.next(token, tag)
			said := "issued"
			switch text := fmt.Sprint(err); {
			case err == nil:
			case strings.Contains(text, "unauthenticated"), strings.Contains(text, "NOAUTH"), strings.Contains(text, "WRONGPASS"):
				said = "unknown"
			case strings.Contains(text, "permission_denied"):
				said = "forbidden"
			default:
				said = text
			}
			if said != want {
				t.Errorf("%s with the certificate of %s, for %s: %s, want %s", c.name, cert, tag, said, want)
			}
		}
	}
	check("billing", "", "orders", "issued")
	check("billing", "", "app", "forbidden")
	check("reports", "", "orders", "forbidden")
	check("unnamed", "", "orders", "unknown")
	check("billing", token, "app", "issued") // a token counts before the certificate
	check("unnamed", token, "app", "issued")
	wrong := token[:31] + "2"
	if wrong == token {
		wrong = token[:31] + "3"
	}
	check("billing", wrong, "orders", "unknown")
	write("")
	s.hangUp("configuration read")
	check("billing", "", "orders", "unknown")
	check("unnamed", token, "app", "issued")
}

// An h2 is the client's end of an HTTP/2 connection, by hand.
type h2 struct {
	net.Conn
	in *bufio.Reader
}

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Types of frames.
const (
	h2Data, h2Headers, h2Reset, h2Settings, h2GoAway, h2Window = 0, 1, 3, 4, 7, 8
)

func dialH2(t *testing.T, address string) *h2 {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience.Long))
	c := &h2{nc, bufio.NewReader(nc)}
	c.write(t, []byte(h2Preface))
	c.send(t, h2Settings, 0, 0, nil)
	return c
}

func (c *h2) write(t *testing.T, p []byte) {
	t.Helper()
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
}

func h2Frame(kind, flags byte, stream uint32, length int) []byte {
	head := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
	return be.BigEndian.AppendUint32(head, stream)
}

func (c *h2) send(t *testing.T, kind, flags byte, stream uint32, payload []byte) {
	t.Helper()
	c.write(t, append(h2Frame(kind, flags, stream, len(payload)), payload...))
}

// post begins a request whose body does not end.
func (c *h2) post(t *testing.T, stream uint32, path string) {
	t.Helper()
	block := []byte{0x83, 0x86, 0x01, 9} // POST, http, an authority
	block = append(append(block, "localhost"...), 0x04, byte(len(path)))
	block = append(block, path...)
	const contentType, endHeaders = "application/proto", 4
	block = append(append(block, 0x0f, 31-15, byte(len(contentType))), contentType...)
	c.send(t, h2Headers, endHeaders, stream, block)
}

// read returns the next frame; an error where the connection has ended.
func (c *h2) read() (kind byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err = io.ReadFull(c.in, payload)
	return head[3], be.BigEndian.Uint32(head[5:]), payload, err
}

// What one connection of HTTP/2 may have on the way is bounded, whoever it is.
func TestHTTP2Limits(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), nil)
	c := dialH2(t, s.url)
	settings, window := map[uint16]uint32{}, uint32(65535)
	for window == 65535 || len(settings) == 0 {
		kind, stream, payload, err := c.read()
		switch {
		case err != nil:
			t.Fatal(err)
		case kind == h2Settings:
			for p := payload; len(p) >= 6; p = p[6:] {
				settings[be.BigEndian.Uint16(p)] = be.BigEndian.Uint32(p[2:])
			}
		case kind == h2Window && stream == 0:
			window += be.BigEndian.Uint32(payload)
		}
	}
	const headerTable, streams, streamWindow, frame, headers = 1, 3, 4, 5, 6
	for id, most := range map[uint16]uint32{headerTable: 4 << 10, streams: 128, streamWindow: 64 << 10, frame: 16 << 10, headers: 20 << 10} {
		if got, told := settings[id]; !told && id != frame || got > most {
			t.Errorf("setting %d is %d, want up to %d", id, got, most)
		}
	}
	if window > 256<<10 {
		t.Errorf("%d bytes may be on the way", window)
	}
	const path = "/hapax.v1.IssueService/Next"
	for i := range uint32(200) {
		c.post(t, 2*i+1, path)
	}
	refused := map[uint32]bool{}
	for len(refused) < 200-128 {
		kind, stream, payload, err := c.read()
		if err != nil {
			t.Fatalf("after %d: %v", len(refused), err)
		}
		if kind == h2Reset && len(payload) == 4 && (payload[3] == 7 || payload[3] == 1) { // REFUSED_STREAM, or PROTOCOL_ERROR
			refused[stream] = true
		}
	}
	if refused[1] || refused[2*100+1] {
		t.Error("streams within the limit were refused")
	}
	big := dialH2(t, s.url)
	big.write(t, h2Frame(h2Data, 0, 1, 16<<10+1))
	for {
		kind, _, _, err := big.read()
		if err != nil {
			break // closed, as it must be
		}
		if kind == h2GoAway {
			break
		}
	}
}

// Silent connections of one address keep nobody else out, with TLS and without, and
// do not hold up the end.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign("server", false)
	token, hash := newToken(t)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "hapax.yaml")
			if err := os.WriteFile(config, []byte("tokens: {app: {hash: '"+hash+"'}}"), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"--config", config, "--http-connections", "100", "--admin-http", "127.0.0.1:0"}
			if secure {
				args = append(args, "--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"))
			}
			s := serve(t, dir, nil, args...)
			a := s.addresses()
			at := a.HTTP[strings.LastIndex(a.HTTP, "/")+1:]
			transport := &http.Transport{TLSClientConfig: ca.client("")}
			defer transport.CloseIdleConnections()
			kept := &http.Client{Transport: transport}
			next := func(client *http.Client, where string) {
				t.Helper()
				if status, code := request(t, client, "GET", where+"/v1/tags/orders/next", "Authorization: Bearer "+token); status != http.StatusOK {
					t.Errorf("%d %s", status, code)
				}
			}
			next(kept, a.HTTP)
			var silent []net.Conn
			for i := range 2000 {
				nc, err := net.Dial("tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				silent = append(silent, nc)
				if i%2 == 0 {
					_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost") // it may have been closed
				}
				if i%500 == 0 {
					fresh := &http.Transport{TLSClientConfig: ca.client("")}
					next(&http.Client{Transport: fresh}, a.HTTP)
					fresh.CloseIdleConnections()
				}
			}
			next(kept, a.HTTP)
			next(kept, a.Admin)
			const strangers = 64 // of 100
			patience.Until(t, "silent connections are cut", func() bool {
				silent = slices.DeleteFunc(silent, func(nc net.Conn) bool {
					_ = nc.SetReadDeadline(time.Now().Add(time.Millisecond))
					_, err := io.Copy(io.Discard, nc)
					return !errors.Is(err, os.ErrDeadlineExceeded)
				})
				return len(silent) <= strangers
			})
			if code := s.stop(); code != 0 || strings.Contains(s.logged(), "cut off") {
				t.Errorf("exit code %d: %s", code, s.logged())
			}
		})
	}
}

// Where files are scarce, connections of one protocol do not starve the others.
func TestScarceFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(config, []byte("compat: {vesta: {machine: 'fixed:7', http: '127.0.0.1:0', dubbo: '127.0.0.1:0'}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(context.Background(), dir, nil, "serve", "--http", "127.0.0.1:0", "--log-format", "json", "--config", config)
	cmd = &exec.Cmd{Path: "/bin/sh", Args: append([]string{"sh", "-c", `ulimit -n 300 && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...), Dir: dir, Env: cmd.Env}
	s := start(t, cmd)
	s.await(`"level":"INFO","msg":"the limit on open files allows fewer connections`)
	if strings.Contains(s.logged(), "connections are refused") {
		t.Errorf("a warning before any connection was refused: %s", s.logged())
	}
	a := s.addresses()
	web := strings.TrimPrefix(a.HTTP, "http://")
	for _, flooded := range s.listening() {
		const kept = 5 // of each protocol
		before := len(s.files())
		var silent []net.Conn
		for range 400 {
			nc, err := net.Dial("tcp", flooded)
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, nc)
		}
		if flooded != a.RESP {
			open(t, a.RESP, kept, takeRESP)
		}
		if flooded != web {
			open(t, web, kept, takeHTTP)
		}
		for _, nc := range silent {
			_ = nc.Close()
		}
		patience.Until(t, "the server lets the flood go", func() bool { return len(s.files()) <= before+2*kept })
	}
	s.await(`"level":"WARN","msg":"connections are refused: the limit on open files is too low`)
	if strings.Contains(s.logged(), "too many open files") {
		t.Errorf("files ran out: %s", s.logged())
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// files returns the server's open files, as the system names them.
func (s *serving) files() []string {
	return globbed(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
}

// listening returns the addresses on which the server listens, as the system tells.
func (s *serving) listening() (at []string) {
	s.t.Helper()
	own := map[string]bool{}
	for _, fd := range s.files() {
		if link, err := os.Readlink(fd); err == nil {
			own[link] = true
		}
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		s.t.Skip("no /proc")
	}
	for line := range strings.Lines(string(table)) {
		const listens = "0A"
		var port int
		if f := strings.Fields(line); len(f) > 9 && f[3] == listens && own["socket:["+f[9]+"]"] {
			if _, err := fmt.Sscanf(f[1][strings.Index(f[1], ":")+1:], "%X", &port); err != nil {
				s.t.Fatal(err)
			}
			at = append(at, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	if len(at) != 4 {
		s.t.Fatalf("it listens at %v", at)
	}
	return at
}

// A token is no token in a URL.
func TestTokenInURL(t *testing.T) {
	t.Parallel()
	token, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(config, []byte("tokens: {app: {hash: '"+hash+"'}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config)
	for _, path := range []string{
		"/v1/tags/orders/next?access_token=" + token, "/v1/tags/orders/next?token=" + token, "/v1/tags/orders/next?Authorization=Bearer+" + token,
		"/hapax.v1.IssueService/Next?connect=v1&encoding=json&message=%7B%7D&authorization=Bearer+" + token,
	} {
		if status, code := request(t, &http.Client{}, "GET", s.url+path); status == http.StatusOK {
			t.Errorf("%s: %d %s", path, status, code)
		}
	}
	withUser := strings.Replace(s.url, "://", "://app:"+token+"@", 1)
	if status, code := request(t, &http.Client{}, "GET", withUser+"/v1/tags/orders/next"); status != http.StatusUnauthorized {
		t.Errorf("basic authentication: %d %s", status, code)
	}
	if s.stop(); strings.Contains(s.logged(), token) {
		t.Error("the log tells a token")
	}
}

// Who shows TinyID's token is no stranger beside hapax's tokens: more clients than
// strangers may be keep their connections.
func TestTinyIDClientsAreKnown(t *testing.T) {
	t.Parallel()
	const clients, secret = 30, "0f673adf80504e2eaa552f5d791b644c"
	_, hash := newToken(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "hapax.yaml")
	text := fmt.Sprintf("tokens: {app: {hash: '%s'}}\ntags: {orders: {}}\ncompat: {tinyid: {tokens: {orders: ['sha256:%x']}}}\n", hash, sha256.Sum256([]byte(secret)))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, "--config", config, "--http-connections", "100")
	type client struct {
		net.Conn
		answers *bufio.Reader
	}
	next := func(c client) {
		t.Helper()
		_, err := io.WriteString(c, "GET /tinyid/id/nextId?bizType=orders&token="+secret+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		var resp *http.Response
		if err == nil {
			resp, err = http.ReadResponse(c.answers, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if body, err := answer(resp); err != nil || !strings.Contains(string(body), `"code":200`) {
			t.Fatalf("%s, %v", body, err)
		}
	}
	var kept []client
	for range clients {
		nc, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(patience.Long))
		kept = append(kept, client{nc, bufio.NewReader(nc)})
		next(kept[len(kept)-1])
	}
	for _, c := range kept {
		next(c)
	}
}
