package testservers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// MongoDB starts a MongoDB-compatible server with an empty database "hapax": the
// program in the folder ferretdb, which stands in for mongod. It is built at its
// first use. HAPAX_TEST_MONGODB_URL names an existing server instead, which
// should be a replica set, and whose URL ends in a database for the tests.
func MongoDB(t testing.TB) *Server {
	t.Helper()
	if s := External(t, "HAPAX_TEST_MONGODB_URL"); s != nil {
		return s
	}
	dir := newDir(t, "mongodb", "")
	return start(t, spec{
		name: "mongodb", bin: buildFerretDB(t), dir: dir, stop: syscall.SIGTERM,
		args: func(port int) []string {
			return []string{"-listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "-dir", dir}
		},
		url:   func(addr string) string { return "mongodb://" + addr + "/hapax" },
		ready: dialed,
	})
}

// buildFerretDB returns the path of the program, which is kept in the user's
// cache under a name that depends on its sources.
func buildFerretDB(t testing.TB) string {
	t.Helper()
	skipIfShort(t)
	if !supported {
		Missing(t, "servers for tests run on Linux only")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience.Long)
	defer cancel()
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		Missing(t, fmt.Sprintf("the go command does not run: %v", err))
	}
	src := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "internal", "testservers", "ferretdb")
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version())
	for _, name := range []string{"main.go", "go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(text)
	}
	bin, err := cached("ferretdb-"+hex.EncodeToString(sum.Sum(nil)[:8]), func(tmp string) error {
		// As the tests are compiled, and of the same versions: so most of it is compiled already.
		cmd := exec.CommandContext(ctx, "go", "build", "-tags", "ferretdb_no_postgresql", "-ldflags", "-s -w", "-o", tmp, ".")
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
	if err != nil {
		Missing(t, fmt.Sprintf("the stand-in for mongod cannot be built: %v", err))
	}
	return bin
}
