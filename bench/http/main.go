// Command http measures hapax's number routes from outside: wrk asks servers that are
// processes of their own, and the kernel tells how much processor time each takes.
// Beside hapax, whose numbers are granted by the durable embedded store, stand a bare
// net/http handler and valyala/fasthttp, which write a counter, and a loop that answers
// whatever it reads from a tls.Conn with the same bytes. hapax is asked without a token
// and with one, with a token over TLS, and for one number and for a hundred.
//
// The servers take turns, because a shared machine's speed changes from second to
// second, and what counts is the median of the ratios of each turn.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/bench/internal/page"
)

const (
	connections = "50"
	threads     = "2"
	route       = "/v1/tags/calls/next"
	several     = "/v1/tags/calls/ids?count=100"
	leafRoute   = "/api/segment/get/calls"
	tinyidRoute = "/tinyid/id/nextIdSimple?bizType=calls&token=bench"
)

// names are the servers, in the order of the report.
var names = []string{
	"hapax", "hapax with a token", "net/http", "fasthttp",
	"hapax, 100 numbers", "fasthttp, 100 numbers",
	"hapax, Leaf's route", "hapax, TinyID's route",
	"hapax over TLS", "hapax with a token over TLS", "tls.Conn loop",
}

// others are what each server is held against: its rate should be at least so many times
// as high as that one's, or its processor time per request at most so many times as long.
var others = map[string]struct {
	name      string
	rate, cpu float64
}{
	"hapax":                       {"fasthttp", 1.0, 0},
	"hapax with a token":          {"hapax", 0.97, 0},
	"net/http":                    {"fasthttp", 0, 0},
	"hapax, 100 numbers":          {"fasthttp, 100 numbers", 1.0, 0},
	"hapax, Leaf's route":         {"net/http", 0, 0},
	"hapax, TinyID's route":       {"net/http", 0, 0},
	"hapax over TLS":              {"tls.Conn loop", 0, 1.15},
	"hapax with a token over TLS": {"tls.Conn loop", 0, 1.15},
}

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	turns := flag.Int("turns", 10, "how many turns of each are measured, 1 to 100")
	each := flag.Duration("time", 2*time.Second, "length of one measurement, 1s to 1m")
	out := flag.String("o", "", "also write the report into this page")
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
	text := report(ctx, samples, turns, each)
	if _, err := os.Stdout.Write(text); err != nil || out == "" {
		return err
	}
	return page.Put(out, "http", text)
}

// sample is the result of one run of wrk against a server.
type sample struct {
	rate     float64       // requests a second
	cpu      float64       // µs of the server's processor time per request
	p50, p99 time.Duration // of a request
	requests int
}

func measure(ctx context.Context, s *asked, each time.Duration) (sample, error) {
	before := s.CPUTime()
	flags := append([]string{"-t" + threads, "-c" + connections, fmt.Sprintf("-d%ds", int(each.Seconds())), "--latency"}, s.flags...)
	text, err := exec.CommandContext(ctx, "wrk", append(flags, s.scheme+s.HTTP+s.route)...).Output()
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

// report returns the samples as a section of a page.
func report(ctx context.Context, samples map[string][]sample, turns int, each time.Duration) []byte {
	b := new(bytes.Buffer)
	b.WriteString(page.Conditions(ctx, "make bench-http", fmt.Sprintf("%d turns of %v each; medians. The client is `wrk -t%s -c%s` on the same machine; valyala/fasthttp %s.",
		turns, each, threads, connections, host.Module("github.com/valyala/fasthttp"))))
	fmt.Fprintf(b, `Each server is a process of its own, asked by `+"`GET %s`"+`, for 100 numbers by
`+"`POST %s`"+`, and by two foreign routes:
`+"`GET %s` and\n`GET %s`"+`.
hapax issues from the embedded store; net/http and fasthttp write a counter, or 100 of them as
hapax does, and the loop writes the same bytes for whatever it reads. Each
ratio is that of rates, or of processor times, in the same turn. CPU is the server's processor
time per request, of all its threads, as the kernel counts it.

| server | requests/s | held against | rate / its | target | CPU µs | CPU / its | target | p50 ms | p99 ms |
|---|--:|---|--:|--:|--:|--:|--:|--:|--:|
`, route, several, leafRoute, tinyidRoute)
	for _, name := range names {
		ours, other := samples[name], others[name]
		ratio, cpuRatio := "", ""
		if theirs := samples[other.name]; theirs != nil {
			rates, cpus := make([]float64, turns), make([]float64, turns)
			for i := range turns {
				rates[i], cpus[i] = ours[i].rate/theirs[i].rate, ours[i].cpu/theirs[i].cpu
			}
			ratio, cpuRatio = fmt.Sprintf("%.2f", median(rates)), fmt.Sprintf("%.2f", median(cpus))
		}
		fmt.Fprintf(b, "| %s | %.0f | %s | %s | %s | %.2f | %s | %s | %.3f | %.3f |\n", name,
			median(of(ours, func(s sample) float64 { return s.rate })), other.name, ratio, limit("≥", other.rate),
			median(of(ours, func(s sample) float64 { return s.cpu })), cpuRatio, limit("≤", other.cpu),
			median(of(ours, func(s sample) float64 { return s.p50.Seconds() * 1000 })),
			median(of(ours, func(s sample) float64 { return s.p99.Seconds() * 1000 })))
	}
	return b.Bytes()
}

// limit shows a target; nothing for none.
func limit(sign string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf("%s %.2f", sign, value)
}
