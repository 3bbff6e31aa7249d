package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	hapaxv1 "github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/api/hapaxv1/hapaxv1connect"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/wire"
	"github.com/hapax-id/hapax/store/memstore"
)

// older is a server of a build that knows no tombstones: it makes a tag for each.
type older struct {
	hapaxv1connect.UnimplementedAdminServiceHandler

	store *memstore.Store
}

func (o older) CreateTag(ctx context.Context, req *hapaxv1.CreateTagRequest) (*hapaxv1.CreateTagResponse, error) {
	tag, err := wire.Tag(req.GetTag())
	if err == nil {
		tag, err = o.store.CreateTag(ctx, tag, hapax.CreateExplicit)
	}
	return &hapaxv1.CreateTagResponse{Tag: wire.NewTag(tag)}, err
}

func (o older) DeleteTag(ctx context.Context, req *hapaxv1.DeleteTagRequest) (*hapaxv1.DeleteTagResponse, error) {
	tag, err := o.store.DeleteTag(ctx, req.GetName())
	return &hapaxv1.DeleteTagResponse{Tag: wire.NewTag(tag)}, err
}

// What an older server makes in the place of a tombstone does not stay, and the error says what to do.
func TestTombstoneOfAnOlderServer(t *testing.T) {
	ctx := within(t)
	store := memstore.New()
	mux := http.NewServeMux()
	mux.Handle(hapaxv1connect.NewAdminServiceHandler(older{store: store}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close) // after the client
	c := dial(t, client.Options{Once: true}, srv.URL)
	for range 2 {
		if _, err := c.CreateTag(ctx, hapax.Tag{Name: "orders"}, hapax.CreateTombstone); !errors.Is(err, hapax.ErrNotSupported) || !strings.Contains(err.Error(), "older build") {
			t.Errorf("%v; want it refused", err)
		}
		if tag, err := store.Tag(ctx, "orders"); err != nil || !tag.Deleted {
			t.Errorf("then there is %+v, %v; want it deleted", tag, err)
		}
	}
}
