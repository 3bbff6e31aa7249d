// Command redis measures INCR of hapax, with its numbers granted by the durable
// embedded store, beside INCR of a redis-server without persistence, with
// redis-benchmark for both.
//
// The two take turns, because a shared machine's speed changes from second to
// second, and what counts is the median of the ratios of each turn.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// clients is how many connections redis-benchmark uses.
const clients = 50

// pipelines are the depths measured, with how many requests one measurement
// makes and the ratio that hapax should reach.
var pipelines = []struct {
	depth, requests int
	target          float64
}{
	{1, 100_000, 0.9},
	{16, 1_000_000, 1.0},
	{64, 3_000_000, 1.5},
}

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	pairs := flag.Int("pairs", 10, "how many turns of each are measured, 1 to 100")
	out := flag.String("o", "", "also write the report to this file")
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
	if err := run(ctx, *pairs, share, *out); err != nil {
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
	redis, err := startRedis(ctx, dir)
	if err != nil {
		return err
	}
	defer redis.Stop()
	ours, err := host.StartHapax(ctx, dir)
	if err != nil {
		return err
	}
	defer ours.Stop()

	var rows []row
	for _, p := range pipelines {
		r := row{depth: p.depth, target: p.target}
		for i := range pairs + 1 {
			pair, err := measurePair(ctx, ours, redis, p.depth, p.requests/share, i%2 == 0)
			if err != nil {
				return err
			}
			if i > 0 { // the first turn warms both up
				r.pairs = append(r.pairs, pair)
			}
		}
		rows = append(rows, r)
	}
	w := io.Writer(os.Stdout)
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		w = io.MultiWriter(w, f)
	}
	return report(ctx, w, rows, pairs)
}

func startRedis(ctx context.Context, dir string) (*host.Server, error) {
	port, err := host.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	s, err := host.Start(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	s.RESP = port
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			return s, conn.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			s.Stop()
			return nil, fmt.Errorf("redis-server does not answer: %w", err)
		}
	}
}

// sample is what one run of redis-benchmark told of a server.
type sample struct {
	rate           float64 // requests a second
	p50, p99, p999 float64 // ms
	cpu            float64 // µs of the server's processor time per request
}

// pair is one turn.
type pair struct{ ours, redis sample }

func measurePair(ctx context.Context, ours, redis *host.Server, depth, requests int, oursFirst bool) (p pair, err error) {
	for _, first := range []bool{true, false} {
		s, into := redis, &p.redis
		if first == oursFirst {
			s, into = ours, &p.ours
		}
		if *into, err = measure(ctx, s, depth, requests); err != nil {
			return p, err
		}
	}
	return p, nil
}

func measure(ctx context.Context, s *host.Server, depth, requests int) (sample, error) {
	cpu := s.CPUTime()
	cmd := exec.CommandContext(ctx, "redis-benchmark", "-p", s.RESP, "-c", strconv.Itoa(clients),
		"-n", strconv.Itoa(requests), "-P", strconv.Itoa(depth), "-t", "incr", "--precision", "3")
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

type row struct {
	depth  int
	target float64
	pairs  []pair
}

// median returns the median of a value of the row's turns.
func (r row) median(of func(pair) float64) float64 {
	values := make([]float64, len(r.pairs))
	for i, p := range r.pairs {
		values[i] = of(p)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// report writes the rows as a page of Markdown.
func report(ctx context.Context, w io.Writer, rows []row, pairs int) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Benchmarks of the Redis protocol\n\n")
	fmt.Fprintf(b, "Written by `make bench-redis`, which runs `go -C bench run ./redis -o ../docs/benchmarks-redis.md`.\n\n")
	fmt.Fprintf(b, "- Machine: %s, %d cores, %s/%s\n", host.Processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(b, "- Go %s; %s\n", strings.TrimPrefix(runtime.Version(), "go"), redisVersion(ctx))
	fmt.Fprintf(b, "- Date: %s\n", time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(b, "- Clients: `redis-benchmark -t incr -c %d`, on the same machine\n", clients)
	fmt.Fprintf(b, "- Measured: %d turns of each, one after the other; the table shows medians\n", pairs)
	fmt.Fprintf(b, "- Load average at the end: %s; redis-benchmark and a server are good for about 2\n\n", host.Load())
	fmt.Fprintf(b, `hapax issues from the embedded store, which syncs every grant to disk before it is used;
redis-server runs with `+"`--save \"\" --appendonly no`"+` and would lose everything. The ratio is
hapax's rate to redis-server's in the same turn. CPU is the server's processor time per
request, of all its threads.

`)
	fmt.Fprintf(b, "| pipeline | server | requests/s | ratio | target | p50 ms | p99 ms | p99.9 ms | CPU µs |\n|--:|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range rows {
		for _, s := range []struct {
			name, ratio, target string
			of                  func(pair) sample
		}{
			{"hapax", fmt.Sprintf("%.2f", r.median(func(p pair) float64 { return p.ours.rate / p.redis.rate })), fmt.Sprintf("%.1f", r.target), func(p pair) sample { return p.ours }},
			{"redis-server", "", "", func(p pair) sample { return p.redis }},
		} {
			fmt.Fprintf(b, "| %d | %s | %.0f | %s | %s | %.3f | %.3f | %.3f | %.2f |\n", r.depth, s.name,
				r.median(func(p pair) float64 { return s.of(p).rate }), s.ratio, s.target,
				r.median(func(p pair) float64 { return s.of(p).p50 }), r.median(func(p pair) float64 { return s.of(p).p99 }),
				r.median(func(p pair) float64 { return s.of(p).p999 }), r.median(func(p pair) float64 { return s.of(p).cpu }))
		}
	}
	return b.Flush()
}

func redisVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "redis-server of unknown version"
	}
	fields := strings.Fields(string(out))
	return "redis-server " + strings.TrimPrefix(fields[min(2, len(fields)-1)], "v=")
}
