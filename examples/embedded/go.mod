module github.com/hapax-id/hapax/examples/embedded

go 1.26.0

replace github.com/hapax-id/hapax => ../..

require github.com/hapax-id/hapax v0.0.0-00010101000000-000000000000

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
