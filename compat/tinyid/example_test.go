package tinyid_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/compat/tinyid/routes"
)

// issuers are the issuers by biz_type.
type issuers map[string]*hapax.Segment

func (all issuers) NextN(ctx context.Context, bizType string, dst []hapax.ID) (int, error) {
	one, ok := all[bizType]
	if !ok {
		return 0, hapax.ErrTagNotFound
	}
	return one.NextN(ctx, dst)
}

// TinyID's routes over two databases.
func Example() {
	ctx := context.Background()
	store, err := tinyid.Open(ctx, []string{
		"mysql://tinyid:secret@db1:3306/db1",
		"mysql://tinyid:secret@db2:3306/db2",
	}, tinyid.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	tokens, err := tinyid.OpenTokens(ctx, store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tokens.Close()
	orders, err := hapax.NewSegment(ctx, store, "order", hapax.SegmentOptions{NoCreate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close(ctx)
	h, err := routes.New(routes.Options{Issuer: issuers{"order": orders}, Granter: store, Tokens: tokens})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := &http.Server{Addr: "127.0.0.1:9999", Handler: h, ReadHeaderTimeout: 5 * time.Second}
	fmt.Println(server.ListenAndServe())
}
