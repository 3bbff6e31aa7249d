package auth

import (
	"cmp"
	"slices"
	"sync/atomic"
)

// uses counts what a token was used for.
type uses struct {
	requests atomic.Int64 // begun
	refused  atomic.Int64 // for a limit
	numbers  atomic.Int64 // asked for
}

// A Use is what a token was used for since the server started, or since it was last
// configured otherwise.
type Use struct {
	Token    string
	Requests int64 // begun; a run of the same command on a connection of the Redis protocol may count as one
	Refused  int64 // for a limit of the token
	Numbers  int64 // asked for
}

// Uses returns what each token was used for, by name.
func (p *Policy) Uses() []Use {
	if !p.HasTokens() {
		return nil
	}
	var all []Use
	for _, c := range *p.callers.Load() {
		all = append(all, Use{c.name, c.uses.requests.Load(), c.uses.refused.Load(), c.uses.numbers.Load()})
	}
	slices.SortFunc(all, func(a, b Use) int { return cmp.Compare(a.Token, b.Token) })
	return slices.CompactFunc(all, func(a, b Use) bool { return a.Token == b.Token }) // one may have a hash and a certificate
}
