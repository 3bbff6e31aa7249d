package identity

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// Env is the name of an environment variable that holds the worker ID.
type Env string

// Choose implements [Provider].
func (e Env) Choose(_ context.Context, r Request) (Choice, error) {
	id, err := e.number()
	if err != nil {
		return Choice{}, r.refused("env:"+string(e), err.Error())
	}
	return r.one("env:"+string(e), id)
}

func (e Env) number() (int64, error) {
	text, ok := os.LookupEnv(string(e))
	if !ok {
		return 0, fmt.Errorf("the environment variable %s is not set", string(e))
	}
	id, err := parseID(text)
	if err != nil {
		return 0, fmt.Errorf("the environment variable %s is %.40q, which is no worker ID", string(e), text)
	}
	return id, nil
}

// StatefulSet is Base plus the ordinal of a pod of a Kubernetes StatefulSet, which
// ends its host name: base 100 and "orders-7" are worker 107.
type StatefulSet struct {
	Base int64

	hostname func() (string, error) // default os.Hostname
}

// Choose implements [Provider].
func (s StatefulSet) Choose(_ context.Context, r Request) (Choice, error) {
	if s.hostname == nil {
		s.hostname = os.Hostname
	}
	host, err := s.hostname()
	if err != nil {
		return Choice{}, r.refused("statefulset", err.Error())
	}
	name, _, _ := strings.Cut(host, ".")
	dash := strings.LastIndexByte(name, '-')
	ordinal, err := parseID(name[dash+1:])
	if dash < 1 || err != nil {
		return Choice{}, r.refused("statefulset", fmt.Sprintf("the host name %.80q does not end in - and an ordinal", host))
	}
	if ordinal >= r.IDs.Hi || s.Base >= r.IDs.Hi { // before the sum can overflow
		return Choice{}, r.refused("statefulset", fmt.Sprintf("base %d and ordinal %d are outside", s.Base, ordinal))
	}
	return r.one(fmt.Sprintf("statefulset:%d", s.Base), s.Base+ordinal)
}

// Address is the index, from 0, of this host's address in a list that is the same
// on all hosts.
type Address struct {
	List []netip.Addr

	local func() ([]net.Addr, error) // default net.InterfaceAddrs
}

// Choose implements [Provider].
func (a Address) Choose(_ context.Context, r Request) (Choice, error) {
	if a.local == nil {
		a.local = net.InterfaceAddrs
	}
	local, err := a.local()
	if err != nil {
		return Choice{}, r.refused("address", err.Error())
	}
	var own []netip.Addr
	for _, l := range local {
		if prefix, err := netip.ParsePrefix(l.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	found := -1
	for i, addr := range a.List {
		switch isOwn := slices.Contains(own, addr.Unmap()); {
		// To choose one of two would be a guess, and perhaps the ID of another host.
		case isOwn && found >= 0:
			return Choice{}, r.refused("address", fmt.Sprintf("both %s and %s are addresses of this host", a.List[found], addr))
		case isOwn:
			found = i
		}
	}
	if found < 0 {
		return Choice{}, r.refused("address", fmt.Sprintf("no address of this host, %v, is in the list", own))
	}
	return r.one("address:"+a.List[found].String(), int64(found))
}

func parseAddresses(text string) (Provider, error) {
	var a Address
	for item := range strings.SplitSeq(text, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		a.List = append(a.List, addr)
	}
	return a, nil
}

func parseList(text string) (Provider, error) {
	var l List
	for item := range strings.SplitSeq(text, ",") {
		id, err := parseID(item)
		if err != nil {
			return nil, err
		}
		l = append(l, id)
	}
	return l, nil
}

// parseID reads a worker ID: decimal digits, with any spaces around them; no sign and no base.
func parseID(text string) (int64, error) {
	id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 62)
	return int64(id), err
}

// ParseValue reads the value of a part of the worker ID: a number, or env:VARIABLE.
func ParseValue(text string) (int64, error) {
	if name, ok := strings.CutPrefix(text, "env:"); ok && name != "" {
		v, err := Env(name).number()
		if err != nil {
			return 0, &hapax.ValueError{Field: "parts", Value: text, Allowed: "what leads to a number: " + err.Error(), Err: hapax.ErrInvalidArgument}
		}
		return v, nil
	}
	v, err := parseID(text)
	if err != nil {
		return 0, &hapax.ValueError{Field: "parts", Value: text, Allowed: "a number, or env:VARIABLE", Err: hapax.ErrInvalidArgument}
	}
	return v, nil
}
