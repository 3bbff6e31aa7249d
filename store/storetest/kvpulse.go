package storetest

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/hapax-id/hapax/store/driver"
)

// checkKVPulse: steps of the form that grants have, of which a driver may make a statement of its
// own: where a beat is far enough and there is no fence, the beat is raised and never goes down, and
// rows are swapped, each by itself. Steps of a handle may share beats, so that one raises to what
// another asked for; a store that is split raises before it looks.
func checkKVPulse(e *env) {
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	k := e.kv(e.roles)
	names := []string{"a", "b", "c", "d"}
	rows, beat, most, fenced := map[string]string{}, 50, 50, false
	encode := func(n int) string { return fmt.Sprintf("%04d", n) }
	for _, name := range names[1:] { // the first is added, and removed again
		rows[name] = "before"
		k.set(name, rows[name])
	}
	k.set("beat", encode(beat))
	split := e.guarding != nil && e.guarding.Split()
	tried, done := 0, 0
	for n := range 80 {
		if fenced || rnd.IntN(6) == 0 {
			if fenced = !fenced; fenced {
				k.set("fence", fmt.Sprint("fence ", n))
			} else {
				k.set("fence", "")
			}
		}
		if rows["a"] != "" && rnd.IntN(3) == 0 {
			rows["a"] = ""
			k.set("a", "")
		}
		bar, next := beat-5+rnd.IntN(7), beat-5+rnd.IntN(12)
		s := driver.Step{
			If:    []driver.Cond{{Key: k.key("beat"), Least: []byte(encode(bar))}, {Key: k.key("fence")}},
			Raise: []driver.Put{{Key: k.key("beat"), Value: []byte(encode(next))}},
			Look:  []driver.Key{k.key("none")},
		}
		most = max(most, next)
		met, stale := !fenced && beat >= bar, rnd.IntN(len(names))
		holds, current := false, k.cells(names...)
		for i, name := range names {
			if rnd.IntN(3) == 0 {
				continue
			}
			c := driver.Change{Key: k.key(name), Old: current[i], Next: fmt.Append(nil, "value ", n)}
			if i == stale && rows[name] != "" && rnd.IntN(2) == 0 {
				rows[name] = fmt.Sprint("another's ", n)
				k.set(name, rows[name])
			}
			holds = holds || string(c.Old.Value) == rows[name]
			s.Each = append(s.Each, c)
		}
		r := k.step(s)
		what := fmt.Sprintf("step %d %+v, where the beat is %d, fenced: %v", n, s, beat, fenced)
		if r.Met && !met {
			e.Errorf("%s: it was made", what)
		}
		if met && holds {
			tried++
			if r.Met {
				done++
			}
		}
		least, top := beat, beat
		if r.Met {
			least = max(beat, next)
		}
		if r.Met || split {
			top = most
		}
		after := k.cells(append(names, "beat")...)
		now, err := strconv.Atoi(string(after[len(names)].Value))
		if err != nil || now < least || now > top {
			e.Errorf("%s: the beat is %d (%v); want %d to %d", what, now, err, least, top)
		}
		beat = now
		for i, c := range s.Each {
			if !r.Each[i].Done {
				continue
			}
			if !r.Met || string(c.Old.Value) != rows[c.Key.Name] {
				e.Errorf("%s: the change of %s was made", what, c.Key.Name)
			}
			rows[c.Key.Name] = string(c.Next)
		}
		for i, name := range names {
			k.holds(what+": row "+name, after[i], rows[name])
		}
		if e.Failed() {
			return
		}
	}
	if done < tried/2 {
		e.Errorf("of %d steps whose conditions hold %d were made", tried, done)
	}
}
