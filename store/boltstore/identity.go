package boltstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
)

// An identity tells a file from its copies. Zero values are what cannot be told.
type identity struct {
	Inode   uint64 `json:"inode,omitempty"`
	Born    int64  `json:"born,omitempty"`    // when the file was created, in ns since 1970
	Machine string `json:"machine,omitempty"` // a hash of the machine's ID
}

// An identifier tells the identity of an open file.
type identifier func(*os.File) (identity, error)

// identify tells the identity of a file on this machine.
func identify(file *os.File) (identity, error) {
	id, err := identifyFile(file)
	id.Machine = machine()
	return id, err
}

// machine returns a hash of the machine's ID, which is confidential, or the
// empty string where there is none that lasts: in a container it may come from
// the image, or be made anew at each start.
func machine() string {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return ""
	}
	for _, container := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(container); err == nil {
			return ""
		}
	}
	text, err := os.ReadFile("/etc/machine-id")
	id := strings.TrimSpace(string(text))
	if err != nil || len(id) != 32 { // empty or "uninitialized" in images
		return ""
	}
	mac := hmac.New(sha256.New, []byte(id))
	mac.Write([]byte("hapax store"))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// compare returns what shows that now is not the recorded identity.
func (recorded identity) compare(now identity) []string {
	var diff []string
	switch {
	case recorded.Born != 0 && now.Born != 0: // lasts even where inodes do not
		if recorded.Born != now.Born {
			diff = append(diff, fmt.Sprintf("the file was created at another time (inode %d, was %d)", now.Inode, recorded.Inode))
		}
	case recorded.Inode != 0 && now.Inode != 0 && recorded.Inode != now.Inode:
		diff = append(diff, fmt.Sprintf("the file's inode is %d, was %d", now.Inode, recorded.Inode))
	}
	if recorded.Machine != "" && now.Machine != "" && recorded.Machine != now.Machine {
		diff = append(diff, "the machine's ID is another one")
	}
	return diff
}

// merge returns the identity to record when compare has found no difference:
// what is known now, and else what was known before.
func (recorded identity) merge(now identity) identity {
	if now.Inode == 0 {
		now.Inode = recorded.Inode
	}
	if now.Born == 0 {
		now.Born = recorded.Born
	}
	if now.Machine == "" {
		now.Machine = recorded.Machine
	}
	return now
}

// copied tells what differs, and what to do about it.
func copied(path string, diff []string) error {
	return fmt.Errorf("%w: %s: %s; if the original will never be used again, raise every mark with: hapax adopt", hapax.ErrStoreCopied, path, strings.Join(diff, ", "))
}
