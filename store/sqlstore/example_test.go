package sqlstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// Tables are made at first; an @ in the password is %40. The other stores differ in
// their package and URL alone:
//
//	postgresstore.Open(ctx, "postgres://app:p%40ss@db.example:5432/ids", sqlstore.Options{})
//	redisstore.Open(ctx, "redis://:p%40ss@redis.example:6379/0", redisstore.Options{})
//	mongostore.Open(ctx, "mongodb://app:p%40ss@mongo.example:27017/ids?replicaSet=rs0", mongostore.Options{})
//	etcdstore.Open(ctx, "etcds://etcd-1.example:2379,etcd-2.example:2379/ids", etcdstore.Options{})
//	zkstore.Open(ctx, "zk://zk-1.example:2181,zk-2.example:2181/ids", zkstore.Options{})
func Example() {
	ctx := context.Background()
	store, err := mysqlstore.Open(ctx, "mysql://app:p%40ss@db.example:3306/ids", sqlstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // behind the issuers, which need it to give back what they hold
	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)

	id, err := orders.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
