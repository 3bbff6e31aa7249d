package mongostore

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
)

// NewDatabase returns the database that the URL of a store names, for other data kept in
// MongoDB. It connects at its first use; the caller must disconnect its Client. Errors are a
// *hapax.ValueError, which never quotes a password, but for names that DNS does not
// resolve.
func NewDatabase(url string, timeout time.Duration) (*mongo.Database, error) {
	client, name, err := clientOptions(url, &Options{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(client.SetTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("%w: mongodb: connect: %w", hapax.ErrStoreUnavailable, err)
	}
	return c.Database(name), nil
}
