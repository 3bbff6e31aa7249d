package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A runner runs tests of the binary that has all mutants in it.
type runner struct {
	options
	pkg *goPackage
	src *source
	tmp string

	program string
	tests   []*test // the quickest first

	mu      sync.Mutex // guards what follows
	known   map[string]result
	results *os.File // nil: none are kept
	begun   time.Time
	done    int
}

// A test is one of the package, as it is without a mutant.
type test struct {
	name    string
	took    time.Duration
	reached []byte // by ID of the mutant
}

// build compiles the test binary.
func (r *runner) build(ctx context.Context) error {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range r.src.files {
		path := filepath.Join(r.tmp, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(r.pkg.dir, name)] = path
	}
	raw, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	path := filepath.Join(r.tmp, "overlay.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return err
	}
	r.program = filepath.Join(r.tmp, "mutants.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", path, "-o", r.program, ".")
	cmd.Dir = r.pkg.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling the mutants: %w\n%s", err, out)
	}
	return nil
}

// command runs some tests of the binary. CPU time bounds a test that spins, however loaded the machine
// is; one that waits for something that never comes has its end much later.
func (r *runner) command(ctx context.Context, tests []*test, limit time.Duration, env ...string) (passed bool, output string, err error) {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = regexp.QuoteMeta(t.name)
	}
	seconds := max(2, int(limit/time.Second)+1)
	args := []string{"-c", fmt.Sprintf(`ulimit -t %d; exec "$0" "$@"`, seconds), r.program, "-test.failfast", fmt.Sprintf("-test.short=%v", r.short), "-test.run", "^(" + strings.Join(names, "|") + ")$"}
	if r.skip != "" {
		args = append(args, "-test.skip", r.skip)
	}
	over, cancel := context.WithTimeout(ctx, 20*time.Second+10*limit)
	defer cancel()
	cmd := exec.CommandContext(over, "/bin/sh", args...)
	cmd.Dir, cmd.Env = r.pkg.dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with the test's children
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, "", context.Cause(ctx)
	case err == nil:
		return true, out.String(), nil
	case errors.As(err, &exit), over.Err() != nil:
		return false, out.String(), nil
	}
	return false, out.String(), err
}

// record runs each test alone, and notes which mutants it reaches and what it takes.
func (r *runner) record(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, r.program, "-test.list", r.run)
	cmd.Dir = r.pkg.dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("listing the tests: %w", err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(name, "Benchmark") {
			r.tests = append(r.tests, &test{name: name})
		}
	}
	if len(r.tests) == 0 {
		return fmt.Errorf("no test matches %q", r.run)
	}
	return parallel(ctx, r.parallel, r.tests, func(t *test) error {
		path := filepath.Join(r.tmp, "reached-"+hashOf(t.name))
		if err := os.WriteFile(path, make([]byte, len(r.src.mutants)+1), 0o600); err != nil {
			return err
		}
		began := time.Now()
		passed, text, err := r.command(ctx, []*test{t}, time.Minute, "MUTANTS_REACHED="+path)
		t.took = time.Since(began)
		if err == nil && !passed {
			err = fmt.Errorf("without a mutant %s fails:\n%s", t.name, text)
		}
		if err != nil {
			return err
		}
		t.reached, err = os.ReadFile(path)
		return err
	}, func() { slices.SortFunc(r.tests, func(x, y *test) int { return cmp.Compare(x.took, y.took) }) })
}

// parallel calls f for all, so many at a time, and then after.
func parallel[T any](ctx context.Context, n int, all []T, f func(T) error, after func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan T)
	var wg sync.WaitGroup
	for range max(1, n) {
		wg.Go(func() {
			for one := range queue {
				if err := f(one); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, one := range all {
		select {
		case queue <- one:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	wg.Wait()
	after()
	return context.Cause(ctx)
}

// all has each mutant meet its tests.
func (r *runner) all(ctx context.Context, known map[string]string) error {
	var some []mutant
	for _, m := range r.src.mutants {
		if strings.Contains(m.String(), r.only) {
			some = append(some, m)
		}
	}
	r.begun = time.Now()
	return parallel(ctx, r.parallel, some, func(m mutant) error {
		res, err := r.one(ctx, m)
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.known[m.key()] = res
		r.done++
		if r.verbose {
			fmt.Printf("%s: %s\n", m, cmp.Or(res.Noticed, "SURVIVES"))
		} else if r.done%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d mutants, %v\n", r.done, len(some), time.Since(r.begun).Round(time.Second))
		}
		return r.keep(m, res)
	}, func() {})
}

// one finds a test that notices a mutant.
func (r *runner) one(ctx context.Context, m mutant) (result, error) {
	var tests []*test
	for _, t := range r.tests {
		if t.reached[m.id] != 0 {
			tests = append(tests, t)
		}
	}
	res := result{Key: m.key(), Code: m.hash, Tests: r.testsHash(tests), Reached: len(tests)}
	old, there := r.known[m.key()]
	if there && old.Code == res.Code && old.Tests == res.Tests {
		return old, nil
	}
	if there && old.Noticed != "" { // most likely that test notices it again
		slices.SortStableFunc(tests, func(x, y *test) int { return cmp.Compare(btoi(y.name == old.Noticed), btoi(x.name == old.Noticed)) })
	}
	for len(tests) > 0 { // a few at a time: to start a process takes as long as many a test
		n, took := 0, time.Duration(0)
		for n < len(tests) && (n == 0 || n < 8 && took+tests[n].took < 400*time.Millisecond) {
			took += tests[n].took
			n++
		}
		for again := range 2 {
			passed, text, err := r.command(ctx, tests[:n], 5*took, fmt.Sprint("MUTANT=", m.id))
			if err != nil {
				return res, err
			}
			if passed {
				res.Noticed = ""
				break
			}
			if res.Noticed = failedIn(text); res.Noticed == "" {
				res.Noticed = tests[0].name
			}
			if !r.confirm || again == 1 {
				return res, nil
			}
		}
		tests = tests[n:]
	}
	return res, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var (
	failedTest   = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	panickedTest = regexp.MustCompile(`(?m)^panic: .*\n(?s:.*?)\.(Test\w+|Fuzz\w+)(?:\.func|\()`)
)

// failedIn returns the name of the test that failed; empty where the output does not tell.
func failedIn(output string) string {
	for _, pattern := range []*regexp.Regexp{failedTest, panickedTest} {
		if m := pattern.FindStringSubmatch(output); m != nil {
			return m[1]
		}
	}
	return ""
}

// testsHash is one of the text of all tests, and the names of some. Results with the same hash hold.
func (r *runner) testsHash(some []*test) string {
	h := sha256.New()
	for _, name := range r.pkg.tests {
		h.Write(r.pkg.text[name])
	}
	names := make([]string, len(some))
	for i, t := range some {
		names[i] = t.name
	}
	slices.Sort(names)
	fmt.Fprint(h, names)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
