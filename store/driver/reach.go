package driver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// reachFor is how long Unreached looks at all hosts.
const reachFor = 400 * time.Millisecond

// ErrSilent is that a host takes connections, and does not answer what is asked.
var ErrSilent = errors.New("the connection is taken, and no answer comes")

// Unreached returns what becomes of a connection with hosts, each with its port, for
// drivers whose client keeps to itself why it has none: the first error, or ErrSilent. A
// config has it try TLS, too.
func Unreached(hosts []string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), reachFor)
	defer cancel()
	for _, host := range hosts {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
		if err != nil {
			return err
		}
		err = shakes(ctx, conn, host, config)
		if closed := conn.Close(); err == nil {
			err = closed
		}
		// The time is one for all hosts: nothing is left of it for the next.
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
	}
	return ErrSilent
}

func shakes(ctx context.Context, conn net.Conn, host string, config *tls.Config) error {
	if config == nil {
		return nil
	}
	config = config.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(host)
	}
	return tls.Client(conn, config).HandshakeContext(ctx)
}
