package testservers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const supported = true

const (
	syscallStop = syscall.SIGSTOP
	syscallCont = syscall.SIGCONT
)

// processAttr lets the process die with the tests, and run under the named
// account when the tests run as root. The death signal is tied to the thread
// that starts the process; Go ends threads only together with a goroutine that
// was locked to one, which no test does.
func processAttr(account string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	uid, gid, err := lookup(account)
	if err == nil && uid > 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr, err
}

// alone waits until nobody else is alone with a file, in this process or in another, and returns what
// ends that.
func alone(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "flock", Path: path, Err: err}, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// own gives a directory to the account that processAttr would use.
func own(dir, account string) error {
	uid, gid, err := lookup(account)
	if err != nil || uid < 0 {
		return err
	}
	return os.Chown(dir, uid, gid)
}

// freeBytes returns how much room a file system has for everybody; 0 where there is none.
func freeBytes(dir string) uint64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return 0
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// lookup returns the account's IDs, or -1 where no change is needed or allowed.
func lookup(account string) (uid, gid int, err error) {
	if account == "" || os.Geteuid() != 0 {
		return -1, -1, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return -1, -1, err
	}
	uid, err = strconv.Atoi(u.Uid)
	if err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}

// signal sends a signal; to a process that is gone already it does nothing.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// tree returns the process and all its descendants, parents first.
func tree(root int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if _, parent, err := stat(path); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		pids = slices.Concat(pids, children[pids[i]])
	}
	return pids
}

// alive reports whether the process still runs; one that only waits to be reaped
// does not.
func alive(pid int) bool {
	state, _, err := stat(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && state != "Z" && state != "X"
}

// stopped reports whether no thread of the process runs, be it that the process
// has stopped or that it has ended.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
	return !slices.ContainsFunc(threads, func(path string) bool {
		state, _, err := stat(path)
		return err == nil && !strings.ContainsAny(state, "TtZX")
	})
}

// stat returns the state and the parent of a process or thread, from its file
// stat in /proc.
func stat(path string) (state string, parent int, err error) {
	line, err := os.ReadFile(path)
	if err != nil {
		return "", 0, err
	}
	// The name comes second, in parentheses, and may hold anything.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 2 {
		return "", 0, fmt.Errorf("%s: cannot read the state", path)
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err
}
