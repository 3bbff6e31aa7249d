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

// ErrSilent is the error of hosts that take connections and do not answer.
var ErrSilent = errors.New("the connection is taken, and no answer comes")

// Unreached tries to connect to hosts, each with its port, and returns the first error, or
// ErrSilent. It is for drivers whose client does not say why it has no connection. With a config it
// tries TLS, too.
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
