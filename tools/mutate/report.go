package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A result is what was found about one mutant.
type result struct {
	Key     string   `json:"key"`
	Code    string   `json:"code"`              // hash of the function
	Reached int      `json:"reached"`           // by so many tests
	Noticed string   `json:"noticed,omitempty"` // by which
	By      string   `json:"by,omitempty"`      // hash of that test
	Hung    bool     `json:"hung,omitempty"`    // which had to be ended
	Met     []string `json:"met,omitempty"`     // hashes of the tests that it has survived
}

// resume reads what earlier runs have found, and opens the file for more.
func (r *runner) resume() error {
	r.known, r.tallies = map[string]result{}, map[string]*tally{}
	if r.options.results == "-" {
		return nil
	}
	path := r.options.results
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		path = filepath.Join(cache, "hapax-mutate", hashOf(r.pkg.dir)+".jsonl")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	r.results = f
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var one result
		if json.Unmarshal(lines.Bytes(), &one) == nil { // else an interrupted run has cut it short
			r.known[one.Key] = one
		}
	}
	for _, m := range r.src.mutants { // so that the first mutants, too, meet the tests first that have noticed others
		if name := r.known[m.key()].Noticed; name != "" {
			r.count(m, []*test{{name: name}}, name)
		}
	}
	return nil
}

// keep appends a result to the file.
func (r *runner) keep(res result) error {
	if r.results == nil {
		return nil
	}
	text, err := json.Marshal(res)
	if err != nil {
		return err
	}
	_, err = r.results.Write(append(text, '\n'))
	return err
}

func (r *runner) close() {
	if r.results != nil {
		_ = r.results.Close()
	}
}

// readEquivalents returns the reasons why mutants are equivalent, by key. A key stands on
// a line of its own, and its reason, indented, on those after it.
func readEquivalents(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	reasons, key := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		reason := strings.TrimSpace(line)
		switch {
		case reason == "" || strings.HasPrefix(line, "#"):
		case line[0] != ' ' && line[0] != '\t':
			key = reason
			if _, ok := reasons[key]; ok {
				return nil, fmt.Errorf("%s: %q stands there twice", path, key)
			}
			reasons[key] = ""
		case key == "":
			return nil, fmt.Errorf("%s: a reason without a mutant: %q", path, reason)
		default:
			reasons[key] = strings.TrimSpace(reasons[key] + " " + reason)
		}
	}
	for key, reason := range reasons {
		if reason == "" {
			return nil, fmt.Errorf("%s: %q has no reason", path, key)
		}
	}
	return reasons, nil
}

// A share is how many mutants there are, and how many of them are equivalent, were noticed, and were
// noticed since a test had to be ended.
type share struct{ all, equivalent, noticed, hung, unreached int }

func (s share) String() string {
	rate := 100.0
	if s.all > s.equivalent {
		rate = 100 * float64(s.noticed) / float64(s.all-s.equivalent)
	}
	return fmt.Sprintf("%d mutants, %d equivalent, %d noticed (%d by a test that hung): %.1f %%; %d survive, of which no test reaches %d",
		s.all, s.equivalent, s.noticed, s.hung, rate, s.all-s.equivalent-s.noticed, s.unreached)
}

// report tells what was found, and reports whether that is enough.
func (r *runner) report(known map[string]string) bool {
	var total share
	files := map[string]*share{}
	used := map[string]bool{}
	for _, m := range r.src.mutants {
		res, found := r.known[m.key()]
		if !found || !r.isWanted(m) || res.Code != m.hash {
			continue
		}
		_, listed := known[m.key()]
		used[m.key()] = true
		one := share{all: 1}
		switch {
		case res.Noticed != "":
			if listed {
				fmt.Printf("%s: listed as equivalent, and %s notices it\n", m, res.Noticed)
			}
			one.noticed, one.hung = 1, btoi(res.Hung)
		case listed:
			one.equivalent = 1
		case res.Reached == 0:
			one.unreached = 1
			fmt.Printf("%s: no test reaches it\n", m)
		default:
			fmt.Printf("%s: survives %d of %d tests\n", m, len(res.Met), res.Reached)
		}
		if files[m.file] == nil {
			files[m.file] = new(share)
		}
		for _, sum := range []*share{&total, files[m.file]} {
			sum.all += one.all
			sum.equivalent += one.equivalent
			sum.noticed += one.noticed
			sum.hung += one.hung
			sum.unreached += one.unreached
		}
	}
	var stale []string
	for key := range known {
		if !used[key] && r.only == "" && r.files == "" {
			stale = append(stale, key)
		}
	}
	slices.Sort(stale)
	for _, key := range stale {
		fmt.Printf("listed as equivalent, and not there: %s\n", key)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Printf("%s: %v\n", name, files[name])
	}
	fmt.Printf("%v; %d tests, %v\n", total, len(r.tests), time.Since(r.begun).Round(time.Second))
	return 100*float64(total.noticed) >= r.bar*float64(total.all-total.equivalent) && len(stale) == 0
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
