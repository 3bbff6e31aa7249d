package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Whatever says that it takes the server from the environment asks that server.
func TestServerOfTheEnvironment(t *testing.T) {
	t.Chdir(t.TempDir()) // nothing is there to work on otherwise
	asked := make(chan struct{}, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default: // it was asked often enough
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer srv.Close()
	t.Setenv(serverEnv, srv.URL)
	arguments := map[string][]string{
		"adopt":          {"--yes"},
		"nodes settle":   {"db-host-2:/var/lib/hapax", "--floor", "7", "--yes"},
		"code parse":     {"orders", "X-1"},
		"next":           {"orders"},
		"plugins off":    {"p"},
		"plugins on":     {"p"},
		"plugins order":  {"p", "7"},
		"pools create":   {"p", "--layout", "leaf"},
		"pools delete":   {"p"},
		"pools show":     {"p"},
		"tags create":    {"orders"},
		"tags delete":    {"orders"},
		"tags set":       {"orders", "--step", "7"},
		"tags show":      {"orders"},
		"tags usage":     {"orders"},
		"trace":          {"7"},
		"worker exec":    {"--", "true"},
		"worker hold":    {"--file", "env"},
		"workers retire": {"default", "7"},
		"workers show":   {"default", "7"},
	}
	elsewhere := map[string]bool{ // what they need first is not there
		"import leaf": true, "import redis-mongo": true, "import sequences": true, "import tinyid": true,
		"audit": true, // only with a tag of a database's column
		"parse": true, // of codes alone
	}
	also := [][]string{{"adopt", "--foreign", "leaf", "orders", "--yes"}}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), "hapax ")
		if f := cmd.Flags().Lookup("server"); f != nil && cmd.Runnable() && !elsewhere[path] && strings.Contains(f.Usage, serverEnv) {
			also = append(also, append(strings.Fields(path), arguments[path]...))
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(Streams{}, nil))
	for _, args := range also {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, nil)
		root.SetArgs(args)
		go func() { ended <- root.ExecuteContext(ctx) }()
		select {
		case <-asked:
			cancel() // some would ask again
			<-ended
		case err := <-ended:
			cancel()
			if len(asked) == 0 {
				t.Errorf("hapax %q does not ask the server: %v", args, err)
			}
		}
		for len(asked) > 0 {
			<-asked
		}
	}
}
