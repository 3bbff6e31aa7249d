package server

//go:generate sh -c "go run ../internal/configdoc > ../docs/configuration.md"
