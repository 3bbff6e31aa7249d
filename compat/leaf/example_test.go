package leaf_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/compat/leaf/routes"
)

// Numbers of one key of the table. Each key has an issuer of its own.
func ExampleOpenTable() {
	ctx := context.Background()
	table, err := leaf.OpenTable(ctx, "mysql://leaf:secret@db:3306/leaf", leaf.TableOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer table.Close()
	orders, err := hapax.NewSegment(ctx, table, "order", hapax.SegmentOptions{NoCreate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close(ctx)
	id, err := orders.Next(ctx)
	fmt.Println(id, err)
}

// Snowflakes with the worker ID of this process's node in the tree. While Disturbed tells
// of somebody else who writes to the node, the program must not issue.
func ExampleOpenTree() {
	ctx := context.Background()
	tree, err := leaf.OpenTree(ctx, "zk://zk1:2181,zk2:2181", leaf.TreeOptions{
		Name: "demo", Address: "10.0.0.9:8080", File: "/var/lib/app/workerID.properties",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tree.Close()
	flakes, err := hapax.NewSnowflake(ctx, tree, tree.Snowflake(hapax.SnowflakeOptions{KeepWarm: true}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer flakes.Close(ctx)
	if err := tree.Disturbed(); err != nil {
		fmt.Println(err)
		return
	}
	id, err := flakes.Next(ctx)
	fmt.Println(id, err)
}

// Leaf's routes, over issuers by key.
func Example_routes() {
	var keys, one routes.Issuer // by the issuer of the key; by the same snowflakes for every key
	h, err := routes.New(routes.Options{
		Segment:   keys,
		Snowflake: one,
		Allow:     []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := &http.Server{Addr: "10.0.0.9:8080", Handler: h, ReadHeaderTimeout: 5 * time.Second}
	fmt.Println(server.ListenAndServe())
}
