package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A consoleFleet is nodes over one store whose consoles see each other by a key.
type consoleFleet struct {
	t             *testing.T
	dir           string
	store         *testservers.Server
	admin, reader string // tokens
	nodes         map[string]*serving
}

func newConsoleFleet(t *testing.T, heartbeat string, names ...string) *consoleFleet {
	t.Helper()
	f := &consoleFleet{t: t, dir: t.TempDir(), store: testservers.Redis(t), nodes: map[string]*serving{}}
	f.write("fleet.key", strings.Repeat("k", 40)+"\n")
	f.write("other.key", strings.Repeat("o", 40)+"\n")
	var admin, reader string
	f.admin, admin = newToken(t)
	f.reader, reader = newToken(t)
	f.write("hapax.yaml", fmt.Sprintf("tokens: {ann: {hash: %q, scopes: [admin, issue]}, eve: {hash: %q, scopes: [read]}}\nheartbeat: %s\nmax_wait: 10s\ntags: {orders: {step: 1000, max_step: 1000}}\n", admin, reader, heartbeat))
	for _, name := range names {
		f.start(name)
	}
	return f
}

func (f *consoleFleet) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// clock returns the file that says by how much a node's clock is wrong.
func (f *consoleFleet) clock(name string) string { return filepath.Join(f.dir, name+".clock") }

// start starts a node, with the fleet's key unless the arguments name another.
func (f *consoleFleet) start(name string, args ...string) {
	f.t.Helper()
	f.write(name+".clock", "0s")
	env := []string{"HAPAX_TEST_CLOCK_OFFSET=@" + f.clock(name)}
	f.nodes[name] = serve(f.t, f.dir, env, append([]string{"--config", "hapax.yaml", "--store", f.store.URL, "--data", name, "--fleet-key", "fleet.key"}, args...)...)
}

// called returns the end of the name by which the console calls a node.
func (f *consoleFleet) called(name string) string { return filepath.Base(f.dir) + "/" + name }

// console returns the address of a node's console.
func (f *consoleFleet) console(name string) string {
	if a := f.nodes[name].addresses(); a.Admin != "" {
		return a.Admin + "/console/"
	}
	return f.nodes[name].url + "/console/"
}

// take takes numbers of a tag from a node.
func (f *consoleFleet) take(name, tag string, n int) {
	f.t.Helper()
	patience.Until(f.t, name+" issues "+tag, func() bool {
		status, _ := f.ask(http.MethodPost, fmt.Sprintf("%s/v1/tags/%s/ids?count=%d", f.nodes[name].url, tag, n), f.admin)
		return status == http.StatusOK
	})
}

// ask makes a request with a token, and returns the status and the text.
func (f *consoleFleet) ask(method, address, token string) (status int, text string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, address, http.NoBody)
	if err != nil {
		f.t.Error(err)
		return 0, ""
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := patient.Do(req)
	if err != nil {
		f.t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Error(err)
	}
	return res.StatusCode, string(body)
}

var nodeRow = regexp.MustCompile(`(?s)<tr><th scope="row"[^>]*>(.*?)</th>.*?</tr>`)

// row returns what the overview of a node has on another one.
func (f *consoleFleet) row(at, name string) string {
	f.t.Helper()
	_, text := f.ask(http.MethodGet, f.console(at), f.reader)
	nodes, _, _ := strings.Cut(text, `id="busiest"`)
	for _, found := range nodeRow.FindAllStringSubmatch(nodes, -1) {
		if strings.Contains(found[1], f.called(name)) {
			return found[0]
		}
	}
	return "" // the whole page would hold for every row
}

// awaitSeen waits until the console of a node shows others as serving.
func (f *consoleFleet) awaitSeen(at string, others ...string) {
	f.t.Helper()
	for _, other := range others {
		patience.Until(f.t, at+" shows "+other, func() bool { return strings.Contains(f.row(at, other), ">serving<") })
	}
}

// TestConsoleFleet has nodes see each other by a key, where the console is on another
// address, off, or with another key.
func TestConsoleFleet(t *testing.T) {
	t.Parallel()
	f := newConsoleFleet(t, "500ms")
	f.start("a", "--admin-http", "127.0.0.1:0")
	f.start("b")
	f.start("off", "--console=false")
	f.start("other", "--fleet-key", "other.key")
	f.awaitSeen("a", "b")
	f.awaitSeen("b", "a") // at the address that administers
	for name, why := range map[string]string{"off": "it serves no console there", "other": "it does not let this node see it"} {
		patience.Until(t, "the console says why "+name+" is not seen", func() bool { return strings.Contains(f.row("a", name), why) })
		if strings.Contains(f.row("a", name), ">serving<") {
			t.Errorf("%s is shown as if it had been heard", name)
		}
	}
	for what, tt := range map[string]struct {
		address string
		want    int
	}{
		"the other address of one with admin_http": {f.nodes["a"].url + "/console/", http.StatusNotFound},
		"its root":                                  {f.nodes["a"].url + "/", http.StatusNotFound},
		"the address that administers":              {f.console("a"), http.StatusOK},
		"the console that is off":                   {f.nodes["off"].url + "/console/", http.StatusNotFound},
		"the root of the one whose console is off":  {f.nodes["off"].url + "/", http.StatusNotFound},
		"a page of the one whose console is off":    {f.nodes["off"].url + "/console/login", http.StatusNotFound},
		"facts of the one whose console is off":     {f.nodes["off"].url + "/fleet?about=console", http.StatusNotImplemented},
		"facts, with a token that may see":          {f.nodes["b"].url + "/fleet?about=console", http.StatusOK},
		"the programming interface of the same one": {f.nodes["off"].url + "/v1/tags", http.StatusOK},
	} {
		if status, text := f.ask(http.MethodGet, tt.address, f.admin); status != tt.want {
			t.Errorf("%s: %d, want %d: %.300s", what, status, tt.want, text)
		}
	}
	if status, text := f.ask(http.MethodGet, f.nodes["b"].url+"/fleet?about=status", ""); status != http.StatusUnauthorized {
		t.Errorf("facts without a token or the key: %d: %.300s", status, text)
	}
	f.take("off", "orders", 1)
	traced := runWith(t, f.dir, "", []string{"HAPAX_TOKEN=" + f.admin}, "trace", "1", "--tag", "orders", "--fleet", "--server", f.nodes["b"].url)
	for _, name := range []string{"a", "b", "off"} {
		if !strings.Contains(traced.out, "node\t"+f.called(name)) && !strings.Contains(traced.out, "/"+name+"\tledger") {
			t.Errorf("a trace of the fleet does not have the ledger of %s:\n%s", name, traced.out)
		}
	}
	if traced.code != 1 || !strings.Contains(traced.out, "verdict\tgranted") || !strings.Contains(traced.err, f.called("other")+": it does not let this node see it") {
		t.Errorf("a trace of the fleet: exit code %d\n%s\n%s", traced.code, traced.out, traced.err)
	}
}

// TestConsoleOverTLS has two nodes see each other by their certificates, and lets in
// whose certificate stands for a token.
func TestConsoleOverTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	for _, name := range []string{"node", "ann", "stranger"} {
		ca.sign(name, false)
	}
	dir, store := t.TempDir(), testservers.Redis(t)
	token, hash := newToken(t)
	config := writeConfig(t, dir, "tokens: {ann: {certificate: ann, scopes: [admin]}, eve: {hash: %q, scopes: [read]}, nodes: {certificate: node, scopes: [read]}}\ntls_cert: %q\ntls_key: %q\ntls_client_ca: %q\nheartbeat: 500ms\n",
		hash, ca.file("node.pem"), ca.file("node.key"), ca.file("ca.pem"))
	third := newAuthority(t)
	third.sign("third", false)
	trusting := []string{"SSL_CERT_FILE=" + third.file("ca.pem")} // as the whole world trusts some
	var nodes []*serving
	for _, name := range []string{"one", "two"} {
		nodes = append(nodes, serve(t, dir, trusting, "--config", config, "--store", store.URL, "--data", name))
	}
	browser := func(certificate string) *http.Client {
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: ca.client(certificate)}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Jar: jar, Timeout: patient.Timeout}
	}
	get := func(b *http.Client, at string) (path, text string) {
		t.Helper()
		res, err := b.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.Request.URL.Path, string(body)
	}
	ann := browser("ann")
	for i, n := range nodes {
		other := filepath.Base(dir) + "/" + []string{"two", "one"}[i]
		var path, text string
		patience.Until(t, "both are seen, without a form", func() bool {
			path, text = get(ann, n.url+"/")
			return path == "/console/" && strings.Contains(text, other) && strings.Contains(text, "2 of 2 nodes can")
		})
		if !strings.Contains(text, "<span>ann</span>") || strings.Contains(text, "Log out") {
			t.Errorf("ann is not the one who is shown, or may log out: %s", text)
		}
	}
	stranger := browser("stranger")
	if path, _ := get(stranger, nodes[0].url+"/console/tags"); path != "/console/login" {
		t.Errorf("a certificate that stands for nothing leads to %s", path)
	}
	res, err := stranger.PostForm(nodes[0].url+"/console/login", url.Values{"token": {token}})
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	at, _ := url.Parse(nodes[0].url + "/console/")
	if cookies := stranger.Jar.Cookies(at); res.StatusCode != http.StatusOK || len(cookies) != 1 {
		t.Errorf("log in: %s, %v", res.Status, cookies)
	}
	c, err := tls.Dial("tcp", strings.TrimPrefix(nodes[0].url, "https://"), ca.client(""))
	if err == nil {
		_, _ = c.Write([]byte("GET /console/ HTTP/1.0\r\n\r\n"))
		got, _ := io.ReadAll(c)
		c.Close()
		if bytes.Contains(got, []byte("200 OK")) {
			t.Error("somebody without a certificate sees the console")
		}
	}
	// A row may point at a third party, whose certificate is good for its name.
	serve(t, dir, nil, "--store", store.URL, "--data", "third", "--tls-cert", third.file("third.pem"), "--tls-key", third.file("third.key"))
	patience.Until(t, "a third party is not believed", func() bool {
		_, text := get(ann, nodes[0].url+"/console/")
		return strings.Contains(text, filepath.Base(dir)+"/third") && strings.Contains(text, "certificate signed by unknown authority")
	})
	if _, text := get(ann, nodes[0].url+"/console/"); !strings.Contains(text, "2 of 3 nodes can") {
		t.Errorf("who is believed: %s", text)
	}
}
