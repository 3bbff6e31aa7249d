package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/server"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

const serveVariable = "HAPAX_TEST_EMBEDDED"

// TestMain is a server with strategies of its own where the test starts it as a process.
func TestMain(m *testing.M) {
	if os.Getenv(serveVariable) == "" {
		os.Exit(m.Run())
	}
	os.Unsetenv(serveVariable)
	server.Main(func(r *strategy.Registry, store driver.Store) error {
		return errors.Join(
			r.Register("marked-segment", strategy.Func(func(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
				s, err := hapax.NewSegment(ctx, store, "marked@"+tag.Name, hapax.SegmentOptions{})
				return markedSegment{s}, err
			})),
			r.Register("marked-snowflake", strategy.Func(func(ctx context.Context, _ hapax.Tag) (hapax.Issuer, error) {
				s, err := hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{Pool: "marked"})
				return markedSnowflake{s}, err
			})),
			r.Register("bare-segment", strategy.Func(func(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
				s, err := hapax.NewSegment(ctx, store, "bare@"+tag.Name, hapax.SegmentOptions{})
				return s, err
			})),
		)
	})
}

// mark is what the strategies add: a number without it was taken round them.
const mark hapax.ID = 1 << 62

type markedSegment struct{ *hapax.Segment }

func (m markedSegment) Next(ctx context.Context) (hapax.ID, error) { return markNext(ctx, m.Segment) }

func (m markedSegment) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	return markNextN(ctx, m.Segment, dst)
}

type markedSnowflake struct{ *hapax.Snowflake }

func (m markedSnowflake) Next(ctx context.Context) (hapax.ID, error) {
	return markNext(ctx, m.Snowflake)
}

func (m markedSnowflake) NextN(ctx context.Context, dst []hapax.ID) (int, error) {
	return markNextN(ctx, m.Snowflake, dst)
}

func markNext(ctx context.Context, from hapax.Issuer) (hapax.ID, error) {
	id, err := from.Next(ctx)
	return id | mark, err
}

func markNextN(ctx context.Context, from hapax.Issuer, dst []hapax.ID) (int, error) {
	n, err := from.NextN(ctx, dst)
	for i := range dst[:n] {
		dst[i] |= mark
	}
	return n, err
}

// taker takes numbers in one way that the server has.
type taker func(t *testing.T, tag string) []hapax.ID

// TestStrategyThatEmbedsAnIssuer has strategies that embed the engine's issuers, as Go
// programs do, and override what hapax.Issuer has. Everything else that the embedded
// issuer can do is promoted, and none of it may be asked.
func TestStrategyThatEmbedsAnIssuer(t *testing.T) {
	// Where these are no longer promoted, the test shows nothing.
	for _, promoted := range []string{"TryNext", "TryNextN", "Reserve"} {
		if _, has := reflect.TypeFor[markedSegment]().MethodByName(promoted); !has {
			t.Errorf("%s is not promoted", promoted)
		}
	}
	config := "tags:\n"
	tags := []string{"marked-segment", "marked-snowflake", "bare-segment"}
	for _, name := range tags {
		config += fmt.Sprintf("  %s: {strategy: %s}\n", name, name)
	}
	config += "compat:\n  leaf: {}\n"
	url, resp := startEmbedded(t, config)
	ways := map[string]taker{
		"HTTP":            func(t *testing.T, tag string) []hapax.ID { return get(t, url+"/v1/tags/"+tag+"/next") },
		"HTTP, few":       func(t *testing.T, tag string) []hapax.ID { return get(t, url+"/v1/tags/"+tag+"/next?count=7") },
		"HTTP, many":      func(t *testing.T, tag string) []hapax.ID { return get(t, url+"/v1/tags/"+tag+"/next?count=700") },
		"Leaf's routes":   func(t *testing.T, tag string) []hapax.ID { return get(t, url+"/api/segment/get/"+tag) },
		"INCR":            func(t *testing.T, tag string) []hapax.ID { return redis(t, resp, "INCR "+tag) },
		"INCR, pipelined": func(t *testing.T, tag string) []hapax.ID { return redis(t, resp, "INCR "+tag, 100) },
		"the Go client":   func(t *testing.T, tag string) []hapax.ID { return remote(t, url, tag) },
	}
	for _, tag := range tags {
		t.Run(tag, func(t *testing.T) {
			var mu sync.Mutex // guards seen
			seen := map[hapax.ID]string{}
			var wg sync.WaitGroup
			for way, take := range ways {
				wg.Go(func() {
					for range 20 {
						ids := take(t, tag)
						mu.Lock()
						for _, id := range ids {
							if before, twice := seen[id]; twice {
								t.Errorf("%d came through %s and through %s", id, before, way)
							}
							if seen[id] = way; strings.HasPrefix(tag, "marked") && id&mark == 0 {
								t.Errorf("%s gave %d, which is the embedded issuer's", way, id)
							}
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if len(seen) < 20*len(ways) {
				t.Errorf("%d numbers came", len(seen))
			}
		})
	}
	// Numbers in a row are a segment's alone.
	for tag, want := range map[string]string{"marked-segment": "-WRONGTYPE", "marked-snowflake": "-WRONGTYPE", "bare-segment": ":"} {
		if got := exchange(t, resp, "INCRBY "+tag+" 5", 1)[0]; !strings.HasPrefix(got, want) {
			t.Errorf("INCRBY of %s: %q, want %s", tag, got, want)
		}
	}
}

// startEmbedded starts this program as a server and returns its addresses.
func startEmbedded(t *testing.T, config string) (url, resp string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "--config", path, "--data", filepath.Join(dir, "data"), "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--log-format", "json")
	cmd.Env = append(os.Environ(), serveVariable+"=1")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started, drained := make(chan [2]string, 1), make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-drained
		if err := cmd.Wait(); err != nil {
			t.Errorf("told to stop, the server ended with %v", err)
		}
	})
	go func() {
		defer close(drained)
		defer close(started)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var line struct{ Msg, HTTP, RESP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				started <- [2]string{line.HTTP, line.RESP}
			} else {
				t.Log(lines.Text())
			}
		}
	}()
	at, ok := <-started
	if !ok {
		t.Fatal("the server ended")
	}
	return at[0], at[1]
}

func get(t *testing.T, url string) (ids []hapax.ID) {
	r, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%s: %d %s, %v", url, r.StatusCode, body, err)
		return nil
	}
	for text := range strings.FieldsSeq(string(body)) {
		ids = append(ids, parse(t, text))
	}
	return ids
}

func parse(t *testing.T, text string) hapax.ID {
	id, err := hapax.ParseID(text)
	if err != nil {
		t.Error(err)
	}
	return id
}

// exchange sends a command n times at once and returns the lines of the answers.
func exchange(t *testing.T, addr, command string, n int) []string {
	lines := make([]string, n)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return lines
	}
	defer c.Close()
	if _, err := io.WriteString(c, strings.Repeat(command+"\r\n", n)); err != nil {
		t.Error(err)
	}
	from := bufio.NewReader(c)
	for i := range lines {
		if lines[i], err = from.ReadString('\n'); err != nil {
			t.Error(err)
		}
	}
	return lines
}

func redis(t *testing.T, addr, command string, n ...int) (ids []hapax.ID) {
	for _, line := range exchange(t, addr, command, append(n, 1)[0]) {
		ids = append(ids, parse(t, strings.TrimSpace(strings.TrimPrefix(line, ":"))))
	}
	return ids
}

func remote(t *testing.T, url, tag string) []hapax.ID {
	c, err := client.Dial(t.Context(), client.Options{}, url)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer c.Close()
	ids := make([]hapax.ID, 5)
	n, err := c.NextN(t.Context(), tag, ids)
	if err != nil {
		t.Error(err)
	}
	return ids[:n]
}
