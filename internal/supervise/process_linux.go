package supervise

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits says what this system cannot promise.
const Limits = ""

// keepThread keeps the goroutine on its thread until the returned function is called: a
// child's parent, in the sense of PR_SET_PDEATHSIG, is a thread.
func keepThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// adoptOrphans has what loses its parent below this process become its child.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the subreaper: %w", err)
	}
	if _, ok := readProc(os.Getpid()); !ok {
		return errors.New("/proc cannot be read, without which nobody knows what a command started")
	}
	return nil
}

// children are the processes that this one started, and those it got as a subreaper.
var children = reaper{known: map[int]chan int{}}

// A reaper waits for all children. It knows those that somebody started.
type reaper struct {
	once  sync.Once
	mu    sync.Mutex       // guards known, and is held while a child is started
	known map[int]chan int // by process ID: gets the status
}

// start starts a child and returns the channel that gets its status.
func (r *reaper) start(path string, args []string, attr *syscall.ProcAttr) (pid int, ended <-chan int, err error) {
	r.once.Do(func() {
		died := make(chan os.Signal, 1)
		signal.Notify(died, syscall.SIGCHLD)
		go func() { // lives as long as the process
			for range died {
				for r.reap() {
				}
			}
		}()
	})
	// Before it is started: a child that ends at once would be reaped as nobody's.
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err = syscall.ForkExec(path, args, attr) //nolint:gosec // the command that the user asked for
	if err != nil {
		return 0, nil, err
	}
	c := make(chan int, 1)
	r.known[pid] = c
	return pid, c, nil
}

// reap takes the status of one child that has ended, if there is one.
func (r *reaper) reap() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err == syscall.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.known[pid]; ok {
		delete(r.known, pid)
		c <- shellStatus(status)
	}
	return true
}

// isKnown reports whether a process was started on purpose and not ended.
func (r *reaper) isKnown(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.known[pid]
	return ok
}

func shellStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// A command is the process that was started, which leads a session and so a process
// group of its own.
type command struct {
	pid   int
	ended <-chan int

	path     string
	gate     *os.File // a byte lets it go
	complain *os.File // tells why it could not be run
}

// startCommand starts a process that becomes the command when it is let go, and that dies
// with the calling thread. Until then it runs Begin: so the watchdog knows its process
// before there is anything to watch.
func startCommand(stage []string, path string, args, env []string) (*command, error) {
	wait, gate, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	complain, tell, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	defer tell.Close()
	args = slices.Concat(stage, []string{path}, args)
	pid, ended, err := children.start(self, args, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2, wait.Fd(), tell.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return nil, errors.Join(err, gate.Close(), complain.Close())
	}
	return &command{pid, ended, path, gate, complain}, nil
}

// letGo has the process become the command, and returns why it could not.
func (c *command) letGo() error {
	_, err := c.gate.Write([]byte{1})
	if err = errors.Join(err, c.gate.Close()); err != nil {
		return err
	}
	var code [4]byte
	if _, err := io.ReadFull(c.complain, code[:]); err == nil {
		return &os.PathError{Op: "start", Path: c.path, Err: syscall.Errno(binary.NativeEndian.Uint32(code[:]))}
	}
	return c.complain.Close() // it was closed by the exec
}

// Begin is what runs until the command does, in its process: args are the executable and
// the command's arguments. It returns only where it cannot be run.
func Begin(args []string) int {
	const gate, complain = 3, 4
	// The command has no use for them, and that complain is closed tells the supervisor that it runs.
	unix.CloseOnExec(gate)
	unix.CloseOnExec(complain)
	for {
		n, err := unix.Read(gate, make([]byte, 1))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 {
			return 1 // nobody is there any more who wants it
		}
		break
	}
	err := syscall.Exec(args[0], args[1:], os.Environ()) //nolint:gosec // likewise
	errno, _ := errors.AsType[syscall.Errno](err)
	_, _ = unix.Write(complain, binary.NativeEndian.AppendUint32(nil, uint32(errno)))
	return 1
}

// signal hands a signal on: what a terminal would send to the whole group goes there.
func (c *command) signal(sig os.Signal) {
	s, ok := sig.(syscall.Signal)
	// The process ID of one that has ended may be another's by now.
	if !ok || !children.isKnown(c.pid) {
		return
	}
	pid := c.pid
	if s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH {
		pid = -pid
	}
	_ = syscall.Kill(pid, s) // it may have ended just now
}

// terminate asks the group to end. A member that is stopped goes on for that.
func (c *command) terminate() {
	if children.isKnown(c.pid) {
		_ = syscall.Kill(-c.pid, syscall.SIGTERM)
		_ = syscall.Kill(-c.pid, syscall.SIGCONT)
	}
}

// kill ends the group at once, and then all that has left it.
func (c *command) kill() {
	if children.isKnown(c.pid) {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
	c.killLeft()
}

// left returns what lives of all that the command started.
func (c *command) left() []int {
	return living(func(p proc, all map[int]proc) bool { return p.below(os.Getpid(), all) })
}

func (c *command) terminateLeft() {
	for _, pid := range c.left() {
		_ = syscall.Kill(pid, syscall.SIGTERM)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// killLeft kills until nothing is left, and reports whether that was reached.
func (c *command) killLeft() bool { return killAll(c.left) }

// killPatience bounds how long to wait for the kernel to end what was killed.
const killPatience = 2 * time.Second

func killAll(left func() []int) bool {
	for over := now() + killPatience; ; time.Sleep(leftBehindPoll) {
		// Again and again: one that is killed may have started another just before.
		pids := left()
		if len(pids) == 0 {
			return true
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if now() >= over {
			return false
		}
	}
}

// A proc is a process as /proc shows it.
type proc struct {
	pid, parent, session int
	dog                  bool // a watchdog
}

// below reports whether a process descends from another, and is neither a watchdog nor
// below one.
func (p proc) below(ancestor int, all map[int]proc) bool {
	for range all { // more steps would be a circle
		if p.dog {
			return false
		}
		if p.parent == ancestor {
			return true
		}
		next, ok := all[p.parent]
		if !ok {
			return false
		}
		p = next
	}
	return false
}

// living returns the processes that have not ended and that are wanted.
func living(wanted func(proc, map[int]proc) bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	all := map[int]proc{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			all[pid] = p
		}
	}
	var pids []int
	for pid, p := range all {
		if wanted(p, all) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// threadsField is where /proc/PID/stat has the number of threads, counted from the state.
const threadsField = 17

// readProc reads what is needed of /proc/PID/stat. It is false for a process that has
// ended.
func readProc(pid int) (proc, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return proc{}, false
	}
	_, rest, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(") ")) // names may hold anything
	fields := bytes.Fields(rest)                                                          // state, parent, group, session
	if !ok || len(fields) <= threadsField {
		return proc{}, false
	}
	// The state is that of the first thread, which may have ended before the others. Of a process that has
	// ended, no other thread is left.
	if s := fields[0][0]; s == 'X' || s == 'Z' && len(fields[threadsField]) == 1 && fields[threadsField][0] <= '1' {
		return proc{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	session, err2 := strconv.Atoi(string(fields[3]))
	if err1 != nil || err2 != nil {
		return proc{}, false
	}
	return proc{pid: pid, parent: parent, session: session, dog: isDog(pid)}, true
}
