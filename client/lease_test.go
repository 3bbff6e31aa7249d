package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/wire"
)

// slowServer takes a while to lease and to renew.
type slowServer struct {
	hapaxv1connect.LeaseServiceClient

	storeID  string
	takes    time.Duration
	validFor time.Duration
	renewed  int
}

func (s *slowServer) GetStoreID(context.Context, *hapaxv1.GetStoreIDRequest) (*hapaxv1.GetStoreIDResponse, error) {
	return &hapaxv1.GetStoreIDResponse{StoreId: s.storeID}, nil
}

func (s *slowServer) Allocate(context.Context, *hapaxv1.AllocateRequest) (*hapaxv1.AllocateResponse, error) {
	patience.Slow(s.takes)
	tag, err := hapax.Tag{Name: "t"}.WithDefaults()
	return &hapaxv1.AllocateResponse{
		Grant: wire.NewGrant(hapax.Grant{Lo: 1, Hi: 101}), Tag: wire.NewTag(tag), ValidFor: durationpb.New(s.validFor), Key: "k", From: 1,
	}, err
}

func (s *slowServer) HandBack(context.Context, *hapaxv1.HandBackRequest) (*hapaxv1.HandBackResponse, error) {
	return &hapaxv1.HandBackResponse{}, nil
}

func (s *slowServer) Renew(context.Context, *hapaxv1.RenewRequest) (*hapaxv1.RenewResponse, error) {
	s.renewed++
	patience.Slow(s.takes)
	return &hapaxv1.RenewResponse{ValidFor: durationpb.New(s.validFor)}, nil
}

// TestValidityCountsFromTheRequest: the server may have taken the numbers away
// from the moment on at which it was asked, however late its answer arrives; and
// only the server of the right store is asked.
func TestValidityCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newClient(Options{Timeout: time.Minute}, []string{"http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		srv := &slowServer{storeID: "right", takes: 2 * time.Second, validFor: 10 * time.Second}
		c.servers[0].lease = srv
		l := &lease{Client: c, tag: "t"}
		if l.inner, err = hapax.NewSegment(t.Context(), l, "t", hapax.SegmentOptions{}); err != nil {
			t.Fatal(err)
		}
		c.open[l.inner] = l
		if until := time.Duration(l.until.Load()); until != srv.validFor {
			t.Errorf("what was leased at the start is valid until %v; want %v", until, srv.validFor)
		}
		began := time.Since(c.began)
		l.renew(t.Context())
		if until := time.Duration(l.until.Load()); until != began+srv.validFor {
			t.Errorf("what was renewed at %v is valid until %v; want %v", began, until, began+srv.validFor)
		}

		until := time.Duration(l.until.Load())
		srv.storeID = "wrong"
		c.servers[0].verified.Store(false)
		_, err = l.Allocate(t.Context(), "t", 1, "")
		if !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("a lease from another store: error is %v; want ErrStoreReplaced", err)
		}
		if l.renew(t.Context()); srv.renewed != 1 || time.Duration(l.until.Load()) != until {
			t.Errorf("a server with another store was asked to renew: %d times, until %v", srv.renewed, time.Duration(l.until.Load()))
		}
	})
}

// TestValidityCountsSleep: what was leased before the machine slept for longer than that is valid is
// given up when it wakes.
func TestValidityCountsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newClient(Options{Timeout: time.Minute}, []string{"http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var slept atomic.Int64
		c.asleep = func() time.Duration { return time.Duration(slept.Load()) }
		c.slept = c.asleep()
		c.servers[0].lease = &slowServer{storeID: "right", takes: time.Millisecond, validFor: time.Hour}
		l := &lease{Client: c, tag: "t"}
		if l.inner, err = hapax.NewSegment(t.Context(), l, "t", hapax.SegmentOptions{}); err != nil {
			t.Fatal(err)
		}
		c.open[l.inner] = l
		c.children.Go(c.watch)
		time.Sleep(3 * minRenewEvery)
		if dropped := c.Stats().Dropped; dropped != 0 {
			t.Errorf("awake: given up %d times; want 0", dropped)
		}
		slept.Store(int64(2 * time.Hour))
		time.Sleep(3 * minRenewEvery)
		if dropped, rest := c.Stats().Dropped, l.inner.Stats().Remaining; dropped != 1 || rest != 0 {
			t.Errorf("after two hours of sleep: given up %d times, %d are left; want 1, 0", dropped, rest)
		}
	})
}

// awayServer leases ten numbers at a time, and none while it is away.
type awayServer struct {
	slowServer

	away atomic.Bool
	mark atomic.Int64
}

func (s *awayServer) Allocate(context.Context, *hapaxv1.AllocateRequest) (*hapaxv1.AllocateResponse, error) {
	if s.away.Load() {
		return nil, hapax.ErrStoreUnavailable
	}
	tag, err := hapax.Tag{Name: "t", Step: 10, MaxStep: 10}.WithDefaults()
	lo := s.mark.Add(10) - 9
	return &hapaxv1.AllocateResponse{Grant: wire.NewGrant(hapax.Grant{Lo: lo, Hi: lo + 10}), Tag: wire.NewTag(tag), ValidFor: durationpb.New(s.validFor), Key: "k", From: lo}, err
}

func (s *awayServer) Renew(ctx context.Context, r *hapaxv1.RenewRequest) (*hapaxv1.RenewResponse, error) {
	if s.away.Load() {
		return nil, hapax.ErrStoreUnavailable
	}
	return s.slowServer.Renew(ctx, r)
}

// TestValidityEndsAmidACall: a call that has taken all that is leased, and waits for more, gives nothing of it once
// its validity is over; and it does where a server comes back before that.
func TestValidityEndsAmidACall(t *testing.T) {
	for name, c := range map[string]struct {
		away  time.Duration
		gives bool // what it had
	}{
		"back in time": {5 * time.Second, true},
		"too late":     {20 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl, err := newClient(Options{Timeout: time.Minute}, []string{"http://127.0.0.1:1"})
				if err != nil {
					t.Fatal(err)
				}
				defer cl.Close()
				srv := &awayServer{slowServer: slowServer{storeID: "right", validFor: 10 * time.Second}}
				cl.servers[0].lease = srv
				s, err := cl.Segment(t.Context(), "t", hapax.SegmentOptions{})
				if err != nil {
					t.Fatal(err)
				}
				cl.children.Go(cl.watch)
				last, err := s.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // it ends more than once
					synctest.Wait() // for the fetch ahead
					srv.away.Store(true)
					first, ids, ended := last+1, make([]hapax.ID, 45), make(chan error, 1)
					if !c.gives {
						first = hapax.ID(srv.mark.Load()) + 1
					}
					go func() {
						_, err := s.NextN(t.Context(), ids)
						ended <- err
					}()
					time.Sleep(c.away)
					srv.away.Store(false)
					if err := <-ended; err != nil || ids[0] != first || ids[44] != first+44 {
						t.Errorf("%v, %v; want 45 from %d", ids, err, first)
					}
					last = ids[44]
				}
			})
		})
	}
}

// shortServer sends one number, however many it is asked for.
type shortServer struct {
	hapaxv1connect.IssueServiceClient
}

func (shortServer) Next(context.Context, *hapaxv1.NextRequest) (*hapaxv1.NextResponse, error) {
	return &hapaxv1.NextResponse{Ids: []int64{1}}, nil
}

// TestWrongCount: a reply with another count of numbers than was asked for is refused.
func TestWrongCount(t *testing.T) {
	c, err := newClient(Options{Once: true}, []string{"http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.servers[0].issue = shortServer{}
	if ids, err := c.next(t.Context(), "t", 2); err == nil {
		t.Errorf("one number instead of two: %v, want an error", ids)
	}
}
