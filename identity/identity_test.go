package identity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// leaf asks for one of 1,024 worker IDs.
func leaf(store hapax.SegmentStore) Request {
	return Request{Pool: "p", IDs: hapax.WorkerRange{Lo: 0, Hi: 1024}, Store: store}
}

func addresses(texts ...string) func() ([]net.Addr, error) {
	return func() (addrs []net.Addr, err error) {
		for _, text := range texts {
			ip, ipNet, err := net.ParseCIDR(text)
			if err != nil {
				return nil, err
			}
			ipNet.IP = ip
			addrs = append(addrs, ipNet)
		}
		return addrs, nil
	}
}

func host(name string) func() (string, error) { return func() (string, error) { return name, nil } }

func TestProviders(t *testing.T) {
	t.Setenv("HAPAX_TEST_WORKER", " 12\n")
	t.Setenv("HAPAX_TEST_EMPTY", "")
	t.Setenv("HAPAX_TEST_TEXT", "12a")
	t.Setenv("HAPAX_TEST_SIGN", "-1")
	t.Setenv("HAPAX_TEST_LARGE", "1024")
	list := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::7")}
	one := func(id int64) Choice { return Choice{IDs: hapax.WorkerRange{Lo: id, Hi: id + 1}} }
	for name, c := range map[string]struct {
		provider Provider
		want     Choice
		refused  string // part of the error, if that is wanted
	}{
		"pool":                     {Pool{}, Choice{IDs: hapax.WorkerRange{Lo: 0, Hi: 1024}}, ""},
		"fixed":                    {Fixed(7), one(7), ""},
		"fixed beyond":             {Fixed(1024), Choice{}, "worker ID 1024 is outside"},
		"fixed below":              {Fixed(-1), Choice{}, "outside"},
		"env":                      {Env("HAPAX_TEST_WORKER"), one(12), ""},
		"env unset":                {Env("HAPAX_TEST_NO_SUCH"), Choice{}, "HAPAX_TEST_NO_SUCH is not set"},
		"env empty":                {Env("HAPAX_TEST_EMPTY"), Choice{}, `HAPAX_TEST_EMPTY is ""`},
		"env no number":            {Env("HAPAX_TEST_TEXT"), Choice{}, `"12a"`},
		"env negative":             {Env("HAPAX_TEST_SIGN"), Choice{}, `"-1"`},
		"env beyond":               {Env("HAPAX_TEST_LARGE"), Choice{}, "1024"},
		"statefulset":              {StatefulSet{hostname: host("orders-12")}, one(12), ""},
		"statefulset with domain":  {StatefulSet{hostname: host("orders-12.svc-3.local")}, one(12), ""},
		"statefulset with base":    {StatefulSet{Base: 100, hostname: host("a-b-7")}, one(107), ""},
		"statefulset beyond":       {StatefulSet{Base: 1020, hostname: host("a-7")}, Choice{}, "1027"},
		"statefulset overflow":     {StatefulSet{Base: 1 << 61, hostname: host("a-4611686018427387903")}, Choice{}, "outside"},
		"statefulset, no ordinal":  {StatefulSet{hostname: host("laptop")}, Choice{}, `"laptop"`},
		"statefulset, only digits": {StatefulSet{hostname: host("12")}, Choice{}, `"12"`},
		"statefulset, no name":     {StatefulSet{hostname: host("-12")}, Choice{}, `"-12"`},
		"statefulset, letters":     {StatefulSet{hostname: host("web-1a")}, Choice{}, `"web-1a"`},
		"statefulset, no host":     {StatefulSet{hostname: func() (string, error) { return "", errors.New("no host name") }}, Choice{}, "no host name"},
		"address":                  {Address{list, addresses("127.0.0.1/8", "10.0.0.2/24")}, one(1), ""},
		"address, version 6":       {Address{list, addresses("fd00::7/64")}, one(2), ""},
		"address not listed":       {Address{list, addresses("127.0.0.1/8", "10.0.0.9/24")}, Choice{}, "10.0.0.9"},
		"address listed twice":     {Address{list, addresses("10.0.0.1/24", "10.0.0.2/24")}, Choice{}, "both 10.0.0.1 and 10.0.0.2"},
		"no addresses":             {Address{list, func() ([]net.Addr, error) { return nil, errors.New("no network") }}, Choice{}, "no network"},
		"list":                     {List{9, 3, 7, 3}, Choice{IDs: hapax.WorkerRange{Lo: 3, Hi: 10}, Among: []int64{3, 7, 9}}, ""},
		"list, empty":              {List{}, Choice{}, "empty"},
		"list, beyond":             {List{3, 1024}, Choice{}, "1024"},
		"disposable, no store":     {Disposable{}, Choice{}, "no store"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.provider.Choose(t.Context(), leaf(nil))
			if c.refused == "" {
				if err != nil || !reflect.DeepEqual(got, c.want) {
					t.Fatalf("choice %+v, error %v; want %+v", got, err, c.want)
				}
				return
			}
			v, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || v.Field != "identity" || !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("choice %+v, error %v; want a ValueError for identity that tells %s", got, err, c.refused)
			}
			if !reflect.DeepEqual(got, Choice{}) {
				t.Errorf("the choice is %+v beside an error", got)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Provider{
		"pool":                      Pool{},
		"disposable":                Disposable{},
		"fixed:5":                   Fixed(5),
		"env:WORKER_ID":             Env("WORKER_ID"),
		"statefulset":               StatefulSet{},
		"statefulset:100":           StatefulSet{Base: 100},
		"address:10.0.0.1, fd00::7": Address{List: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::7")}},
		"list:3,7, 9":               List{3, 7, 9},
	} {
		if got, err := Parse(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %#v, error %v; want %#v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "5", "fixed", "fixed:", "fixed:-1", "fixed:x", "fixed:9223372036854775808", "env", "env:", "statefulset:", "statefulset:x",
		"address", "address:", "address:10.0.0", "address:10.0.0.1,", "list", "list:", "list:1,,2", "pool:1", "disposable:x", "Pool", "random",
	} {
		p, err := Parse(text)
		if v, ok := errors.AsType[*hapax.ValueError](err); !ok || v.Field != "identity" || p != nil {
			t.Errorf("%q is %#v, error %v; want a ValueError", text, p, err)
		}
	}
}

// Every start gets a worker ID that none had before, and is told how many are
// left; then the error tells how many starts there were.
func TestDisposable(t *testing.T) {
	store := memstore.New()
	r := Request{Pool: "p", IDs: hapax.WorkerRange{Lo: 10, Hi: 13}, Store: store}
	for i := range int64(3) {
		want := Choice{IDs: hapax.WorkerRange{Lo: 10 + i, Hi: 11 + i}, Counted: true, Left: 2 - i}
		if got, err := (Disposable{}).Choose(t.Context(), r); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("start %d: %+v, error %v; want %+v", i+1, got, err, want)
		}
	}
	for i := range 2 {
		_, err := Disposable{}.Choose(t.Context(), r)
		if !errors.Is(err, hapax.ErrLineExhausted) || !strings.Contains(err.Error(), fmt.Sprintf("this was start %d", 4+i)) || !strings.Contains(err.Error(), "its 3 worker IDs") {
			t.Errorf("start %d: %v", 4+i, err)
		}
	}
	r.Pool = "q"
	if got, err := (Disposable{}).Choose(t.Context(), r); err != nil || got.IDs.Lo != 10 {
		t.Errorf("the first start of another pool: %+v, error %v", got, err)
	}
	r.Pool = strings.Repeat("x", hapax.MaxTagBytes)
	if _, err := (Disposable{}).Choose(t.Context(), r); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a long name: %v", err)
	}
}

// An answer that is lost uses up a start, and repeats none.
func TestDisposableLostAnswer(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	var seen []int64
	for i := range 20 {
		store.Inject(func(op storetest.Op) storetest.Fault {
			if i%3 == 1 && op.Method == "Allocate" {
				return storetest.Fault{Lose: hapax.ErrStoreUnavailable}
			}
			return storetest.Fault{}
		})
		c, err := Disposable{}.Choose(t.Context(), leaf(store))
		if i%3 == 1 {
			if !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("error is %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, c.IDs.Lo)
	}
	if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
		t.Errorf("the worker IDs were %v", seen)
	}
}

// A choice is made for an issuer of the library.
func TestApply(t *testing.T) {
	store := memstore.New()
	r := Request{Pool: hapax.DefaultPool, IDs: hapax.WorkerRange{Lo: 0, Hi: 1024}, Store: store}
	for want := range int64(3) {
		c, err := Disposable{}.Choose(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		var opts hapax.SnowflakeOptions
		c.Apply(&opts)
		s, err := hapax.NewSnowflake(t.Context(), store, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		if st := s.Stats(); st.Worker != want || st.Remaining < hapax.DefaultGrant/2 {
			t.Errorf("start %d: %+v; want worker %d with a long grant", want, st, want)
		}
	}
}

// An instance with one worker ID is granted more at a time than a pool at first, and
// what its options say where they say something.
func TestApplyFixed(t *testing.T) {
	for name, test := range map[string]struct {
		choice Choice
		given  hapax.SnowflakeOptions
		want   time.Duration
	}{
		"one":     {Choice{IDs: hapax.WorkerRange{Lo: 7, Hi: 8}}, hapax.SnowflakeOptions{}, FixedGrant},
		"among":   {Choice{IDs: hapax.WorkerRange{Lo: 7, Hi: 9}, Among: []int64{8}}, hapax.SnowflakeOptions{}, FixedGrant},
		"several": {Choice{IDs: hapax.WorkerRange{Lo: 7, Hi: 9}}, hapax.SnowflakeOptions{}, 0},
		"given":   {Choice{IDs: hapax.WorkerRange{Lo: 7, Hi: 8}}, hapax.SnowflakeOptions{Grant: time.Minute}, time.Minute},
		"counted": {Choice{IDs: hapax.WorkerRange{Lo: 7, Hi: 8}, Counted: true}, hapax.SnowflakeOptions{}, hapax.DefaultGrant},
	} {
		test.choice.Apply(&test.given)
		if test.given.Grant != test.want {
			t.Errorf("%s: the grant is %v, want %v", name, test.given.Grant, test.want)
		}
	}
}
