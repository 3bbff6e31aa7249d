package redisstore_test

import (
	"errors"
	"os/signal"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/redisstore"
)

// Where the server's log cannot grow, nothing counts as granted. A server that
// keeps every write ends then, one that syncs later refuses writes (MISCONF); both
// go on when there is room.
func TestNoRoom(t *testing.T) {
	for _, fsync := range []string{"always", "everysec"} {
		t.Run(fsync, func(t *testing.T) {
			signal.Ignore(unix.SIGXFSZ) // the server inherits it, and sees an error as on a full disk
			srv := testservers.Redis(t, "--appendfsync", fsync)
			signal.Reset(unix.SIGXFSZ)
			s := open(t, srv.URL, redisstore.Options{})
			create(t, s, hapax.Tag{Name: "t"})
			last := allocate(t, s, "t", 10)

			c := raw(t, srv)
			_, info, _ := strings.Cut(c.Info(t.Context(), "server").Val(), "process_id:")
			pid, _, _ := strings.Cut(info, "\r")
			_, info, _ = strings.Cut(c.Info(t.Context(), "persistence").Val(), "aof_current_size:")
			size, _, _ := strings.Cut(info, "\r")
			var was unix.Rlimit
			full := unix.Rlimit{Cur: uint64(atoi(t, size)) + 100}
			if err := unix.Prlimit(atoi(t, pid), unix.RLIMIT_FSIZE, nil, &was); err != nil {
				t.Fatal(err)
			}
			full.Max = was.Max
			if err := unix.Prlimit(atoi(t, pid), unix.RLIMIT_FSIZE, &full, nil); err != nil {
				t.Fatal(err)
			}
			// A server that syncs later may also write later, as long as a sync takes.
			err := patience.Await(t, "a grant that fails", func() (error, error) {
				a, err := s.Allocate(t.Context(), "t", 10, "")
				if err == nil && a.Grant.Lo < last.Hi {
					t.Fatalf("%v was granted after %v", a.Grant, last)
				}
				if err == nil {
					last = a.Grant
				}
				return err, nil
			}, func(err error) bool { return err != nil })
			wantErr(t, "a grant that the log has no room for", err, hapax.ErrStoreUnavailable)
			if fsync == "always" {
				srv.Kill() // it has ended by itself
				srv.Start()
			} else if err := unix.Prlimit(atoi(t, pid), unix.RLIMIT_FSIZE, &was, nil); err != nil {
				t.Fatal(err)
			}
			g, err := allocateUntil(t, s, "t", nil)
			if err != nil || g.Lo < last.Hi {
				t.Errorf("when there is room: %v, %v; %v was granted before", g, err, last)
			}
		})
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(text)))
	}
	return n
}
