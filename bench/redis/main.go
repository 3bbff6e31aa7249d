// Command redis measures INCR of hapax, with its numbers granted by the durable
// embedded store, beside INCR of a redis-server without persistence, with
// redis-benchmark for both, which shows each the same token or password. A Go loop stands
// beside them that answers and does nothing else.
//
// They take turns, because a shared machine's speed changes from second to second, and
// what counts is the median of the ratios of each turn.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/bench/internal/page"
	"github.com/hapax-id/hapax/internal/service/auth"
)

// clients is how many connections redis-benchmark uses.
const clients = 50

// loads are what is measured: how many threads redis-benchmark asks with, how many requests
// go out at once, and how many one measurement makes; what hapax should reach of
// redis-server's rate and take at most of its processor time; and the server that is measured. With
// threads redis-benchmark looks four times a second whether it is done, so that a
// measurement takes seconds.
var loads = []struct {
	threads, depth, requests int
	rate, cpu                float64
	names                    []string
}{
	{1, 1, 100_000, 0.9, 0, []string{hapax, redis, loop}},
	{1, 16, 1_000_000, 1.0, 1.0, []string{hapax, redis, loop}},
	{1, 64, 3_000_000, 1.5, 1.0, []string{hapax, redis, loop}},
	{2, 1, 400_000, 0.9, 0, []string{hapax, redis}},
	{2, 16, 5_000_000, 1.0, 1.0, []string{hapax, redis}},
	{2, 64, 15_000_000, 1.5, 1.0, []string{hapax, redis}},
}

// The servers.
const (
	hapax = "hapax"
	redis = "redis-server"
	loop  = "Go loop"
)

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	pairs := flag.Int("pairs", 10, "how many turns of each are measured, 1 to 100")
	out := flag.String("o", "", "also write the report into this page")
	at := flag.String("serve", "", "be the loop at this address; what this program runs itself as")
	flag.Parse()
	share := 1
	if *quick {
		*pairs, share = 1, 50
	}
	if *pairs < 1 || *pairs > 100 {
		fmt.Fprintln(os.Stderr, "redis: -pairs is 1 to 100")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *at != "" {
		err = serve(ctx, *at)
	} else {
		err = run(ctx, *pairs, share, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pairs, share int, out string) error {
	dir, err := os.MkdirTemp("", "hapax-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the folder for temporary files
	token := auth.NewToken()
	config := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(config, []byte("tokens: {bench: {hash: '"+auth.HashToken(token)+"'}}\n"), 0o600); err != nil {
		return err
	}
	servers := map[string]*host.Server{}
	defer func() {
		for _, s := range servers {
			s.Stop()
		}
	}()
	if servers[redis], err = host.StartRedis(ctx, dir, "--appendonly", "no", "--requirepass", token); err != nil {
		delete(servers, redis)
		return err
	}
	if servers[hapax], err = host.StartHapax(ctx, dir, "--config", config); err != nil {
		delete(servers, hapax)
		return err
	}
	if servers[loop], err = startLoop(ctx); err != nil {
		delete(servers, loop)
		return err
	}

	var rows []row
	for _, l := range loads {
		for _, name := range l.names {
			rows = append(rows, row{name: name, threads: l.threads, depth: l.depth})
			if name == hapax {
				rows[len(rows)-1].rate, rows[len(rows)-1].cpu = l.rate, l.cpu
			}
		}
		these := rows[len(rows)-len(l.names):]
		for turn := range pairs + 1 {
			for i := range these {
				r := &these[(i+turn)%len(these)]
				s, err := measure(ctx, servers[r.name], token, l.threads, l.depth, l.requests/share)
				if err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				if turn > 0 { // the first turn warms them up
					r.turns = append(r.turns, s)
				}
			}
		}
	}
	text := report(ctx, rows, pairs)
	if _, err := os.Stdout.Write(text); err != nil || out == "" {
		return err
	}
	return page.Put(out, "redis", text)
}

// sample is the result of one run of redis-benchmark against a server.
type sample struct {
	rate           float64 // requests a second
	p50, p99, p999 float64 // ms
	cpu            float64 // µs of the server's processor time per request
}

func measure(ctx context.Context, s *host.Server, token string, threads, depth, requests int) (sample, error) {
	cpu := s.CPUTime()
	cmd := exec.CommandContext(ctx, "redis-benchmark", "-p", s.RESP, "-c", strconv.Itoa(clients),
		"-n", strconv.Itoa(requests), "-P", strconv.Itoa(depth), "-t", "incr", "--precision", "3", "-a", token)
	if threads > 1 {
		cmd.Args = append(cmd.Args, "--threads", strconv.Itoa(threads))
	}
	text, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("redis-benchmark: %w", err)
	}
	result, err := parseReport(string(text))
	result.cpu = float64((s.CPUTime() - cpu).Microseconds()) / float64(requests)
	return result, err
}

// parseReport reads what redis-benchmark prints.
func parseReport(text string) (s sample, err error) {
	lines := strings.Split(strings.ReplaceAll(text, "\r", "\n"), "\n")
	for i, line := range lines {
		var percent, ms, avg, lowest, p95, highest float64
		if n, _ := fmt.Sscanf(line, "%f%% <= %f milliseconds", &percent, &ms); n == 2 && percent >= 99.9 && s.p999 == 0 {
			s.p999 = ms
		}
		if strings.Contains(line, "throughput summary:") {
			_, err = fmt.Sscanf(strings.TrimSpace(line), "throughput summary: %f requests per second", &s.rate)
		}
		if strings.Contains(line, "latency summary") && i+2 < len(lines) {
			_, err = fmt.Sscan(lines[i+2], &avg, &lowest, &s.p50, &p95, &s.p99, &highest)
		}
		if err != nil {
			return s, fmt.Errorf("redis-benchmark printed %q: %w", line, err)
		}
	}
	if s.rate == 0 || s.p50 == 0 || s.p999 == 0 {
		return s, fmt.Errorf("redis-benchmark printed no summary: %s", text)
	}
	return s, nil
}

// A row is what was measured of a server under a load, turn by turn.
type row struct {
	name           string
	threads, depth int
	rate, cpu      float64 // what it should reach of redis-server's; 0: nothing
	turns          []sample
}

// median returns the median of a value of every turn.
func (r row) median(of func(turn int) float64) float64 {
	values := make([]float64, len(r.turns))
	for i := range values {
		values[i] = of(i)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// report returns the rows as a section of a page.
func report(ctx context.Context, rows []row, pairs int) []byte {
	b := new(bytes.Buffer)
	b.WriteString(page.Conditions(ctx, "make bench-redis", fmt.Sprintf("%d turns of each; medians. The clients are `redis-benchmark -t incr -c %d -a …` on the same machine; %s.", pairs, clients, redisVersion(ctx))))
	fmt.Fprintf(b, `Both ask for AUTH. hapax issues from the embedded store; redis-server runs with
`+"`--save \"\" --appendonly no`"+` and would lose everything; the loop reads, and answers with a
number for each request that it was sent, which it does not parse. Ratios are to redis-server
in the same turn. CPU is the server's processor time per request, of all its threads.

At pipeline 16 one thread of redis-benchmark has no time left, so that its rate tells what a
request costs the client. redis-server is as busy and never sleeps; a quicker server sleeps in
between, and the client pays for waking it. Two client threads and the server use up both
cores: their rate tells what a request costs both ends.

| client threads | pipeline | server | requests/s | rate / redis | target | CPU µs | CPU / redis | target | p50 ms | p99 ms | p99.9 ms |
|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
`)
	for _, r := range rows {
		peer := rows[slices.IndexFunc(rows, func(p row) bool { return p.name == redis && p.threads == r.threads && p.depth == r.depth })]
		rate, cpu := "", ""
		if r.name != redis {
			rate = fmt.Sprintf("%.2f", r.median(func(i int) float64 { return r.turns[i].rate / peer.turns[i].rate }))
			cpu = fmt.Sprintf("%.2f", r.median(func(i int) float64 { return r.turns[i].cpu / peer.turns[i].cpu }))
		}
		fmt.Fprintf(b, "| %d | %d | %s | %.0f | %s | %s | %.2f | %s | %s | %.3f | %.3f | %.3f |\n", r.threads, r.depth, r.name,
			r.median(func(i int) float64 { return r.turns[i].rate }), rate, limit("≥", r.rate),
			r.median(func(i int) float64 { return r.turns[i].cpu }), cpu, limit("≤", r.cpu),
			r.median(func(i int) float64 { return r.turns[i].p50 }), r.median(func(i int) float64 { return r.turns[i].p99 }), r.median(func(i int) float64 { return r.turns[i].p999 }))
	}
	return b.Bytes()
}

// limit shows a target; nothing for none.
func limit(sign string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf("%s %.1f", sign, value)
}

func redisVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "redis-server of unknown version"
	}
	fields := strings.Fields(string(out))
	return "redis-server " + strings.TrimPrefix(fields[min(2, len(fields)-1)], "v=")
}
