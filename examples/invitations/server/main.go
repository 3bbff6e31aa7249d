// Command server is a server of hapax that knows one more strategy, invitations, and
// two plugins. It takes the arguments of "hapax serve":
//
//	go run ./server --config server/hapax.yaml
//	curl http://127.0.0.1:8080/v1/tags/beta/next
package main

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/examples/invitations"
	"github.com/hapax-id/hapax/server"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/strategy"
)

// codes are the invitations that there are.
var codes = []hapax.ID{7041, 1187, 9320, 4455, 2008, 6613, 3379, 8502, 5126, 1999}

func main() {
	server.Main(func(r *strategy.Registry, store driver.Store) error {
		if err := r.Register("invitations", &invitations.List{Store: store, Codes: codes}); err != nil {
			return err
		}
		for _, p := range []strategy.Plugin{few, seating(nil)} {
			if err := r.Use(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// few refuses a request for many.
var few = strategy.Plugin{
	Name:       "few",
	Strategies: []string{"invitations"},
	Before: func(_ context.Context, c strategy.Call) error {
		if c.N > 3 {
			return fmt.Errorf("you may have 3 invitations at a time, and not %d", c.N)
		}
		return nil
	},
}

// seating counts seats in a plan. Its plan is missing here, which shows what a plugin
// that panics costs: the calls that it serves fail, and nothing else.
func seating(plan map[string]int) strategy.Plugin {
	return strategy.Plugin{
		Name: "seating",
		Tags: []string{"gala"},
		Before: func(_ context.Context, c strategy.Call) error {
			plan[c.Tag()] += c.N
			return nil
		},
	}
}
