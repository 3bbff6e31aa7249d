package main

import (
	"bytes"
	"compress/gzip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/hapax-id/hapax/internal/cli"
)

// A file is one that goes into archives and packages.
type file struct {
	name string
	data []byte
}

// manual makes a page for the command and for each of its subcommands.
func manual(version string, at time.Time) ([]file, error) {
	var pages []file
	var visit func(*cobra.Command) error
	visit = func(cmd *cobra.Command) error {
		if !cmd.IsAvailableCommand() && cmd.HasParent() || cmd.IsAdditionalHelpTopicCommand() {
			return nil
		}
		cmd.DisableAutoGenTag = true
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		var page bytes.Buffer
		header := &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Date: &at, Source: "hapax " + version, Manual: "hapax"}
		if err := doc.GenMan(cmd, header, &page); err != nil {
			return err
		}
		packed, err := pack(page.Bytes())
		if err != nil {
			return err
		}
		pages = append(pages, file{name + ".1.gz", packed})
		for _, c := range cmd.Commands() {
			if err := visit(c); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, visit(cli.Command())
}

func pack(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// completions makes the files by which shells complete the command, each under the
// path below /usr/share where its shell looks.
func completions() ([]file, error) {
	root := cli.Command()
	var files []file
	for path, write := range map[string]func(*bytes.Buffer) error{
		"bash-completion/completions/hapax":    func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"zsh/vendor-completions/_hapax":        func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"fish/vendor_completions.d/hapax.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
	} {
		var text bytes.Buffer
		if err := write(&text); err != nil {
			return nil, err
		}
		files = append(files, file{path, text.Bytes()})
	}
	return sorted(files), nil
}
