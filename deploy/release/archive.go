package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// archive packs a binary with its documents: as .zip for Windows, else as .tar.gz.
func (r *release) archive(p platform, binary string) (string, error) {
	files, err := r.contents(p, binary)
	if err != nil {
		return "", err
	}
	top := r.name(p, "")
	if p.os == "windows" {
		name := r.name(p, ".zip")
		return name, r.create(name, func(w io.Writer) error { return r.zip(w, top, files) })
	}
	name := r.name(p, ".tar.gz")
	return name, r.create(name, func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := r.tar(z, top, files); err != nil {
			return err
		}
		return z.Close()
	})
}

// contents returns what an archive holds, below its one directory.
func (r *release) contents(p platform, binary string) ([]file, error) {
	var files []file
	read := func(name, from string) error {
		data, err := os.ReadFile(from)
		files = append(files, file{name, data})
		return err
	}
	if err := read(executable(p), binary); err != nil {
		return nil, err
	}
	for _, name := range []string{"README.md", "LICENSE", "VERSION"} {
		if err := read(name, filepath.Join(r.top, name)); err != nil {
			return nil, err
		}
	}
	if p.os == "linux" {
		if err := read("hapax.service", r.packaged("hapax.service")); err != nil {
			return nil, err
		}
	}
	if p.os != "windows" {
		for _, f := range r.pages {
			files = append(files, file{"man/man1/" + f.name, f.data})
		}
		for _, f := range r.shells {
			files = append(files, file{"completions/" + f.name, f.data})
		}
	}
	return sorted(files), nil
}

// packaged returns the path of a file that packages bring.
func (r *release) packaged(name string) string {
	return filepath.Join(r.top, "deploy", "package", name)
}

func sorted(files []file) []file {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return files
}

// mode returns the permissions of a file by its name.
func mode(name string) int64 {
	if base := path.Base(name); base == "hapax" && !strings.Contains(name, "completions/") || base == "hapax.exe" {
		return 0o755
	}
	return 0o644
}

func (r *release) tar(w io.Writer, top string, files []file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: path.Join(top, f.name), Mode: mode(f.name), Size: int64(len(f.data)), ModTime: r.at, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func (r *release) zip(w io.Writer, top string, files []file) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		h := &zip.FileHeader{Name: path.Join(top, f.name), Method: zip.Deflate, Modified: r.at}
		h.SetMode(os.FileMode(mode(f.name)))
		part, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := part.Write(f.data); err != nil {
			return err
		}
	}
	return z.Close()
}
