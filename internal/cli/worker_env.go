package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// A variable is one of the environment, with a template of its value.
type variable struct {
	name  string
	parts []templatePart
}

// A templatePart is a text, or the worker ID with an operation on it.
type templatePart struct {
	text   string
	worker bool
	steps  []templateStep
}

// A templateStep is one operation, with a number as its right side.
type templateStep struct {
	op rune // one of + - / %
	n  int64
}

const templateForm = "NAME=TEXT, in which {worker} stands for the worker ID, {worker/32} and {worker%32} for two parts of it, {worker+1} for the next number; steps go from left to right, and {{ is a brace"

// parseVariable reads NAME=TEMPLATE.
func parseVariable(text string) (variable, error) {
	bad := &hapax.ValueError{Field: "--env", Value: text, Allowed: templateForm, Err: hapax.ErrInvalidArgument}
	name, rest, ok := strings.Cut(text, "=")
	if !ok || name == "" || strings.ContainsAny(name, " \t\n\x00") {
		return variable{}, bad
	}
	v := variable{name: name}
	used := false
	for rest != "" {
		i := strings.IndexByte(rest, '{')
		if i < 0 {
			i = len(rest)
		}
		v.parts = append(v.parts, templatePart{text: rest[:i]})
		rest = rest[i:]
		if strings.HasPrefix(rest, "{{") {
			v.parts, rest = append(v.parts, templatePart{text: "{"}), rest[2:]
			continue
		}
		if rest == "" {
			break
		}
		inner, after, ok := strings.Cut(rest[1:], "}")
		steps, worker := strings.CutPrefix(inner, "worker")
		if !ok || !worker {
			return v, bad
		}
		part := templatePart{worker: true}
		if part.steps, ok = parseSteps(steps); !ok {
			return v, bad
		}
		v.parts, rest, used = append(v.parts, part), after, true
	}
	if !used {
		return v, bad
	}
	return v, nil
}

func parseSteps(text string) (steps []templateStep, ok bool) {
	for text != "" {
		op := rune(text[0])
		end := strings.IndexAny(text[1:], "+-/%") + 1
		if end == 0 {
			end = len(text)
		}
		// Of 32 bits, so that sums with a worker ID do not overflow.
		n, err := strconv.ParseUint(text[1:end], 10, 32)
		if err != nil || !strings.ContainsRune("+-/%", op) || n == 0 && (op == '/' || op == '%') {
			return nil, false
		}
		steps = append(steps, templateStep{op, int64(n)})
		text = text[end:]
	}
	return steps, true
}

// warnAlike tells of another worker ID that gives the variables the same values: its holder's generator
// would be told the same number, unless it reads workerVariable.
func warnAlike(vars []variable, ids hapax.WorkerRange, worker int64, tell func(string)) {
	if len(vars) == 0 {
		return
	}
	// As many as the widest generator knows are enough: a quotient or a remainder comes again long before.
	for other := ids.Lo; other < min(ids.Hi, ids.Lo+1<<16); other++ {
		if other == worker || slices.ContainsFunc(vars, func(v variable) bool { return v.of(worker) != v.of(other) }) {
			continue
		}
		names := make([]string, len(vars))
		for i, v := range vars {
			names[i] = v.name
		}
		tell(fmt.Sprintf("worker IDs %d and %d give the same %s: a program that does not read %s too needs fewer --workers", worker, other, strings.Join(names, ", "), workerVariable))
		return
	}
}

// of returns NAME=VALUE for a worker ID.
func (v variable) of(worker int64) string {
	var b strings.Builder
	b.WriteString(v.name + "=")
	for _, p := range v.parts {
		if !p.worker {
			b.WriteString(p.text)
			continue
		}
		n := worker
		for _, s := range p.steps {
			switch s.op {
			case '+':
				n += s.n
			case '-':
				n -= s.n
			case '/':
				n /= s.n
			case '%':
				n %= s.n
			}
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}
