package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// packages makes a package for Debian and one for distributions with RPM.
func (r *release) packages(p platform, binary string) ([]string, error) {
	var made []string
	for _, format := range []string{"deb", "rpm"} {
		name, err := r.pack(format, p, binary)
		if err != nil {
			return made, fmt.Errorf("%s for %s: %w", format, p, err)
		}
		made = append(made, name)
	}
	return made, nil
}

func (r *release) pack(format string, p platform, binary string) (string, error) {
	stage, err := os.MkdirTemp("", "hapax-package-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(stage) }() // it is a temporary one
	contents, err := r.installed(stage, binary)
	if err != nil {
		return "", err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "hapax", Arch: p.arch, Platform: "linux", Version: r.version, Release: "1", MTime: r.at,
		Section: "net", Priority: "optional", Maintainer: "The hapax authors <hapax@hapax.invalid>", Vendor: "hapax",
		Homepage: "https://github.com/hapax-id/hapax", License: "Apache-2.0",
		Description: "unique 64-bit numbers, issued once\nhapax issues order numbers, user IDs and event IDs over HTTP, gRPC and the\nRedis protocol, alone or as any number of nodes over a shared store.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Umask:    0o022,
			Scripts: nfpm.Scripts{
				PostInstall: r.packaged("postinstall.sh"), PreRemove: r.packaged("preremove.sh"), PostRemove: r.packaged("postremove.sh"),
			},
			RPM: nfpm.RPM{Group: "System Environment/Daemons", Compression: "gzip:9", BuildHost: "hapax"},
			Deb: nfpm.Deb{Compression: "gzip"},
		},
	})
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return "", err
	}
	name := packager.ConventionalFileName(info)
	return name, r.create(name, func(w io.Writer) error { return packager.Package(info, w) })
}

// installed returns where the files of a package go. Those that are made, not kept in
// the tree, are staged in a directory.
func (r *release) installed(stage, binary string) (files.Contents, error) {
	at := func(from, to string, mode os.FileMode) *files.Content {
		return &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.at}}
	}
	settings := at(r.packaged("hapax.yaml"), "/etc/hapax/hapax.yaml", 0o640)
	settings.Type = files.TypeConfigNoReplace
	contents := files.Contents{
		at(binary, "/usr/bin/hapax", 0o755),
		at(r.packaged("hapax.service"), "/usr/lib/systemd/system/hapax.service", 0o644),
		at(filepath.Join(r.top, "README.md"), "/usr/share/doc/hapax/README.md", 0o644),
		at(filepath.Join(r.top, "LICENSE"), "/usr/share/doc/hapax/copyright", 0o644),
		settings,
	}
	for _, list := range []struct {
		below string
		files []file
	}{{"/usr/share/man/man1", r.pages}, {"/usr/share", r.shells}} {
		for _, f := range list.files {
			staged := filepath.Join(stage, list.below, f.name)
			if err := os.MkdirAll(filepath.Dir(staged), 0o755); err != nil { //nolint:gosec // a package is for everybody
				return nil, err
			}
			if err := os.WriteFile(staged, f.data, 0o644); err != nil { //nolint:gosec // as above
				return nil, err
			}
			contents = append(contents, at(staged, filepath.Join(list.below, f.name), 0o644))
		}
	}
	return contents, nil
}
