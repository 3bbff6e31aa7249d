// Package docs holds the documents, which the server shows.
package docs

import "embed"

// Pages are the documents in Markdown, with their pictures.
//
//go:embed *.md *.svg pictures
var Pages embed.FS
