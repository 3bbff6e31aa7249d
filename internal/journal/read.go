package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A listed is a file of a journal.
type listed struct {
	name   string
	number int64
	began  time.Time
}

func nameOf(prefix string, number int64, began time.Time) string {
	return fmt.Sprintf("%s-%08d-%d.tsv", prefix, number, began.Unix())
}

// list returns the files of a journal in their order.
func list(dir, prefix string) ([]listed, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []listed
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix+"-")
		rest, isTSV := strings.CutSuffix(rest, ".tsv")
		number, second, cut := strings.Cut(rest, "-")
		if !ok || !isTSV || !cut || !e.Type().IsRegular() {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		at, err2 := strconv.ParseInt(second, 10, 64)
		if err != nil || err2 != nil || n < 0 {
			continue
		}
		files = append(files, listed{e.Name(), n, time.Unix(at, 0)})
	}
	slices.SortFunc(files, func(a, b listed) int { return cmp.Compare(a.number, b.number) })
	return files, nil
}

// Files returns the paths of a journal's files in their order; none where there
// is no such directory.
func Files(dir, prefix string) ([]string, error) {
	files, err := list(dir, prefix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, f := range files {
		paths = append(paths, filepath.Join(dir, f.name))
	}
	return paths, err
}

// Read calls f with each record, oldest first, without its checksum; it must not
// keep the slice. It may run while the journal is written to. Damaged records are
// left out and counted. Where there is no such directory, there are no records.
func Read(ctx context.Context, dir, prefix string, f func(record []byte) error) (damaged int, err error) {
	paths, err := Files(dir, prefix)
	if err != nil {
		return 0, err
	}
	for i, path := range paths {
		n, err := readFile(ctx, path, i == len(paths)-1, f)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile, for its age
			continue
		}
		damaged += n
		if err != nil {
			return damaged, err
		}
	}
	return damaged, nil
}

func readFile(ctx context.Context, path string, last bool, f func([]byte) error) (damaged int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return Scan(ctx, file, last, f)
}

// Scan is Read for one file. Where it may be written to at this moment, the
// beginning of a record at its end is no damage.
func Scan(ctx context.Context, file io.Reader, growing bool, f func(record []byte) error) (damaged int, err error) {
	r := bufio.NewReaderSize(file, 4*MaxRecord)
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return damaged, context.Cause(ctx)
		}
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			// No record is so long; the rest of the line is none, either.
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
			damaged++
			if err == nil {
				continue
			}
		case err == nil:
			if len(line) == 1 { // begins a line after a torn record
				continue
			}
			if record, ok := check(line[:len(line)-1]); !ok {
				damaged++
			} else if err := f(record); err != nil {
				return damaged, err
			}
			continue
		case errors.Is(err, io.EOF) && len(line) > 0 && !growing:
			damaged++
		}
		if errors.Is(err, io.EOF) {
			return damaged, nil
		}
		return damaged, err
	}
}

// check returns a line without its checksum, if that is right.
func check(line []byte) (record []byte, ok bool) {
	cut := bytes.LastIndexByte(line, '\t')
	if cut < 0 || len(line)-cut != 9 {
		return nil, false
	}
	var sum uint32
	for _, c := range line[cut+1:] {
		switch {
		case '0' <= c && c <= '9':
			sum = sum<<4 | uint32(c-'0')
		case 'a' <= c && c <= 'f':
			sum = sum<<4 | uint32(c-'a'+10)
		default:
			return nil, false
		}
	}
	return line[:cut], crc32.Checksum(line[:cut], castagnoli) == sum
}
