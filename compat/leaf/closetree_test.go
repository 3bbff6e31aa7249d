package leaf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
)

// leafStart starts as a Leaf does: it takes the names below forever apart, has the node of
// its ip:port or makes one, and gives up where its clock is behind the node's timestamp.
// What fails has it look for the worker ID in its local file, whose content file is; -1
// stands for none.
func (e *tree) leafStart(address string, file int64) (int64, error) {
	worker, err := e.leafStartByTree(address)
	if err != nil && file >= 0 {
		return file, nil
	}
	return worker, err
}

func (e *tree) leafStartByTree(address string) (int64, error) {
	names, _, err := e.conn.Children(e.forever())
	if err != nil {
		return 0, err
	}
	workers, nodes := map[string]int64{}, map[string]string{}
	for _, name := range names {
		parts := strings.Split(name, "-")
		worker, err := strconv.ParseInt(parts[1], 10, 32)
		if err != nil {
			return 0, err
		}
		workers[parts[0]], nodes[parts[0]] = worker, name
	}
	if worker, ok := workers[address]; ok {
		raw, _, err := e.conn.Get(e.forever() + "/" + nodes[address])
		var at struct{ Timestamp int64 }
		if err == nil {
			err = json.Unmarshal(raw, &at)
		}
		if err == nil && at.Timestamp > time.Now().UnixMilli() {
			err = errors.New("init timestamp check error,forever node timestamp gt this node time")
		}
		return worker, err
	}
	made, err := e.conn.Create(e.forever()+"/"+address+"-", leafData(address, time.Now()), zk.FlagSequence, zk.WorldACL(zk.PermAll))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(made[strings.LastIndexByte(made, '-')+1:], 10, 32)
}

// A Leaf that is started after a move does not start by the tree, whatever its ip:port, and
// its local file has none of the worker IDs that are used natively.
func testCloseTree(t *testing.T, e *tree) {
	long := time.Now().Add(-time.Hour)
	e.put(t, "10.0.0.1:1-0000000000", long)
	e.put(t, "10.0.0.2:1-0000000007", long)
	look, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	if _, closed, err := leaf.TreeClosed(t.Context(), look); closed || err != nil {
		t.Fatalf("before: %v, %v", closed, err)
	}
	if worker, err := e.leafStart("10.0.0.2:1", -1); worker != 7 || err != nil {
		t.Fatalf("the Leaf of the test does not start: %d, %v", worker, err)
	}
	for range 2 {
		if from, err := leaf.CloseTree(t.Context(), look, "S"); from != 8 || err != nil {
			t.Fatalf("closed from %d, %v; want 8", from, err)
		}
	}
	for _, address := range []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"} {
		if worker, err := e.leafStart(address, -1); err == nil {
			t.Errorf("a Leaf at %s starts with worker ID %d", address, worker)
		}
	}
	if worker, err := e.leafStart("10.0.0.2:1", 7); err != nil || worker >= 8 {
		t.Errorf("by its local file a Leaf starts with worker ID %d, %v", worker, err)
	}
	if tr, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo", Address: address}); !errors.Is(err, hapax.ErrLineExhausted) {
		t.Errorf("a hapax takes part: %v, %v", tr, err)
	}
	if nodes, err := look.Nodes(t.Context()); err != nil || len(nodes) != 2 {
		t.Errorf("the nodes are %+v, %v", nodes, err)
	}

	// One that was starting as the tree was closed is seen by the next look.
	e.put(t, "10.0.0.4:1-0000000009", long)
	if from, err := leaf.CloseTree(t.Context(), look, "S"); from != 10 || err != nil {
		t.Errorf("closed from %d, %v; want 10", from, err)
	}
	// Another store would use the same worker IDs, and this one goes on with them.
	if from, err := leaf.CloseTree(t.Context(), look, "T"); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "another store, S") || !strings.Contains(err.Error(), "store T") {
		t.Errorf("for another store: closed from %d, %v; want it refused", from, err)
	}
	if err := leaf.ReopenTree(t.Context(), look, "T"); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "another store, S") {
		t.Errorf("opened by another store: %v", err)
	}
	if from, closed, err := leaf.TreeClosed(t.Context(), look); from != 10 || !closed || err != nil {
		t.Errorf("after that: from %d, %v, %v", from, closed, err)
	}
	e.set(t, "hapax-moved", []byte(`{"native_workers_from":10}`))
	for _, err := range []error{leaf.CheckClosed(t.Context(), look, "S"), leaf.ReopenTree(t.Context(), look, "S")} {
		if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "names no hapax store") {
			t.Errorf("with a node of an older build: %v", err)
		}
	}
	e.set(t, "hapax-moved", []byte("x"))
	if _, err := leaf.CloseTree(t.Context(), look, "S"); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("with a node that says nothing: %v", err)
	}

	e.set(t, "hapax-moved", []byte(`{"native_workers_from":10,"store":"S"}`))
	for range 2 {
		if err := leaf.ReopenTree(t.Context(), look, "S"); err != nil {
			t.Fatal(err)
		}
	}
	if worker, err := e.leafStart("10.0.0.1:1", -1); worker != 0 || err != nil {
		t.Errorf("after the way back: %d, %v", worker, err)
	}
	e.put(t, fmt.Sprintf("10.0.0.5:1-%010d", 1023), long)
	if from, err := leaf.CloseTree(t.Context(), look, "S"); !errors.Is(err, hapax.ErrNoWorker) || !strings.Contains(err.Error(), "10.0.0.5:1") {
		t.Errorf("with no worker ID left: %d, %v", from, err)
	}
	if _, closed, _ := leaf.TreeClosed(t.Context(), look); closed {
		t.Error("the tree is closed although no worker ID is left")
	}
}

// A hapax that looked at the tree before it was closed, and makes its node after, takes no part:
// its worker ID is used natively.
func testCloseMeanwhile(t *testing.T, e *tree) {
	for worker := range 4 {
		e.put(t, fmt.Sprintf("10.0.0.%d:1-%010d", worker, worker), time.Now().Add(-time.Hour))
	}
	late := func() *leaf.Tree {
		look, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = look.Close() })
		return look
	}
	before := e.children(t)
	from, err := leaf.CloseTree(t.Context(), late(), "S")
	if err != nil {
		t.Fatal(err)
	}
	closed := e.children(t)
	for name, join := range map[string]func(*leaf.Tree) (int64, error){
		"a new number":     func(tr *leaf.Tree) (int64, error) { return tr.JoinLate(t.Context(), address) },
		"a retired number": func(tr *leaf.Tree) (int64, error) { return tr.ReuseLate(t.Context(), address, before) },
	} {
		if worker, err := join(late()); !errors.Is(err, hapax.ErrLineExhausted) {
			t.Errorf("%s: it takes part with worker ID %d, %v; those from %d on are native", name, worker, err, from)
		}
		if after := e.children(t); len(after) != len(closed) {
			t.Errorf("%s: it leaves the nodes %q; want %q", name, after, closed)
		}
	}
	if err := leaf.ReopenTree(t.Context(), late(), "S"); err != nil {
		t.Fatal(err)
	}
	for name, join := range map[string]func(*leaf.Tree) (int64, error){
		"a new number":     func(tr *leaf.Tree) (int64, error) { return tr.JoinLate(t.Context(), address) },
		"a retired number": func(tr *leaf.Tree) (int64, error) { return tr.ReuseLate(t.Context(), "10.0.0.8:1", e.children(t)) },
	} {
		if worker, err := join(late()); err != nil || worker < from {
			t.Errorf("%s: after the way back it has worker ID %d, %v", name, worker, err)
		}
	}
}

// A command on its way back that was held up between its look at the tree and the deletion of the node does
// not open a tree that was opened and closed anew meanwhile, for whichever store.
func testReopenLate(t *testing.T, e *tree) {
	look, err := leaf.OpenTree(t.Context(), e.url, leaf.TreeOptions{Name: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	const own = "S"
	for _, next := range []string{own, "T"} {
		if _, err := leaf.CloseTree(t.Context(), look, own); err != nil {
			t.Fatal(err)
		}
		err := look.ReopenLate(t.Context(), own, func() {
			err := leaf.ReopenTree(t.Context(), look, own)
			if err == nil {
				_, err = leaf.CloseTree(t.Context(), look, next)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "closed anew") {
			t.Errorf("closed anew for %s, and opened late: %v; want it refused", next, err)
		}
		if err := leaf.CheckStillClosed(t.Context(), look, next); err != nil {
			t.Errorf("closed for %s: %v", next, err)
		}
		if err := leaf.ReopenTree(t.Context(), look, next); err != nil {
			t.Fatal(err)
		}
		if err := leaf.CheckStillClosed(t.Context(), look, next); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("opened again: %v; want it refused", err)
		}
	}
	if worker, err := e.leafStart("10.0.0.1:1", -1); err != nil {
		t.Errorf("after the way back: %d, %v", worker, err)
	}
}
