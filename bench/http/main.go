// Command http measures hapax's number route from outside: wrk asks servers that are
// processes of their own, and the kernel tells how much processor time each takes.
// Beside hapax, whose numbers are granted by the durable embedded store, stand a bare
// net/http handler and valyala/fasthttp, which write a counter; hapax is asked without a
// token and with one, for one number and for a hundred.
//
// The servers take turns, because a shared machine's speed changes from second to
// second, and what counts is the median of the ratios of each turn.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
)

const (
	connections = "50"
	threads     = "2"
	route       = "/v1/tags/calls/next"
	several     = "/v1/tags/calls/ids?count=100"
)

// names are the servers, in the order of the report.
var names = []string{"hapax", "hapax with a token", "net/http", "fasthttp", "hapax, 100 numbers", "fasthttp, 100 numbers"}

// others are what each server's rate is held against: as a multiple of that, it should
// be at least so much.
var others = map[string]struct {
	name   string
	target float64
}{
	"hapax":              {"fasthttp", 1.0},
	"hapax with a token": {"hapax", 0.97},
	"net/http":           {"fasthttp", 0},
	"hapax, 100 numbers": {"fasthttp, 100 numbers", 1.0},
}

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	turns := flag.Int("turns", 10, "how many turns of each are measured, 1 to 100")
	each := flag.Duration("time", 3*time.Second, "length of one measurement, 1s to 1m")
	out := flag.String("o", "", "also write the report to this file")
	peer := flag.String("serve", "", "be a server, such as net/http; what this program runs itself as")
	at := flag.String("at", "", "where that listens")
	flag.Parse()
	ctx := context.Background()
	if *quick {
		*turns, *each = 1, time.Second
	}
	var err error
	switch {
	case peers[*peer] != nil:
		err = serve(ctx, *peer, *at)
	case *peer != "" || *turns < 1 || *turns > 100 || *each < time.Second || *each > time.Minute:
		fmt.Fprintln(os.Stderr, "http: -turns is 1 to 100, -time is 1s to 1m, -serve is one of the peers")
		os.Exit(2)
	default:
		err = run(ctx, *turns, *each, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, turns int, each time.Duration, out string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "hapax-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the folder for temporary files
	servers := map[string]*asked{}
	for _, name := range names {
		s, err := start(ctx, name, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer s.Stop()
		servers[name] = s
	}
	samples := map[string][]sample{}
	for turn := range turns + 1 {
		for i := range names {
			name := names[(i+turn)%len(names)]
			s, err := measure(ctx, servers[name], each)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if turn > 0 { // the first turn warms them up
				samples[name] = append(samples[name], s)
			}
		}
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
	return report(w, samples, turns, each)
}

// sample is what one run of wrk told of a server.
type sample struct {
	rate     float64       // requests a second
	cpu      float64       // µs of the server's processor time per request
	p50, p99 time.Duration // of a request
	requests int
}

func measure(ctx context.Context, s *asked, each time.Duration) (sample, error) {
	before := s.CPUTime()
	flags := append([]string{"-t" + threads, "-c" + connections, fmt.Sprintf("-d%ds", int(each.Seconds())), "--latency"}, s.flags...)
	text, err := exec.CommandContext(ctx, "wrk", append(flags, "http://"+s.HTTP+s.route)...).Output()
	if err != nil {
		return sample{}, fmt.Errorf("wrk: %w: %s", err, text)
	}
	cpu := s.CPUTime() - before
	var r sample
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch {
		case fields[0] == "Requests/sec:":
			_, err = fmt.Sscan(fields[1], &r.rate)
		case fields[0] == "50%":
			r.p50, err = time.ParseDuration(fields[1])
		case fields[0] == "99%":
			r.p99, err = time.ParseDuration(fields[1])
		case fields[1] == "requests":
			_, err = fmt.Sscan(fields[0], &r.requests)
		case fields[0] == "Non-2xx" || fields[0] == "Socket":
			err = fmt.Errorf("not every request was answered: %s", strings.TrimSpace(line))
		}
		if err != nil {
			return r, fmt.Errorf("wrk printed %q: %w", line, err)
		}
	}
	if r.rate == 0 || r.requests == 0 || r.p50 == 0 {
		return r, fmt.Errorf("wrk printed no summary: %s", text)
	}
	r.cpu = float64(cpu.Microseconds()) / float64(r.requests)
	return r, nil
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// of returns a value of every sample.
func of(samples []sample, value func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = value(s)
	}
	return values
}

// report writes the samples as a page of Markdown.
func report(w io.Writer, samples map[string][]sample, turns int, each time.Duration) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Benchmarks of the HTTP number route\n\n")
	fmt.Fprintf(b, "Written by `make bench-http`, which runs `go -C bench run ./http -o ../docs/benchmarks-http.md`.\n\n")
	fmt.Fprintf(b, "- Machine: %s, %d cores, %s/%s\n", host.Processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(b, "- Go %s; valyala/fasthttp %s\n", strings.TrimPrefix(runtime.Version(), "go"), host.Module("github.com/valyala/fasthttp"))
	fmt.Fprintf(b, "- Date: %s\n", time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(b, "- Client: `wrk -t%s -c%s` on `GET %s`, and on `POST %s`, on the same machine\n", threads, connections, route, several)
	fmt.Fprintf(b, "- Measured: %d turns of each, %v long, one after the other; the table shows medians\n", turns, each)
	fmt.Fprintf(b, "- Load average at the end: %s; wrk and a server are good for about 2\n\n", host.Load())
	fmt.Fprintf(b, `Each server is a process of its own. hapax issues from the embedded store, which syncs every
grant to disk before it is used; the others write a counter, or 100 of them as hapax does. Each
ratio is that of rates, or of processor times, in the same turn. CPU is the server's processor
time per request, of all its threads, as the kernel counts it.

`)
	fmt.Fprintf(b, "| server | requests/s | held against | rate / its | target | CPU µs | CPU / its | p50 ms | p99 ms |\n|---|--:|---|--:|--:|--:|--:|--:|--:|\n")
	for _, name := range names {
		ours, other := samples[name], others[name]
		ratio, cpuRatio, target := "", "", ""
		if theirs := samples[other.name]; theirs != nil {
			rates, cpus := make([]float64, turns), make([]float64, turns)
			for i := range turns {
				rates[i], cpus[i] = ours[i].rate/theirs[i].rate, ours[i].cpu/theirs[i].cpu
			}
			ratio, cpuRatio = fmt.Sprintf("%.2f", median(rates)), fmt.Sprintf("%.2f", median(cpus))
		}
		if other.target > 0 {
			target = fmt.Sprintf("%.2f", other.target)
		}
		fmt.Fprintf(b, "| %s | %.0f | %s | %s | %s | %.2f | %s | %.3f | %.3f |\n", name,
			median(of(ours, func(s sample) float64 { return s.rate })), other.name, ratio, target,
			median(of(ours, func(s sample) float64 { return s.cpu })), cpuRatio,
			median(of(ours, func(s sample) float64 { return s.p50.Seconds() * 1000 })),
			median(of(ours, func(s sample) float64 { return s.p99.Seconds() * 1000 })))
	}
	return b.Flush()
}
