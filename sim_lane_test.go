package hapax_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hapax-id/hapax"
)

// callLane calls the client's lane of the line, which it closes now and then, so that its
// next one goes on with the rest. Issuers that have no lanes are called themselves.
func (p *process) callLane(rng *rand.Rand, line string, lanes map[string]*hapax.Lane) ([]hapax.ID, error) {
	ctx, cancel := context.WithTimeout(p.life, 2*time.Second)
	defer cancel()
	is, err := p.issuer(ctx, line)
	if err != nil {
		return nil, err
	}
	source, ok := is.(interface{ Lane() *hapax.Lane })
	if !ok {
		return issue(ctx, rng, is)
	}
	l := lanes[line]
	if l == nil {
		l = source.Lane()
		lanes[line] = l
	}
	if rng.IntN(20) == 0 {
		defer l.Close()
		delete(lanes, line)
	}
	return issue(ctx, rng, l)
}

// issue takes one number, or several.
func issue(ctx context.Context, rng *rand.Rand, is interface {
	Next(ctx context.Context) (hapax.ID, error)
	NextN(ctx context.Context, dst []hapax.ID) (int, error)
},
) ([]hapax.ID, error) {
	ids := make([]hapax.ID, 1)
	if rng.IntN(4) == 0 {
		ids = make([]hapax.ID, 1+rng.IntN(60))
		n, err := is.NextN(ctx, ids)
		return ids[:n], err
	}
	id, err := is.Next(ctx)
	if err != nil {
		return nil, err
	}
	ids[0] = id
	return ids, nil
}
