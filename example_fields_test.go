package hapax_test

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// In JSON an ID is a string, since JavaScript is exact up to 2^53 only; what comes
// in may be a number, too.
func ExampleID_json() {
	type order struct {
		ID hapax.ID `json:"id"`
	}
	text, err := json.Marshal(order{ID: 2067301285494784000})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
	var o order
	if err := json.Unmarshal([]byte(`{"id":7}`), &o); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o.ID)
	// Output:
	// {"id":"2067301285494784000"}
	// 7
}

// In a database an ID is a BIGINT: db.Exec("INSERT … VALUES (?)", id) stores it,
// and row.Scan(&id) reads it.
func ExampleID_sql() {
	var id hapax.ID = 2067301285494784000
	stored, err := driver.DefaultParameterConverter.ConvertValue(id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%T %v\n", stored, stored)
	var again hapax.ID
	if err := again.Scan(stored); err != nil {
		log.Fatal(err)
	}
	fmt.Println(again == id)
	// Output:
	// int64 2067301285494784000
	// true
}

// What uses numbers stops first, then the issuers, which give back what they hold,
// and the store that they give it to comes last.
func ExampleIssuer_shutdown() {
	ctx := context.Background()
	store := memstore.New()
	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	events, err := hapax.NewSnowflake(ctx, store, hapax.SnowflakeOptions{})
	if err != nil {
		log.Fatal(err)
	}

	// 1. The server that answers requests: web.Shutdown(ctx).
	for _, issuer := range []hapax.Issuer{orders, events} { // 2.
		if err := issuer.Close(ctx); err != nil {
			log.Print(err) // it costs numbers and repeats none
		}
	}
	if err := store.Close(); err != nil { // 3.
		log.Fatal(err)
	}
	_, err = orders.Next(ctx)
	fmt.Println(err)
	// Output: hapax: the issuer or store is closed
}
