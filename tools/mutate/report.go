package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A result is what was found about one mutant. It holds while the function and the tests
// are as they were.
type result struct {
	Key     string `json:"key"`
	Code    string `json:"code"`
	Tests   string `json:"tests"`
	Reached int    `json:"reached"` // by so many tests
	Noticed string `json:"noticed,omitempty"`
}

// resume reads what earlier runs have found, and opens the file for more.
func (r *runner) resume() error {
	r.known = map[string]result{}
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
	return nil
}

// keep appends a result to the file.
func (r *runner) keep(m mutant, res result) error {
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

// report tells what was found, and reports whether that is enough.
func (r *runner) report(known map[string]string) bool {
	all, noticed, equivalent, unreached := 0, 0, 0, 0
	used := map[string]bool{}
	for _, m := range r.src.mutants {
		if !strings.Contains(m.String(), r.only) {
			continue
		}
		res, found := r.known[m.key()]
		if !found {
			continue
		}
		all++
		_, listed := known[m.key()]
		used[m.key()] = true
		switch {
		case res.Noticed != "" && listed:
			fmt.Printf("%s: listed as equivalent, and %s notices it\n", m, res.Noticed)
			noticed++
		case res.Noticed != "":
			noticed++
		case listed:
			equivalent++
		case res.Reached == 0:
			unreached++
			fmt.Printf("%s: no test reaches it\n", m)
		default:
			fmt.Printf("%s: survives %d tests\n", m, res.Reached)
		}
	}
	var stale []string
	for key := range known {
		if !used[key] && r.only == "" {
			stale = append(stale, key)
		}
	}
	slices.Sort(stale)
	for _, key := range stale {
		fmt.Printf("listed as equivalent, and not there: %s\n", key)
	}
	rate := 100.0
	if all > equivalent {
		rate = 100 * float64(noticed) / float64(all-equivalent)
	}
	fmt.Printf("%d mutants, %d equivalent, %d noticed: %.1f %%; %d survive, of which no test reaches %d; %d tests, %v\n",
		all, equivalent, noticed, rate, all-equivalent-noticed, unreached, len(r.tests), time.Since(r.begun).Round(time.Second))
	return rate >= r.bar && len(stale) == 0
}
