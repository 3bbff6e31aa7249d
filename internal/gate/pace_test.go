package gate

import (
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// arrivals is a listener of connections that the test makes.
type arrivals chan net.Conn

func (a arrivals) Accept() (net.Conn, error) { return <-a, nil }
func (a arrivals) Close() error              { return nil }
func (a arrivals) Addr() net.Addr            { return nil }

// What strangers send beyond a little is read at a rate that they share; a little at
// once, also while others send much, and known clients at any rate.
func TestStrangersAreReadWithoutHaste(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := make(arrivals, 1)
		l := Listen(ours, New(1000), true, nil)
		connect := func() (client net.Conn, server net.Conn) {
			client, server = net.Pipe()
			ours <- server
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return client, server
		}
		read := func(server net.Conn) *int64 {
			got := new(int64)
			go func() {
				buf := make([]byte, 4<<10)
				for {
					n, err := server.Read(buf)
					*got += int64(n)
					if err != nil {
						return
					}
				}
			}()
			return got
		}
		var all []*int64
		var clients, servers []net.Conn
		for range 50 {
			client, server := connect()
			all, clients, servers = append(all, read(server)), append(clients, client), append(servers, server)
			go func() { _, _ = io.Copy(client, endless{}) }()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		sum := int64(0)
		for _, n := range all {
			sum += *n
		}
		if most := int64(50*(freeBytes+4<<10) + sharedAtOnce + 11*sharedRate + 50*10*freeAnew); sum > most || sum < 5*sharedRate {
			t.Errorf("in 10 s %d bytes of 50 strangers were read, want up to %d", sum, most)
		}
		client, server := connect()
		got := read(server)
		began := time.Now()
		if _, err := client.Write(make([]byte, freeBytes)); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > 0 {
			t.Errorf("a request waits for %v", time.Since(began))
		}
		PassOf(server).Vouch()
		if _, err := client.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if time.Since(began) > 0 || *got != freeBytes+1<<20 {
			t.Errorf("a known client waits for %v, and %d bytes came", time.Since(began), *got)
		}
		for _, c := range slices.Concat(clients, servers, []net.Conn{client, server}) {
			_ = c.Close()
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A stranger that is cut does not wait.
func TestCutEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := make(arrivals, 1)
		g := New(16)
		l := Listen(ours, g, true, nil)
		client, server := net.Pipe()
		ours <- server
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, accepted)
			ended <- err
		}()
		go func() { _, _ = io.Copy(client, endless{}) }()
		time.Sleep(time.Second)
		began := time.Now()
		g.Expel()
		<-ended
		if time.Since(began) > 0 {
			t.Errorf("it ended %v later", time.Since(began))
		}
	})
}
