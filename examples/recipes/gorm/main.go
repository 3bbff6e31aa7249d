// Command gorm has GORM insert rows with numbers from hapax, which the client leases from
// a server and issues in this process.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
)

// orders issues the numbers of all orders of this process.
var orders *client.Segment

// Order is a row whose key is a number from hapax.
type Order struct {
	ID   int64 `gorm:"primaryKey;autoIncrement:false"`
	What string
}

// TableName implements GORM's Tabler.
func (Order) TableName() string { return "recipe_gorm" }

// BeforeCreate is called by GORM for each row, also for those of a batch.
func (o *Order) BeforeCreate(tx *gorm.DB) error {
	id, err := orders.Next(tx.Statement.Context)
	o.ID = int64(id)
	return err
}

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what string) error {
	db, err := gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	if what == "create" {
		return db.AutoMigrate(&Order{})
	}
	n, err := strconv.Atoi(what)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, client.Options{}, os.Getenv("HAPAX_SERVER"))
	if err != nil {
		return err
	}
	defer c.Close()
	if orders, err = c.Segment(ctx, "gorm-orders", hapax.SegmentOptions{}); err != nil {
		return err
	}
	defer orders.Close(ctx)
	batch := make([]Order, n)
	for i := range n {
		if err := db.WithContext(ctx).Create(&Order{What: fmt.Sprint("order ", i)}).Error; err != nil {
			return err
		}
		batch[i].What = fmt.Sprint("bulk ", i)
	}
	return db.WithContext(ctx).Create(&batch).Error
}
