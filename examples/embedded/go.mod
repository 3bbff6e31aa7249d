module github.com/hapax-id/hapax/examples/embedded

go 1.26.0

replace github.com/hapax-id/hapax => ../..

require github.com/hapax-id/hapax v0.0.0-00010101000000-000000000000

require (
	go.etcd.io/bbolt v1.5.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
