package site

import (
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/hapax-id/hapax/docs"
)

// Prefix is where the server has the documents.
const Prefix = "/docs/"

// contentTypes are those of all files of a site.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
}

// rendered are the documents of the binary's own version, once somebody has asked for one.
var rendered = sync.OnceValues(func() (map[string][]byte, error) { return renderDocuments(docs.Pages) })

// Serve answers a request for a document with a path below Prefix.
func Serve(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix)
	if name == "" {
		name = "index.html"
	}
	files, err := rendered()
	if err != nil {
		http.Error(w, "the documents cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	data, ok := files[name]
	if !ok {
		http.Error(w, "there is no such document", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
	_, _ = w.Write(data) // a client that is gone misses nothing
}
