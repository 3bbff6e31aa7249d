package redisstore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// A URL that leads to the Redis port of a hapax server is refused as that, before anything
// is said of how safe it is.
func TestHapaxIsNoRedis(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerAsHapax(conn)
		}
	}()
	warned := 0
	s, err := Open(t.Context(), "redis://"+l.Addr().String(), Options{Warn: func(string, string) { warned++ }})
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "the Redis port of a hapax server") || warned > 0 {
		t.Errorf("Open: %v, with %d warnings", err, warned)
	}
}

// answerAsHapax answers INFO, and takes no other command.
func answerAsHapax(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	number := func() int {
		line, err := in.ReadString('\n')
		if err != nil || len(line) < 2 {
			return 0
		}
		n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		return n
	}
	for {
		words := number()
		if words == 0 {
			return
		}
		name := ""
		for i := range words {
			word := make([]byte, number()+2)
			if _, err := io.ReadFull(in, word); err != nil {
				return
			}
			if i == 0 {
				name = strings.ToUpper(strings.TrimSpace(string(word)))
			}
		}
		reply := "-ERR unknown command\r\n"
		if name == "INFO" {
			const text = "role:master\r\nhapax_version:1.0\r\n"
			reply = fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}
