package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
)

var update = flag.Bool("update", false, "write testdata anew; programs read what commands print, so only add to it")

// fill gives every field of a message a value of its own, twice where it is repeated.
func fill[M proto.Message](m M) M {
	n := int64(0)
	var set func(m protoreflect.Message)
	value := func(f protoreflect.FieldDescriptor) protoreflect.Value {
		n++
		switch {
		case f.Name() == "code":
			return protoreflect.ValueOfString("fenced")
		case f.Name() == "nanos":
			return protoreflect.ValueOfInt32(120_000_000)
		}
		switch f.Kind() {
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(fmt.Sprintf("%s <%d>", f.Name(), n))
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(n))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(1_700_000_000 + n)
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(float64(n) + 0.25)
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(1)
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte("bytes"))
		}
		panic("no value for " + string(f.FullName()))
	}
	set = func(m protoreflect.Message) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			switch f := fields.Get(i); {
			case f.IsList():
				list := m.Mutable(f).List()
				for range 2 {
					if f.Message() == nil {
						list.Append(value(f))
						continue
					}
					of := list.NewElement()
					set(of.Message())
					list.Append(of)
				}
			case f.Message() != nil:
				set(m.Mutable(f).Message())
			default:
				m.Set(f, value(f))
			}
		}
	}
	set(m.ProtoReflect())
	return m
}

// filled answers every question with all that its answer can hold.
type filled struct {
	hapaxv1connect.UnimplementedAdminServiceHandler
}

func (filled) GetStatus(context.Context, *hapaxv1.GetStatusRequest) (*hapaxv1.GetStatusResponse, error) {
	return fill(&hapaxv1.GetStatusResponse{}), nil
}

func (filled) Trace(context.Context, *hapaxv1.TraceRequest) (*hapaxv1.TraceResponse, error) {
	return fill(&hapaxv1.TraceResponse{}), nil
}

func (filled) Adopt(context.Context, *hapaxv1.AdoptRequest) (*hapaxv1.AdoptResponse, error) {
	res := fill(&hapaxv1.AdoptResponse{})
	res.Adoption.Raised[0].Pool = ""
	return res, nil
}

func (filled) AdoptForeign(context.Context, *hapaxv1.AdoptForeignRequest) (*hapaxv1.AdoptForeignResponse, error) {
	return fill(&hapaxv1.AdoptForeignResponse{}), nil
}

func (filled) ListPlugins(context.Context, *hapaxv1.ListPluginsRequest) (*hapaxv1.ListPluginsResponse, error) {
	return fill(&hapaxv1.ListPluginsResponse{}), nil
}

func (filled) GetTag(context.Context, *hapaxv1.GetTagRequest) (*hapaxv1.GetTagResponse, error) {
	res := fill(&hapaxv1.GetTagResponse{})
	res.Tag.Extra = ""
	return res, nil
}

func (filled) GetUsage(context.Context, *hapaxv1.GetUsageRequest) (*hapaxv1.GetUsageResponse, error) {
	return fill(&hapaxv1.GetUsageResponse{}), nil
}

func (filled) ListPoolStatuses(context.Context, *hapaxv1.ListPoolStatusesRequest) (*hapaxv1.ListPoolStatusesResponse, error) {
	return fill(&hapaxv1.ListPoolStatusesResponse{}), nil
}

func (filled) ListWorkerStatuses(context.Context, *hapaxv1.ListWorkerStatusesRequest) (*hapaxv1.ListWorkerStatusesResponse, error) {
	return fill(&hapaxv1.ListWorkerStatusesResponse{}), nil
}

func (filled) ListPools(context.Context, *hapaxv1.ListPoolsRequest) (*hapaxv1.ListPoolsResponse, error) {
	return &hapaxv1.ListPoolsResponse{Pools: []*hapaxv1.Pool{{Name: "default", Layout: "leaf"}}}, nil
}

// What commands print of a server's answers keeps its bytes: of the same answers, which
// have every field, the same text comes as before. A field that is new shows here.
func TestAnswersKeepTheirBytes(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for _, name := range []string{dataEnv, configEnv, httpEnv, tokenEnv} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil { // Setenv brings it back
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle(hapaxv1connect.NewAdminServiceHandler(filled{}))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	t.Setenv(serverEnv, srv.URL)
	var got strings.Builder
	for _, args := range []string{
		"status", "nodes --all", "trace 7", "adopt --dry-run", "adopt --foreign leaf --dry-run", "plugins list", "tags show orders",
		"pools list", "workers list default",
	} {
		for _, form := range []string{"", " --json"} {
			var out, errs bytes.Buffer
			code := Main(t.Context(), strings.Fields(args+form), Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			fmt.Fprintf(&got, "$ hapax %s%s # %d\n%s%s\n", args, form, code, out.String(), errs.String())
		}
	}
	text := strings.ReplaceAll(got.String(), srv.URL, "http://127.0.0.1:8080")
	path := filepath.Join(here, "testdata", "answers.txt")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(text, "\n") {
		if old := strings.Split(string(want), "\n"); i >= len(old) || line != old[i] {
			t.Fatalf("line %d is\n%s\nand was\n%s", i+1, line, old[min(i, len(old)-1)])
		}
	}
	if len(text) != len(want) {
		t.Errorf("%d bytes, there were %d", len(text), len(want))
	}
}
