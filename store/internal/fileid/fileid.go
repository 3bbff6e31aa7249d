// Package fileid tells a file from its copies, and a machine from its clones, as
// far as the system does.
package fileid

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// An Identity tells a file from its copies. Zero values are what cannot be told.
type Identity struct {
	Inode   uint64 `json:"inode,omitempty"`
	Born    int64  `json:"born,omitempty"`    // when the file was created, in ns since 1970
	Machine string `json:"machine,omitempty"` // a hash of the machine's ID
}

// Of tells the identity of an open file on this machine.
func Of(file *os.File) (Identity, error) {
	id, err := ofFile(file)
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

// Boot returns the ID of this run of the machine's kernel, which is another one
// after each start; the empty string where it cannot be told.
func Boot() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Compare returns what shows that now is not the recorded identity; nothing if
// it may be.
func (recorded Identity) Compare(now Identity) []string {
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

// Merge returns the identity to record when Compare has found no difference:
// what is known now, and else what was known before.
func (recorded Identity) Merge(now Identity) Identity {
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
