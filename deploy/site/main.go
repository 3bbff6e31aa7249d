// Command site writes the documents as a static site. A dead link is an
// error.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hapax-id/hapax/internal/site"
)

func main() {
	top := flag.String("top", "..", "directory of the repository")
	out := flag.String("o", "../dist/site", "directory to write to; made when missing")
	flag.Parse()
	if err := build(*top, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func build(top, out string) error {
	files, err := site.Render(os.DirFS(top))
	if err != nil {
		return err
	}
	for name, data := range files {
		file := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // the pages are for everybody
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}
