package host

import "context"

// StartRedis runs redis-server on loopback, with its data in dir.
func StartRedis(ctx context.Context, dir string, flags ...string) (*Server, error) {
	port, err := FreePort(ctx)
	if err != nil {
		return nil, err
	}
	s, err := Start(ctx, "redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", ""}, flags...)...)
	if err != nil {
		return nil, err
	}
	s.RESP = port
	if err := Await(ctx, "127.0.0.1:"+port); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}
