// Command mutate breaks a package in every small way, one at a time, and tells which
// ways its tests do not notice.
//
//	go -C tools run ./mutate            # store/witness, its quick tests
//	go -C tools run ./mutate -list      # the mutants alone
//
// All mutants are compiled into one test binary, in which an environment variable chooses
// one. First each test runs alone and records which mutation points it reaches; then each
// mutant meets the tests that reach it, until one fails: those first that have noticed most
// of its neighbours for their time. A mutant that exceeds its time counts as noticed, since a
// hanging test does. Results are kept in a file, and a later run goes on from there: what was
// noticed holds while the function and that test are as they were, and what has survived meets
// only the tests that are new. After a change of the tests' helpers, -again has all meet all.
//
// Mutants that change nothing which a caller could observe are listed in a file, each
// with the reason: equivalent.txt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

type options struct {
	dir        string // of the package
	run        string // pattern of tests
	skip       string
	short      bool
	parallel   int
	bar        float64
	results    string
	equivalent string
	only       string // mutants whose report contains this
	files      string // mutants in these
	spend      time.Duration
	again      bool
	kinds      string
	list       bool
	confirm    bool
	verbose    bool
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "../store/witness", "the package's `directory`")
	flag.StringVar(&o.run, "run", ".", "`pattern` of the tests that are to notice")
	flag.StringVar(&o.skip, "skip", "", "`pattern` of tests that are left out")
	flag.BoolVar(&o.short, "short", true, "leave out what tests leave out with -short")
	flag.IntVar(&o.parallel, "p", runtime.NumCPU(), "how `many` mutants run at a time")
	flag.Float64Var(&o.bar, "bar", 95, "fail below this many per `cent` noticed, equivalent mutants left out")
	flag.StringVar(&o.results, "results", "", "`file` with the results so far; default one for the package in the user's cache directory; - for none")
	flag.StringVar(&o.equivalent, "equivalent", "mutate/equivalent.txt", "`file` that lists mutants which change nothing, with reasons")
	flag.StringVar(&o.only, "only", "", "only mutants whose line in the report contains this `text`")
	flag.StringVar(&o.files, "files", "", "only mutants in these `files`, with commas between")
	flag.DurationVar(&o.spend, "spend", 0, "how much CPU `time` of tests a mutant meets at most in this run; 0: all that reach it")
	flag.BoolVar(&o.again, "again", false, "take nothing from earlier runs but which test is to be met first")
	flag.StringVar(&o.kinds, "kinds", "compare,logic,minmax,negate,assign,literal,return,continue", "`which` mutations to make")
	flag.BoolVar(&o.list, "list", false, "list the mutants and end")
	flag.BoolVar(&o.confirm, "confirm", false, "have a test that noticed a mutant notice it a second time, lest it failed by chance")
	flag.BoolVar(&o.verbose, "v", false, "tell of each mutant which test notices it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := o.mutate(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// mutate does all, and reports whether enough was noticed.
func (o options) mutate(ctx context.Context) (bool, error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return false, err
	}
	pkg, err := load(ctx, dir)
	if err != nil {
		return false, err
	}
	for kind := range strings.SplitSeq(o.kinds, ",") {
		if !isKind(kind) {
			return false, fmt.Errorf("-kinds %q: allowed are %v", kind, kinds)
		}
	}
	src, err := instrument(pkg, o.kinds)
	if err != nil {
		return false, err
	}
	if o.list {
		for _, m := range src.mutants {
			fmt.Println(m)
		}
		fmt.Println(len(src.mutants), "mutants")
		return true, nil
	}
	known, err := readEquivalents(o.equivalent)
	if err != nil {
		return false, err
	}
	tmp, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(tmp)
	r := &runner{options: o, pkg: pkg, src: src, tmp: tmp}
	if err := r.build(ctx); err != nil {
		return false, err
	}
	if err := r.record(ctx); err != nil {
		return false, err
	}
	if err := r.resume(); err != nil {
		return false, err
	}
	defer r.close()
	if err := r.all(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return false, err
	}
	return r.report(known), context.Cause(ctx)
}
