package redisstore

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogTo has a log take what the Redis client would print on standard error. The client
// has one logger for the whole process. Errors are returned, too.
func LogTo(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, "redis client", "detail", fmt.Sprintf(format, args...))
}
