// Command ferretdb is a MongoDB-compatible server for tests: FerretDB with
// SQLite, embedded, behind a proxy that lets one request at a time through.
//
// It stands in for mongod, which package registries do not have. The proxy is
// what makes single-document writes atomic: FerretDB's findAndModify reads and
// writes in two steps, and two connections would both see the first. It also has the
// server tell which process it is, as mongod does and FerretDB does not.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"
)

// Of the wire protocol: every message begins with its length, and a message of
// kind OP_MSG whose flag moreToCome is set gets no reply.
const (
	headerBytes = 16
	maxMessage  = 48_000_000
	opMsg       = 2013
	moreToCome  = 1 << 1
)

func main() {
	debug.SetGCPercent(800) // collecting is a third of its work otherwise
	addr := flag.String("listen", "127.0.0.1:27017", "address to listen on")
	dir := flag.String("dir", ".", "directory for the data, which exists")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *addr, *dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, dir string) error {
	socket := filepath.Join(dir, "s")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{Unix: socket},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handler:   "sqlite",
		SQLiteURL: "file:" + dir + "/",
	})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { _ = db.Run(ctx) })
	if err := await(ctx, socket); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	wg.Go(func() {
		<-ctx.Done()
		_ = listener.Close()
	})
	var p proxy
	for {
		client, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() { p.serve(ctx, client, socket) })
	}
}

// await waits until somebody listens on the socket.
func await(ctx context.Context, socket string) error {
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A proxy forwards requests one after the other, over all connections.
type proxy struct {
	mu sync.Mutex // held from a request to its reply
}

// serve forwards one connection until either side closes it.
func (p *proxy) serve(ctx context.Context, client net.Conn, socket string) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	for {
		request, err := readMessage(client)
		if err != nil {
			return
		}
		reply, err := p.exchange(server, request)
		if err != nil {
			return
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

func (p *proxy) exchange(server net.Conn, request []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := server.Write(request); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(request[12:]) == opMsg && len(request) > headerBytes && request[headerBytes]&moreToCome != 0 {
		return nil, nil
	}
	reply, err := readMessage(server)
	if err == nil && asksWho(request) {
		reply = tellWho(reply)
	}
	return reply, err
}

// bodyAt is where the body of a message begins, after flags of 4 bytes and the kind of its
// only section.
const bodyAt = headerBytes + 5

// asksWho reports whether a request is a client's hello. Those of the client library itself are
// in the database admin: a server that tells them its process would have to keep them waiting.
func asksWho(request []byte) bool {
	return len(request) > bodyAt+5 && binary.LittleEndian.Uint32(request[12:]) == opMsg && bytes.HasPrefix(request[bodyAt+5:], []byte("hello\x00")) &&
		!bytes.Contains(request, []byte("\x02$db\x00\x06\x00\x00\x00admin\x00"))
}

// process identifies this process, as an object ID.
var process = func() (id [12]byte) { rand.Read(id[:]); return id }()

// tellWho adds the process to a reply: {topologyVersion: {processId, counter: 0}}.
func tellWho(reply []byte) []byte {
	if binary.LittleEndian.Uint32(reply[headerBytes:]) != 0 { // it has more than the body
		return reply
	}
	version := append([]byte("\x07processId\x00"), process[:]...)
	version = append(version, "\x12counter\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	field := binary.LittleEndian.AppendUint32([]byte("\x03topologyVersion\x00"), uint32(4+len(version)))
	field = append(field, version...)
	reply = append(reply[:len(reply)-1], append(field, 0)...)
	for _, at := range []int{0, bodyAt} {
		binary.LittleEndian.PutUint32(reply[at:], binary.LittleEndian.Uint32(reply[at:])+uint32(len(field)))
	}
	return reply
}

func readMessage(r io.Reader) ([]byte, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(header[:])
	if n < headerBytes || n > maxMessage {
		return nil, fmt.Errorf("message of %d bytes; allowed is %d to %d", n, headerBytes, maxMessage)
	}
	message := append(make([]byte, 0, n), header[:]...)[:n]
	_, err := io.ReadFull(r, message[headerBytes:])
	return message, err
}
