// Package fleet runs Leaf's and TinyID's own operations beside hapax, in processes
// that are killed and started again, and looks for a number that was issued twice.
package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

const jobVariable = "HAPAX_TEST_FLEET"

// A job is what a process does.
type job struct {
	Kind    string
	URLs    []string
	Tag     string
	Address string
	Pause   time.Duration // after each batch
	Life    time.Duration // about how long a process lives
}

func TestMain(m *testing.M) {
	text, child := os.LookupEnv(jobVariable)
	if !child {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience.Long)
	defer cancel()
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = actors[j.Kind](ctx, j, &output{w: bufio.NewWriterSize(os.Stdout, 8*batch), pause: j.Pause})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", j.Kind, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// batch is how many numbers a process tells at a time.
const batch = 500

// output tells the parent each number, 8 bytes, once it is issued.
type output struct {
	w     *bufio.Writer
	n     int
	pause time.Duration
}

func (o *output) tell(id int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(id))
	if _, err := o.w.Write(b[:]); err != nil {
		return err
	}
	if o.n++; o.n%batch > 0 {
		return nil
	}
	patience.Slow(o.pause)
	return o.w.Flush()
}

// A slot is one place in the fleet: processes that follow each other there.
type slot []job

// A fleet is a run of slots, and what they have told so far.
type fleet struct {
	mu   sync.Mutex // guards the fields below
	ids  []int64
	told map[string]int // how many, by kind and address
}

// run lets the slots work until they have told so many numbers, each process some
// of them, and each slot was killed so many times. It returns how many numbers were told twice.
func (f *fleet) run(t *testing.T, slots []slot, target, kills int) int {
	t.Helper()
	f.told = map[string]int{}
	var wg sync.WaitGroup
	for _, s := range slots {
		wg.Go(func() {
			longer := time.Duration(1) // how much longer than its life a process has: twice as long after one that came to nothing
			for round := 0; ; round++ {
				f.mu.Lock()
				enough := len(f.ids) >= target && !slices.ContainsFunc(s, func(j job) bool { return f.told[j.Kind+j.Address] == 0 })
				f.mu.Unlock()
				if enough && round >= kills || t.Context().Err() != nil || t.Failed() {
					return
				}
				j := s[round%len(s)]
				j.Life *= longer //nolint:durationcheck // longer is a factor
				told, err := f.start(t.Context(), j)
				if err != nil {
					t.Error(err)
					return
				}
				if told == 0 {
					longer = min(2*longer, 64)
				}
			}
		})
	}
	wg.Wait()
	return f.twice(t)
}

// start runs a process, takes down what it tells, and kills it when its life is
// over. It returns how many numbers were told.
func (f *fleet) start(ctx context.Context, j job) (told int, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, j.Life/2+rand.N(j.Life)) // ends with SIGKILL
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var ids []int64
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		var b [8]byte
		if _, err = io.ReadFull(r, b[:]); err != nil {
			break
		}
		ids = append(ids, int64(binary.LittleEndian.Uint64(b[:])))
	}
	f.mu.Lock()
	f.ids = append(f.ids, ids...)
	f.told[j.Kind+j.Address] += len(ids)
	f.mu.Unlock()
	if err := cmd.Wait(); err != nil && ctx.Err() == nil {
		return len(ids), fmt.Errorf("%s failed: %w: %s", j.Kind, err, stderr.Bytes())
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
		return len(ids), nil
	}
	return len(ids), err
}

// twice returns how many numbers were told more than once.
func (f *fleet) twice(t *testing.T) int {
	t.Helper()
	slices.Sort(f.ids)
	twice := 0
	for i, id := range f.ids[min(1, len(f.ids)):] {
		if id == f.ids[i] {
			if twice++; twice < 5 {
				t.Logf("%d was issued twice", id)
			}
		}
	}
	t.Logf("%d numbers, %d of them twice", len(f.ids), twice)
	return twice
}

// once fails if a number was told twice.
func once(t *testing.T, slots []slot, target, kills int) {
	t.Helper()
	if n := new(fleet).run(t, slots, target, kills); n > 0 {
		t.Errorf("%d numbers were issued twice", n)
	}
}

// soak returns the target: small by default, large in make soak.
func soak(small, large int) (target int, pause time.Duration) {
	if patience.Soaking() {
		return large, 0
	}
	return small, 5 * time.Millisecond
}

// slots returns one slot for each kind of process.
func slots(kinds []string, j job) []slot {
	var all []slot
	for _, kind := range kinds {
		j.Kind = kind
		all = append(all, slot{j})
	}
	return all
}

const shortLife = 600 * time.Millisecond

func leafTable(t *testing.T) testdb.Database {
	return testdb.New(t, testservers.SharedMariaDB(t), testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 1, 100)")
}

func TestLeafTable(t *testing.T) {
	t.Parallel()
	target, pause := soak(50_000, 5_000_000)
	once(t, slots([]string{"leaf", "leaf", "hapax-leaf", "hapax-leaf"}, job{URLs: []string{leafTable(t).URL}, Tag: "test", Pause: pause, Life: shortLife}), target, 4)
}

func TestTinyID(t *testing.T) {
	t.Parallel()
	server := testservers.SharedMariaDB(t)
	urls := make([]string, 2)
	for i := range urls {
		db := testdb.New(t, server, testdb.TinyID...)
		db.Run(t, fmt.Sprintf("INSERT INTO tiny_id_info (biz_type, max_id, step, delta, remainder, version) VALUES ('test', %d, 200, 2, %d, 1)", 100*i, i))
		urls[i] = db.URL
	}
	target, pause := soak(50_000, 5_000_000)
	all := slots([]string{"tinyid", "tinyid", "hapax-tinyid", "hapax-tinyid"}, job{URLs: urls, Tag: "test", Pause: pause, Life: shortLife})
	all[3][0].URLs = []string{urls[1], urls[0]}
	once(t, all, target, 4)
}

// TestLeafTreeSoak also hands an address over from Leaf to hapax and back.
func TestLeafTreeSoak(t *testing.T) {
	patience.Soak(t, "processes that live for seconds, and are killed by chance")
	t.Parallel()
	server := testservers.ZooKeeper(t)
	target, pause := soak(100_000, 1_000_000)
	at := func(kind, address string, life time.Duration) job {
		return job{Kind: kind, URLs: []string{server.URL}, Address: address, Pause: pause, Life: life}
	}
	once(t, []slot{
		{at("leaf-tree", "10.0.0.1:1", time.Second)},
		{at("leaf-tree", "10.0.0.2:1", time.Second)},
		{at("hapax-tree", "10.0.0.3:1", 7*time.Second)}, // a restart waits for 3 s
		{at("leaf-tree", "10.0.0.4:1", time.Second), at("hapax-tree", "10.0.0.4:1", 13*time.Second)},
		{at("hapax-tree", "10.0.0.5:1", time.Second), at("leaf-tree", "10.0.0.5:1", 9*time.Second)},
	}, target, 2)
}

// TestControls: the same test sees a node that takes Leaf's range for TinyID's, and
// two nodes that both took worker 0.
func TestControls(t *testing.T) {
	t.Parallel()
	table := job{URLs: []string{leafTable(t).URL}, Tag: "test", Life: shortLife, Pause: 5 * time.Millisecond}
	if new(fleet).run(t, slots([]string{"leaf-wrong-range", "hapax-leaf"}, table), 10_000, 2) == 0 {
		t.Error("a wrong range was not seen")
	}
	tree := job{URLs: []string{testservers.ZooKeeper(t).URL}, Life: time.Second, Pause: time.Millisecond}
	all := slots([]string{"leaf-tree-zero", "leaf-tree-zero"}, tree)
	all[0][0].Address, all[1][0].Address = "10.0.0.1:1", "10.0.0.2:1"
	// Both must have the processor in the same millisecond, which a busy machine does not give them each time.
	patience.Until(t, "one worker ID on two nodes is seen", func() bool { return new(fleet).run(t, all, 10_000, 1) > 0 })
}
