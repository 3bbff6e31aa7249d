package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// serve answers every request of the Redis protocol with a number, until the context
// ends. It only counts requests, by the sign that each begins with.
func serve(ctx context.Context, address string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() { // ends with the connection
			defer nc.Close()
			buf, answer, out := make([]byte, 16<<10), []byte(":1234567\r\n"), []byte(nil)
			for {
				n, err := nc.Read(buf)
				if err != nil {
					return
				}
				out = out[:0]
				for range bytes.Count(buf[:n], []byte("*")) {
					out = append(out, answer...)
				}
				if _, err := nc.Write(out); err != nil {
					return
				}
			}
		}()
	}
}

// startLoop runs this program again, to serve.
func startLoop(ctx context.Context) (*host.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := host.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	s, err := host.Start(ctx, self, "-serve", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	s.RESP = port
	if err := host.Await(ctx, "127.0.0.1:"+port); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}
