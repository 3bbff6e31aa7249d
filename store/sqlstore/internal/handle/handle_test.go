package handle

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// hang is a server that never answers.
type hang struct{ driver.Connector }

func (hang) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A pool connects without a deadline, and must not wait for ever.
func TestConnectIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := Connector{hang{}, 3 * time.Second}.Connect(context.Background())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("gave up after %v: %v", time.Since(began), err)
		}
	})
}
