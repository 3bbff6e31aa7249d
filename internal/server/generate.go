package server

//go:generate sh -c "go run ../configdoc > ../../docs/configuration.md"
