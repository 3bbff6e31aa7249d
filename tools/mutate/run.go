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
	"go/scanner"
	"go/token"
	"math"
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
	scratch string // where tests run
	tests   []*test

	mu      sync.Mutex // guards what follows
	known   map[string]result
	results *os.File // nil: none are kept
	begun   time.Time
	done    int
	tallies map[string]*tally // of tests, and of tests with the mutants of one function
}

// A test is one of the package, or a subtest of a long one, as it is without a mutant.
type test struct {
	name    string
	hash    string        // of its text, and the subtest's name
	cpu     time.Duration // which it takes however loaded the machine is
	wall    time.Duration
	reached []byte // by ID of the mutant

	subtests []string
}

// A tally is how many mutants a test has met, and how many of them it has noticed.
type tally struct{ met, noticed float64 }

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
	return r.makeScratch()
}

// makeScratch makes a directory that has all that the package's has: a mutant may write anywhere in it.
func (r *runner) makeScratch() error {
	r.scratch = filepath.Join(r.tmp, "scratch")
	if err := os.Mkdir(r.scratch, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.pkg.dir)
	for _, e := range entries {
		if err == nil {
			err = os.Symlink(filepath.Join(r.pkg.dir, e.Name()), filepath.Join(r.scratch, e.Name()))
		}
	}
	return err
}

// An outcome is how some tests have ended.
type outcome struct {
	passed bool
	hung   bool // they had to be ended
	output string
	cpu    time.Duration
}

// command runs some tests of the binary. CPU time bounds a test that spins, however loaded the machine
// is; one that waits for something that never comes is ended once it does nothing at all.
func (r *runner) command(ctx context.Context, tests []*test, limit, quiet time.Duration, env ...string) (out outcome, err error) {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = "^" + strings.ReplaceAll(regexp.QuoteMeta(t.name), "/", "$/^") + "$"
	}
	args := []string{"-c", fmt.Sprintf(`ulimit -t %d; exec "$0" "$@"`, int(limit/time.Second)+1), r.program, "-test.v", "-test.failfast", fmt.Sprintf("-test.short=%v", r.short), "-test.run", strings.Join(names, "|")}
	if r.skip != "" {
		args = append(args, "-test.skip", r.skip)
	}
	over, cancel := context.WithTimeout(ctx, 20*time.Second+10*limit)
	defer cancel()
	cmd := exec.CommandContext(over, "/bin/sh", args...)
	cmd.Dir, cmd.Env = r.scratch, append(append(os.Environ(), "GOGC=400"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with the test's children
	cmd.WaitDelay = time.Second
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Start(); err != nil {
		return out, err
	}
	go endIdle(over, cancel, cmd.Process.Pid, quiet)
	err = cmd.Wait()
	out.output = text.String()
	if s := cmd.ProcessState; s != nil {
		out.cpu = s.UserTime() + s.SystemTime()
	}
	_, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case err == nil:
		out.passed = true
		return out, nil
	case isExit, over.Err() != nil:
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		out.hung = over.Err() != nil || isExit && ok && status.Signaled() && status.Signal() == syscall.SIGKILL
		return out, nil
	}
	return out, err
}

// endIdle ends a process in which for so long no thread has run or was about to.
func endIdle(ctx context.Context, end func(), pid int, quiet time.Duration) {
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	was, since := "", time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		now, runs := activity(pid)
		if runs || now != was {
			was, since = now, time.Now()
		}
		if now != "" && time.Since(since) > quiet {
			end()
			return
		}
	}
}

// activity returns what a process has used of the CPU, and whether a thread of it runs or waits for
// its turn; empty where the system does not tell.
func activity(pid int) (used string, runs bool) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		text, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 12 {
			runs = runs || fields[0] != "S"
			used += " " + fields[11] + " " + fields[12] // in hundredths of a second
		}
	}
	return used, runs
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
			r.tests = append(r.tests, &test{name: name, hash: r.hashOfTest(name)})
		}
	}
	if len(r.tests) == 0 {
		return fmt.Errorf("no test matches %q", r.run)
	}
	if err := r.recordEach(ctx, r.tests); err != nil {
		return err
	}
	var all, parts []*test
	for _, t := range r.tests {
		if some := t.split(); some != nil {
			parts = append(parts, some...)
		} else {
			all = append(all, t)
		}
	}
	r.tests = append(all, parts...)
	return r.recordEach(ctx, parts)
}

// hashOfTest returns that of a test's text, and of a subtest's name.
func (r *runner) hashOfTest(name string) string {
	parent, _, isPart := strings.Cut(name, "/")
	hash := hashOfCode(r.pkg.testText[parent])
	if isPart {
		hash = hashOf(hash + name)
	}
	return hash
}

// splitAbove is the time of a test whose subtests are tests of their own.
const splitAbove = 300 * time.Millisecond

// split returns the subtests of a long test; nil where it stays whole.
func (t *test) split() (parts []*test) {
	if t.cpu < splitAbove {
		return nil
	}
	for _, name := range t.subtests {
		isNested := len(parts) > 0 && strings.HasPrefix(name, parts[len(parts)-1].name+"/")
		if !isNested {
			parts = append(parts, &test{name: name, hash: hashOf(t.hash + name)})
		}
	}
	return parts
}

var subtest = regexp.MustCompile(`(?m)^=== RUN +(\w+/.*)$`)

func (r *runner) recordEach(ctx context.Context, tests []*test) error {
	return parallel(ctx, r.parallel, tests, func(t *test) error {
		path := filepath.Join(r.tmp, "reached-"+hashOf(t.name))
		if err := os.WriteFile(path, make([]byte, len(r.src.mutants)+1), 0o600); err != nil {
			return err
		}
		began := time.Now()
		out, err := r.command(ctx, []*test{t}, time.Minute, time.Minute, "MUTANTS_REACHED="+path)
		t.cpu, t.wall = out.cpu, time.Since(began)
		if err == nil && !out.passed {
			err = fmt.Errorf("without a mutant %s fails:\n%s", t.name, out.output)
		}
		if err != nil {
			return err
		}
		for _, m := range subtest.FindAllStringSubmatch(out.output, -1) {
			t.subtests = append(t.subtests, m[1])
		}
		t.reached, err = os.ReadFile(path)
		return err
	})
}

// parallel calls f for all, so many at a time.
func parallel[T any](ctx context.Context, n int, all []T, f func(T) error) error {
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
	return context.Cause(ctx)
}

// all has each mutant meet its tests.
func (r *runner) all(ctx context.Context) error {
	var some []mutant
	for _, m := range r.src.mutants {
		if r.isWanted(m) {
			some = append(some, m)
		}
	}
	r.begun = time.Now()
	return parallel(ctx, r.parallel, some, func(m mutant) error {
		res, isNew, err := r.one(ctx, m)
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.known[m.key()] = res
		r.done++
		if r.verbose && isNew {
			fmt.Printf("%s: %s\n", m, cmp.Or(res.Noticed, "SURVIVES"))
		} else if r.done%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d mutants, %v\n", r.done, len(some), time.Since(r.begun).Round(time.Second))
		}
		if !isNew {
			return nil
		}
		return r.keep(res)
	})
}

// isWanted reports whether a mutant is one of those that are asked for.
func (r *runner) isWanted(m mutant) bool {
	return strings.Contains(m.String(), r.only) && (r.files == "" || strings.Contains(","+r.files+",", ","+m.file+","))
}

// one finds a test that notices a mutant. What an earlier run has found holds while the function is
// as it was, and the test that noticed it, or those that it has survived.
func (r *runner) one(ctx context.Context, m mutant) (res result, isNew bool, err error) {
	r.mu.Lock()
	old, holds := r.known[m.key()]
	r.mu.Unlock()
	holds = holds && old.Code == m.hash && !r.again
	res = result{Key: m.key(), Code: m.hash}
	if holds {
		res.Met = old.Met
	}
	if holds && old.Noticed != "" && r.hashOfTest(old.Noticed) == old.By { // also where -run leaves that test out
		return old, false, nil
	}
	var tests []*test
	for _, t := range r.tests {
		if t.reached[m.id] == 0 {
			continue
		}
		res.Reached++
		if !slices.Contains(res.Met, t.hash) {
			tests = append(tests, t)
		}
	}
	if holds && len(tests) == 0 && old.Noticed == "" && old.Reached == res.Reached {
		return old, false, nil
	}
	r.order(tests, m, old.Noticed)
	spent := time.Duration(0)
	for most := 4; len(tests) > 0; most *= 2 { // several at a time: to start a process takes as long as many a test
		n, cpu, wall := 0, time.Duration(0), time.Duration(0)
		for n < len(tests) && (n == 0 || n < most && cpu+tests[n].cpu < time.Duration(most)*50*time.Millisecond) {
			cpu += tests[n].cpu
			wall += tests[n].wall
			n++
		}
		if spent += cpu; r.spend > 0 && spent > r.spend && spent > cpu {
			break // the rest in a later run
		}
		for again := range 2 {
			out, err := r.command(ctx, tests[:n], 5*cpu, 3*time.Second+2*wall, fmt.Sprint("MUTANT=", m.id))
			if err != nil {
				return res, false, err
			}
			if out.passed {
				res.Noticed, res.By, res.Hung = "", "", false
				break
			}
			by := failedIn(out.output, tests[:n])
			res.Noticed, res.By, res.Hung = by.name, by.hash, out.hung
			if !r.confirm || again == 1 {
				res.Met = nil
				r.count(m, tests[:n], res.Noticed)
				return res, true, nil
			}
		}
		r.count(m, tests[:n], "")
		for _, t := range tests[:n] {
			res.Met = append(res.Met, t.hash)
		}
		tests = tests[n:]
	}
	return res, true, nil
}

// order sorts tests by their chance of noticing a mutant for the time they take; the one that
// noticed it before comes first.
func (r *runner) order(tests []*test, m mutant, noticed string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	worth := make(map[*test]float64, len(tests))
	for _, t := range tests {
		all, here := r.tally(t.name), r.tally(t.name+" "+m.fn)
		worth[t] = (1 + all.noticed + 8*here.noticed) / (4 + all.met + 8*here.met) / (t.cpu + 5*time.Millisecond).Seconds()
		if t.name == noticed {
			worth[t] = math.Inf(1)
		}
	}
	slices.SortStableFunc(tests, func(x, y *test) int { return cmp.Compare(worth[y], worth[x]) })
}

// count counts what tests have noticed, which have met a mutant.
func (r *runner) count(m mutant, tests []*test, noticed string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range tests {
		if noticed != "" && t.name != noticed { // it may not have come to run
			continue
		}
		for _, key := range []string{t.name, t.name + " " + m.fn} {
			c := r.tally(key)
			if c.met++; noticed != "" {
				c.noticed++
			}
		}
	}
}

func (r *runner) tally(key string) *tally {
	if r.tallies[key] == nil {
		r.tallies[key] = new(tally)
	}
	return r.tallies[key]
}

var (
	failedTest = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	begunTest  = regexp.MustCompile(`(?m)^=== RUN +(\S+)$`)
)

// failedIn returns which of some tests failed, or was the last to begin; the first of them where the
// output does not tell.
func failedIn(output string, tests []*test) *test {
	names := failedTest.FindAllStringSubmatch(output, -1)
	if len(names) == 0 {
		names = begunTest.FindAllStringSubmatch(output, -1)
	}
	for _, m := range slices.Backward(names) {
		for _, t := range tests {
			if m[1] == t.name || strings.HasPrefix(m[1], t.name+"/") {
				return t
			}
		}
	}
	return tests[0]
}

// hashOfCode returns one that does not depend on comments and white space.
func hashOfCode(text string) string {
	var in scanner.Scanner
	files, h := token.NewFileSet(), sha256.New()
	in.Init(files.AddFile("", -1, len(text)), []byte(text), nil, 0)
	for {
		_, what, literal := in.Scan()
		if what == token.EOF {
			return hex.EncodeToString(h.Sum(nil)[:8])
		}
		fmt.Fprintln(h, what, literal)
	}
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
