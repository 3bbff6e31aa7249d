package service

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestLimits(t *testing.T) {
	bubble(t, Options{MaxCount: 10}, func(t *testing.T, s *Service, store *storetest.Faults) {
		for name, call := range map[string]func() error{
			"count":             func() error { _, err := s.NextN(t.Context(), "a", make([]hapax.ID, 11)); return err },
			"reserve, none":     func() error { _, err := s.Reserve(t.Context(), "a", 0); return err },
			"reserve, too many": func() error { _, err := s.Reserve(t.Context(), "a", MaxReserve+1); return err },
			"page":              func() error { _, err := s.Tags(t.Context(), "", MaxPage+1); return err },
			"name":              func() error { _, err := s.Next(t.Context(), "a\n"); return err },
			"deletion":          func() error { _, err := s.DeleteTag(t.Context(), ""); return err },
		} {
			err := call()
			v, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || v.Field == "" || v.Allowed == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := store.Calls("Allocate"); n != 0 {
			t.Errorf("%d numbers were fetched for bad requests", n)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	pool := func(c PoolConfig) Options { return Options{Pools: map[string]PoolConfig{"p": c}} }
	tag := func(c TagConfig) Options { return Options{Tags: map[string]TagConfig{"t": c}} }
	for _, c := range []struct {
		name  string
		opts  Options
		field string // "" if the error is not about a value
		cause error
	}{
		{"max_wait", Options{MaxWait: -1}, "max_wait", hapax.ErrInvalidArgument},
		{"max_tags", Options{MaxTags: -1}, "max_tags", hapax.ErrInvalidArgument},
		{"max_count", Options{MaxCount: 1 << 30}, "max_count", hapax.ErrInvalidArgument},
		{"refresh", Options{Refresh: time.Millisecond}, "refresh", hapax.ErrInvalidArgument},
		{"store_timeout", Options{StoreTimeout: -1}, "store_timeout", hapax.ErrInvalidArgument},
		{"holder", Options{Holder: string(make([]byte, 200))}, "holder", hapax.ErrInvalidArgument},
		{"tag name", Options{Tags: map[string]TagConfig{"a\x00": {}}}, "name under tags", hapax.ErrInvalidTag},
		{"tag kind", tag(TagConfig{Kind: "queue"}), "tags.t.kind", hapax.ErrInvalidArgument},
		{"tag step", tag(TagConfig{Step: -1}), "tags.t.step", hapax.ErrInvalidArgument},
		{"pool of a segment", tag(TagConfig{Pool: "p"}), "tags.t.pool", hapax.ErrInvalidArgument},
		{"pool name", Options{Pools: map[string]PoolConfig{"": {}}}, "name under pools", hapax.ErrInvalidTag},
		{"layout", pool(PoolConfig{Layout: "nonsense"}), "pools.p.layout", hapax.ErrInvalidLayout},
		{"workers, text", pool(PoolConfig{Workers: "x"}), "pools.p.workers", hapax.ErrInvalidArgument},
		{"workers, order", pool(PoolConfig{Workers: "9-3"}), "pools.p.workers", hapax.ErrInvalidArgument},
		{"workers, range", pool(PoolConfig{Workers: "0-4096"}), "pools.p.workers", hapax.ErrInvalidArgument},
		{"sequence_start", pool(PoolConfig{SequenceStart: "-4"}), "pools.p.sequence_start", hapax.ErrInvalidArgument},
		{"sequence_start, range", pool(PoolConfig{SequenceStart: "4097"}), "pools.p.sequence_start", hapax.ErrInvalidArgument},
		{"populator", pool(PoolConfig{Populator: "magic"}), "pools.p.populator", hapax.ErrInvalidArgument},
		{"on_rollback", pool(PoolConfig{OnRollback: "panic"}), "pools.p.on_rollback", hapax.ErrInvalidArgument},
		{"grant", pool(PoolConfig{Grant: time.Nanosecond}), "pools.p.grant", hapax.ErrInvalidArgument},
		{"max_ahead", pool(PoolConfig{MaxAhead: -1}), "pools.p.max_ahead", hapax.ErrInvalidArgument},
		{"identity", pool(PoolConfig{Identity: "random"}), "pools.p.identity", hapax.ErrInvalidArgument},
		{"identity, number", pool(PoolConfig{Identity: "fixed:x"}), "pools.p.identity", hapax.ErrInvalidArgument},
		{"split", pool(PoolConfig{Split: "a:0"}), "pools.p.split", hapax.ErrInvalidArgument},
		{"split, width", pool(PoolConfig{Layout: "leaf", Split: "a:5,b:4"}), "pools.p.split", hapax.ErrInvalidArgument},
		{"parts without a split", pool(PoolConfig{Parts: map[string]string{"a": "1"}}), "pools.p.parts", hapax.ErrInvalidArgument},
		{"parts, range", pool(PoolConfig{Split: "a:5,b:5", Parts: map[string]string{"a": "32"}}), "pools.p.parts.a", hapax.ErrInvalidArgument},
		{"parts, text", pool(PoolConfig{Split: "a:5,b:5", Parts: map[string]string{"a": "one"}}), "pools.p.parts.a", hapax.ErrInvalidArgument},
		{"parts, name", pool(PoolConfig{Split: "a:5,b:5", Parts: map[string]string{"c": "env:X"}}), "pools.p.parts", hapax.ErrInvalidArgument},
		{"parts and disposable", pool(PoolConfig{Identity: "disposable", Split: "a:5,b:5", Parts: map[string]string{"a": "1"}}), "pools.p.parts", hapax.ErrInvalidArgument},
		{"constant field", pool(PoolConfig{Fields: map[string]int64{"colour": 1}}), "pools.p.field", hapax.ErrInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(t.Context(), memstore.New(), c.opts)
			if !errors.Is(err, c.cause) {
				t.Fatalf("got %v, want %v", err, c.cause)
			}
			if v, ok := errors.AsType[*hapax.ValueError](err); ok && v.Field != c.field || !ok && c.field != "" {
				t.Errorf("the error is %q, want field %q", err, c.field)
			}
		})
	}
}

func TestGoodOptions(t *testing.T) {
	opts := Options{
		Tags: map[string]TagConfig{"orders": {Step: 10, MinStep: 5, MaxStep: 100, Start: 1000}, "e": {Kind: hapax.KindSnowflake, Pool: "p"}},
		Pools: map[string]PoolConfig{"p": {
			Layout: "vesta-min-granularity", Workers: "0-63", Lease: time.Minute, Grant: 5 * time.Second, MaxGrant: time.Minute,
			MaxAhead: time.Second, MaxBehind: time.Second, SequenceStart: "100", Populator: "mutex", OnRollback: "refuse",
			Fields: map[string]int64{"version": 0, "type": 1, "genMethod": 2},
		}},
	}
	if err := opts.Validate(); err != nil {
		t.Fatal(err)
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		p, err := s.Parse(mustNext(t, s, "e"), "vesta-min-granularity")
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int64{"type": 1, "genMethod": 2, "machine": 0} {
			if v, _ := p.Fields.Get(name); v != want {
				t.Errorf("%s is %d, want %d", name, v, want)
			}
		}
	})
}
