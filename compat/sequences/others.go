package sequences

import (
	"context"

	"github.com/hapax-id/hapax"
)

func openRedis(context.Context, string, Options) (Database, error) { return nil, hapax.ErrNotSupported }
func openMongo(context.Context, string, Options) (Database, error) { return nil, hapax.ErrNotSupported }
