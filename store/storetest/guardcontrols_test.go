package storetest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
)

func sortedNames(kept map[string]driver.Tag) []string { return slices.Sorted(maps.Keys(kept)) }

// TestGuardControls breaks guarded calls in one way at a time.
func TestGuardControls(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*keeper)
		caught []string
	}{
		{"a beat that does not look at the row", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				return p.Judge(p.Was.Encode(), fence, joins)
			}
		}, []string{"guard/beat", "guard/ended"}},
		{"a beat that wants the row to be as it was", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				c, err := p.Judge(own, fence, joins)
				if !bytes.Equal(own, p.Was.Encode()) {
					c.Met, c.Row, c.Fence = false, own, fence
				}
				return c, err
			}
		}, []string{"guard/beat", "guard/any order"}},
		{"a beat that compares the count alone", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				p.Was.Grants, p.Was.Seen = 0, 0
				return p.Judge(own, fence, joins)
			}
		}, []string{"guard/beat"}},
		{"a row that has ended counts on", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				if i := bytes.IndexByte(own, '/'); bytes.HasPrefix(own, []byte("!")) {
					own = own[i+1:]
				}
				return p.Judge(own, fence, joins)
			}
		}, []string{"guard/ended"}},
		{"a beat that does not look for the fence", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				return p.Judge(own, nil, joins)
			}
		}, []string{"guard/fence", "guard/fence while granting"}},
		{"a fence that is looked for before the call", func(k *keeper) {
			k.rules.late = func() { patience.Slow(time.Millisecond) }
			judge := k.rules.judge
			var seen []byte
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				last := seen
				seen = fence
				return judge(p, own, last, joins)
			}
		}, []string{"guard/fence"}}, // that while granting finds it as a rule, and not each time
		{"a beat that is not made", func(k *keeper) {
			k.rules.step = func(_ driver.Pulse, own []byte) []byte { return own }
		}, []string{"guard/beat", "guard/allocate", "guard/hand-back", "guard/swap", "guard/any order"}},
		{"a beat that steps back", func(k *keeper) {
			k.rules.step = func(p driver.Pulse, _ []byte) []byte { return p.Now.Encode() }
		}, []string{"guard/beat"}},
		{"a change whether the beat is met or not", func(k *keeper) { k.rules.blind = true }, []string{"guard/ended", "guard/fence", "guard/hand-back of many"}},
		{"an allocation, or many hand-backs, without a beat", func(k *keeper) { k.rules.early = true }, []string{"guard/allocate", "guard/hand-back of many", "guard/any order"}},
		{"a swap of another value without a beat", func(k *keeper) { k.rules.lazy = true }, []string{"guard/swap"}},
		{"a swap of the process's own row", func(k *keeper) { k.rules.any = true }, []string{"guard/swap"}},
		{"changes that are not told", func(k *keeper) {
			k.rules.tell = func(c driver.Contact, p driver.Pulse, _, watched []byte) (driver.Contact, error) {
				return c.Tell(p, nil, watched)
			}
		}, []string{"guard/changes"}},
		{"another row than the one to watch", func(k *keeper) {
			k.rules.tell = func(c driver.Contact, p driver.Pulse, changes, _ []byte) (driver.Contact, error) {
				return c.Tell(p, changes, p.Now.Encode())
			}
		}, []string{"guard/changes"}},
		{"joins that are not told", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, _ []byte) (driver.Contact, error) { return p.Judge(own, fence, nil) }
		}, []string{"guard/joins"}},
		{"joins as they were", func(k *keeper) {
			var last []byte
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				c, err := p.Judge(own, fence, last)
				last = joins
				return c, err
			}
		}, []string{"guard/joins"}},
		{"a contact without the rows", func(k *keeper) {
			k.rules.judge = func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error) {
				c, err := p.Judge(own, fence, joins)
				c.Row, c.Fence = nil, nil
				return c, err
			}
		}, []string{"guard/beat", "guard/ended", "guard/fence"}},
		{"two allocations of the same numbers", func(k *keeper) {
			k.advance = func(t driver.Tag, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Tag, error) {
				a, next, err := driver.Advance(t, n, last)
				if time.Now().UnixNano()%3 == 0 {
					return a, t, err
				}
				return a, next, err
			}
		}, []string{"guard/many nodes"}},
		{"a hand-back that compares no token", func(k *keeper) {
			k.handBack = func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
				a.Tag.Token = t.Token
				after, err := driver.HandBack(t, a, next)
				if err != nil {
					return t, err
				}
				return after, nil
			}
		}, []string{"guard/hand-back", "hand-back/wrong key"}},
		{"a hand-back that looks at nothing", func(k *keeper) {
			k.handBack = func(t driver.Tag, _ hapax.Allocation, next int64) (driver.Tag, error) {
				t.Mark = next
				t.Token++
				return t, nil
			}
		}, []string{"guard/hand-back of many", "guard/hand-backs of many at once"}},
		{"many hand-backs that compare no token", func(k *keeper) { k.rules.tokenless = true }, []string{"guard/hand-back of many"}},
		{"many hand-backs that end with the first that is not held", func(k *keeper) { k.rules.inRow = true }, []string{"guard/hand-back of many"}},
		{"many hand-backs that are all said to be made", func(k *keeper) { k.rules.allGiven = true }, []string{"guard/hand-back of many"}},
		{"many allocations that end with the first that is refused", func(k *keeper) { k.rules.inRow = true }, []string{"guard/allocations of many"}},
		{"many allocations without a beat", func(k *keeper) { k.rules.early = true }, []string{"guard/allocations of many"}},
		{"tags by name that are behind", func(k *keeper) { k.rules.behind = 1 }, []string{"guard/tags by name"}},
		{"rows by name in another order", func(k *keeper) { k.rules.sorted = true }, []string{"guard/rows by name"}},
		{"half of several swaps", func(k *keeper) { k.rules.halfway = true }, []string{"guard/swap of several rows"}},
		{"a hand-back that raises no token", func(k *keeper) {
			k.handBack = func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
				after, err := driver.HandBack(t, a, next)
				after.Token = t.Token
				return after, err
			}
		}, []string{"guard/hand-back", "hand-back/rest", "hand-back/token"}},
		{"a definition that takes the token along", func(k *keeper) {
			k.redefine = func(t driver.Tag, def hapax.Tag) driver.Tag {
				next := t.Redefined(def)
				next.Token = def.Token
				if def.Deleted != t.Deleted {
					next.Token = 0
				}
				return next
			}
		}, []string{"hand-back/token"}},
	} {
		t.Run(c.name, func(t *testing.T) { caughtInKeeper(t, c.breaks, c.caught) })
	}
}

func caughtInKeeper(t *testing.T, breaks func(*keeper), caught []string) {
	t.Helper()
	wantCaught(t, Harness{Open: func(testing.TB) Handle {
		k := newKeeper()
		breaks(k)
		return k
	}}, caught)
}

// TestHealControls breaks healing in one way at a time.
func TestHealControls(t *testing.T) {
	healed := func(then func(old, next *driver.Tag, def hapax.Tag)) func(*keeper) {
		return func(k *keeper) {
			k.rules.heal = func(old driver.Tag, def hapax.Tag) (driver.Tag, error) {
				next, err := driver.Heal(old, def)
				if err == nil {
					then(&old, &next, def)
				}
				return next, err
			}
		}
	}
	for _, c := range []struct {
		name   string
		breaks func(*keeper)
		caught []string
	}{
		{"a mark that is not raised", healed(func(old, next *driver.Tag, _ hapax.Tag) {
			if old.Name != "" {
				next.Mark = old.Mark
			}
		}), []string{"heal/tag", "heal/deleted tag"}},
		{"a mark that is lowered", healed(func(_, next *driver.Tag, def hapax.Tag) { next.Mark = max(def.Mark, next.Start) }), []string{"heal/tag", "heal/at the same time"}},
		{"a token that is not raised", healed(func(old, next *driver.Tag, _ hapax.Tag) { next.Token = old.Token }), []string{"heal/tag", "heal/unknown tag"}},
		{"a token that is counted up alone", healed(func(old, next *driver.Tag, _ hapax.Tag) { next.Token = old.Token + 1 }), []string{"heal/tag", "heal/unknown tag"}},
		{"a token that is taken as it is", healed(func(old, next *driver.Tag, def hapax.Tag) { next.Token = max(old.Token, def.Token) }), []string{"heal/tag"}},
		{"another definition", healed(func(_, next *driver.Tag, def hapax.Tag) { next.Step = def.Step }), []string{"heal/tag"}},
		{"a tombstone that is revived", healed(func(_, next *driver.Tag, def hapax.Tag) { next.Deleted = def.Deleted }), []string{"heal/deleted tag"}},
		{"a tombstone that is made alive", healed(func(old, next *driver.Tag, _ hapax.Tag) { next.Deleted = old.Deleted }), []string{"heal/unknown tag"}},
		{"a run that goes on", healed(func(old, next *driver.Tag, _ hapax.Tag) { next.KeyHash, next.Run = old.KeyHash, old.Run }), []string{"heal/hand-back"}},
		{"a kind that is not looked at", func(k *keeper) {
			k.rules.heal = func(old driver.Tag, def hapax.Tag) (driver.Tag, error) {
				if old.Name != "" {
					def.Kind, def.Pool, def.Mark = old.Kind, old.Pool, 0
				}
				return driver.Heal(old, def)
			}
		}, []string{"heal/other kind"}},
		{"numbers that are not looked at", func(k *keeper) {
			k.rules.heal = func(old driver.Tag, def hapax.Tag) (driver.Tag, error) {
				if old.Name != "" {
					def.Delta, def.Remainder = old.Delta, old.Remainder
				}
				return driver.Heal(old, def)
			}
		}, []string{"heal/other kind"}},
		{"a worker that is left as it is", func(k *keeper) {
			k.rules.worker = func(w driver.Worker) driver.Worker { w.Mark = 0; return w }
		}, []string{"heal/worker"}},
		{"a worker's token that is counted up alone", func(k *keeper) {
			k.rules.worker = func(w driver.Worker) driver.Worker { w.Token = 0; return w }
		}, []string{"heal/worker"}},
		{"a worker's row that is written later", func(k *keeper) {
			k.rules.after = func(_ context.Context, row *storedWorker) { row.Mark--; row.From = min(row.From, row.Mark) }
		}, []string{"heal/worker"}},
	} {
		t.Run(c.name, func(t *testing.T) { caughtInKeeper(t, c.breaks, c.caught) })
	}
}
