package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/wire"
)

// A fleet is several servers over one store, of which each line may be fenced.
type fleet struct {
	fenced map[string]bool // by tag
	calls  map[string]int  // by name and tag
	mark   map[string]int64
}

type (
	fleetLeases struct {
		hapaxv1connect.LeaseServiceClient
		*fleet
	}
	fleetIssues struct {
		hapaxv1connect.IssueServiceClient
		*fleet
	}
)

func (f *fleet) grant(call, tag string, n int64) (hapax.Grant, error) {
	f.calls[call+" "+tag]++
	if f.fenced[tag] {
		return hapax.Grant{}, fmt.Errorf("%w: %s", hapax.ErrFenced, tag)
	}
	lo := f.mark[tag] + 1
	f.mark[tag] += n
	return hapax.Grant{Lo: lo, Hi: lo + n}, nil
}

func (f fleetLeases) GetStoreID(context.Context, *hapaxv1.GetStoreIDRequest) (*hapaxv1.GetStoreIDResponse, error) {
	f.calls["GetStoreID"]++
	return &hapaxv1.GetStoreIDResponse{StoreId: "right"}, nil
}

func (f fleetLeases) Allocate(_ context.Context, r *hapaxv1.AllocateRequest) (*hapaxv1.AllocateResponse, error) {
	g, err := f.grant("Allocate", r.GetTag(), 10)
	if err != nil {
		return nil, err
	}
	tag, err := hapax.Tag{Name: r.GetTag(), Step: 10, MaxStep: 10}.WithDefaults()
	return &hapaxv1.AllocateResponse{Grant: wire.NewGrant(g), Tag: wire.NewTag(tag), ValidFor: durationpb.New(time.Hour), Key: "k", From: g.Lo}, err
}

func (f fleetLeases) HandBack(context.Context, *hapaxv1.HandBackRequest) (*hapaxv1.HandBackResponse, error) {
	return &hapaxv1.HandBackResponse{}, nil
}

func (f fleetLeases) AcquireWorker(_ context.Context, r *hapaxv1.AcquireWorkerRequest) (*hapaxv1.AcquireWorkerResponse, error) {
	g, err := f.grant("AcquireWorker", r.GetPool(), 1)
	return &hapaxv1.AcquireWorkerResponse{Lease: wire.NewLease(hapax.Lease{Pool: r.GetPool(), Grant: g})}, err
}

func (f fleetLeases) ExtendWorker(_ context.Context, r *hapaxv1.ExtendWorkerRequest) (*hapaxv1.ExtendWorkerResponse, error) {
	_, err := f.grant("ExtendWorker", r.GetLease().GetPool(), 1)
	return &hapaxv1.ExtendWorkerResponse{Lease: r.GetLease()}, err
}

func (f fleetIssues) Next(_ context.Context, r *hapaxv1.NextRequest) (*hapaxv1.NextResponse, error) {
	g, err := f.grant("Next", r.GetTag(), int64(r.GetCount()))
	return &hapaxv1.NextResponse{Ids: []int64{g.Lo}}, err
}

// TestFencedServersAreLeftAlone: while a fence stands, callers that ask again every few milliseconds get its
// error, and the servers are asked seldom, once each; other tags go on; and within about a second of its end
// there are numbers again.
func TestFencedServersAreLeftAlone(t *testing.T) {
	const servers, stands, pause, soon = 3, time.Minute, 5 * time.Millisecond, 1100 * time.Millisecond
	for name, c := range map[string]struct {
		call string
		ways func(t *testing.T, c *Client) func(ctx context.Context, tag string) error
	}{
		"leases": {"Allocate", func(t *testing.T, c *Client) func(context.Context, string) error {
			segments := map[string]*hapax.Segment{}
			for _, tag := range []string{"fenced", "free"} {
				s, err := c.Segment(t.Context(), tag, hapax.SegmentOptions{})
				if err != nil {
					t.Fatal(err)
				}
				segments[tag] = s.Segment
			}
			return func(ctx context.Context, tag string) error { _, err := segments[tag].Next(ctx); return err }
		}},
		"calls": {"Next", func(_ *testing.T, c *Client) func(context.Context, string) error {
			return func(ctx context.Context, tag string) error { _, err := c.Next(ctx, tag); return err }
		}},
		"workers": {"AcquireWorker", func(_ *testing.T, c *Client) func(context.Context, string) error {
			return func(ctx context.Context, pool string) error {
				_, err := c.AcquireWorker(ctx, hapax.AcquireRequest{Pool: pool})
				return err
			}
		}},
		"held workers": {"ExtendWorker", func(_ *testing.T, c *Client) func(context.Context, string) error {
			return func(ctx context.Context, pool string) error {
				_, err := c.ExtendWorker(ctx, hapax.Lease{Pool: pool}, hapax.Layout{}, hapax.Term{})
				return err
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{fenced: map[string]bool{}, calls: map[string]int{}, mark: map[string]int64{}}
				cl, err := newClient(Options{}, []string{"http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"})
				if err != nil {
					t.Fatal(err)
				}
				defer cl.Close()
				for _, s := range cl.servers {
					s.lease, s.issue = fleetLeases{fleet: f}, fleetIssues{fleet: f}
				}
				next := c.ways(t, cl)
				use := func(tag string) error {
					ctx, cancel := context.WithTimeout(t.Context(), pause)
					defer cancel()
					return next(ctx, tag)
				}
				for _, tag := range []string{"fenced", "free"} {
					if err := use(tag); err != nil {
						t.Fatal(tag, err)
					}
				}
				f.fenced["fenced"] = true
				for range 20 { // what is in hand
					_ = use("fenced")
				}
				clear(f.calls)
				refused := 0
				for began := time.Now(); time.Since(began) < stands; time.Sleep(pause) {
					if err := use("fenced"); errors.Is(err, hapax.ErrFenced) {
						refused++
					} else {
						t.Fatalf("while a fence stands: %v", err)
					}
					if err := use("free"); err != nil {
						t.Fatalf("the other tag: %v", err)
					}
				}
				// A round takes 0.65 s on average.
				if asked, most := f.calls[c.call+" fenced"], 2*servers*int(stands/time.Second); asked > most || asked < servers*20 {
					t.Errorf("the servers were asked %d times within %v, for %d calls; want up to %d", asked, stands, refused, most)
				}
				if n := f.calls["GetStoreID"]; n > servers {
					t.Errorf("the servers were asked %d times for their store; want once each at most", n)
				}
				f.fenced["fenced"] = false
				for began := time.Now(); use("fenced") != nil; time.Sleep(pause) {
					if time.Since(began) > soon {
						t.Fatalf("no number within %v of the end of the fence", soon)
					}
				}
			})
		})
	}
}

// TestFencesAreBounded: of any number of names, so many are remembered, and those of old make room.
func TestFencesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fences{}
		for i := range 2 * maxFences {
			f.learn(fmt.Sprint(i), hapax.ErrFenced)
		}
		if len(f.lines) != maxFences {
			t.Errorf("%d are remembered; want %d", len(f.lines), maxFences)
		}
		time.Sleep(probeTime)
		f.learn("new", hapax.ErrFenced)
		if err := f.standing("new"); !errors.Is(err, hapax.ErrFenced) || len(f.lines) != 1 {
			t.Errorf("%d are remembered, and of the new one %v", len(f.lines), err)
		}
	})
}
