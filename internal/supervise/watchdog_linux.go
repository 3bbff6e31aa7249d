package supervise

import (
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	self          = "/proc/self/exe" // also where the file was replaced meanwhile
	dogKilled     = 99               // status of a watchdog that had to kill
	dogStarts     = time.Minute      // how long one may take to start, on a machine that has much else to do
	dogReads      = 100 * time.Millisecond
	dogEnds       = time.Second
	orderBytes    = 16
	nobody        = 0  // an order's process while there is none
	dismissed     = -1 // the order to go
	ordersAtATime = 64
)

// dogs are the watchdogs among the children. They are not what the command started.
var dogs = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

func isDog(pid int) bool {
	dogs.Lock()
	defer dogs.Unlock()
	return dogs.pids[pid]
}

// A watchdog is the second process that holds the deadline, as the supervisor sees it.
// An order is the leader of the session to watch, and the deadline: 8 bytes each.
type watchdog struct {
	pid    int
	orders *os.File
	ended  chan struct{} // closed once status is set
	status int
}

// startWatchdog starts one and waits until it knows the leader and the deadline.
func startWatchdog(args []string, leader int, deadline time.Duration) (_ *watchdog, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	hear, tell, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	defer hear.Close()
	d := &watchdog{orders: write, ended: make(chan struct{})}
	dogs.Lock() // before anybody can take it for the command's
	var ended <-chan int
	d.pid, ended, err = children.start(self, args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{read.Fd(), tell.Fd(), 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	dogs.pids[d.pid] = err == nil
	dogs.Unlock()
	// Else this process would hold the pipe open, and a watchdog that dies would not be noticed.
	err = errors.Join(err, tell.Close())
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	go func() { // ends with the watchdog
		d.status = <-ended
		close(d.ended)
	}()
	_ = hear.SetReadDeadline(time.Now().Add(dogStarts))
	if d.guard(leader, deadline) {
		_, err = hear.Read(make([]byte, 1))
	}
	if err != nil {
		d.dismiss()
		return nil, errors.New("the watchdog process does not start")
	}
	return d, nil
}

// guard tells the watchdog the session's leader and the deadline. It is false for one
// that does not read.
func (d *watchdog) guard(leader int, deadline time.Duration) bool {
	order := binary.NativeEndian.AppendUint64(nil, uint64(leader))
	order = binary.NativeEndian.AppendUint64(order, uint64(deadline))
	// Briefly: a watchdog that is frozen must not keep the supervisor from its own deadline.
	_ = d.orders.SetWriteDeadline(time.Now().Add(dogReads))
	_, err := d.orders.Write(order)
	return err == nil
}

// dismiss ends the watchdog, and reports whether it had to kill.
func (d *watchdog) dismiss() bool {
	d.guard(dismissed, 0)
	_ = d.orders.Close()
	select {
	case <-d.ended:
	case <-time.After(dogEnds):
		_ = syscall.Kill(d.pid, syscall.SIGKILL)
		<-d.ended
	}
	dogs.Lock()
	delete(dogs.pids, d.pid)
	dogs.Unlock()
	return d.status == dogKilled
}

// Watch is the watchdog: it obeys the orders on standard input, says on standard output
// that it has understood the first, and returns the status to exit with.
func Watch() int {
	// Its orders and the end of the supervisor are all that it heeds.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP)
	// Else it would find itself below the supervisor, and kill itself before the command's processes.
	dogs.pids[os.Getpid()] = true
	d := duty{supervisor: os.Getppid(), leader: nobody}
	timer, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err == nil {
		err = unix.SetNonblock(0, true)
	}
	for told := false; err == nil; {
		_, err = unix.Poll([]unix.PollFd{{Fd: 0, Events: unix.POLLIN}, {Fd: int32(timer), Events: unix.POLLIN}}, -1)
		if errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		d.readOrders() // first: it may have been stopped, and orders wait
		switch {
		case d.dismissed:
			return 0
		case d.alone, d.deadline != 0 && now() >= d.deadline:
			return d.bite()
		}
		if err == nil && d.deadline != 0 {
			err = unix.TimerfdSettime(timer, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d.deadline))}, nil)
			if !told {
				_, _ = unix.Write(1, []byte{1})
				told = true
			}
		}
	}
	return d.bite() // it cannot watch
}

// A duty is what a watchdog knows.
type duty struct {
	supervisor int
	leader     int
	deadline   time.Duration
	dismissed  bool
	alone      bool   // the supervisor is gone
	part       []byte // of an order
}

// readOrders reads all orders that are there. The last one counts.
func (d *duty) readOrders() {
	buf := make([]byte, ordersAtATime*orderBytes)
	for {
		n, err := unix.Read(0, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil || n == 0:
			d.alone = true
			return
		}
		d.part = append(d.part, buf[:n]...)
		for ; len(d.part) >= orderBytes; d.part = d.part[orderBytes:] {
			d.leader = int(int64(binary.NativeEndian.Uint64(d.part)))
			d.deadline = time.Duration(binary.NativeEndian.Uint64(d.part[8:]))
			d.dismissed = d.dismissed || d.leader == dismissed
		}
	}
}

// bite kills the session that the command leads, and whatever else the supervisor has
// below it.
func (d *duty) bite() int {
	if d.leader <= nobody {
		return 0
	}
	_ = syscall.Kill(-d.leader, syscall.SIGKILL)
	killAll(func() []int {
		return living(func(p proc, all map[int]proc) bool {
			return p.session == d.leader || os.Getppid() == d.supervisor && p.below(d.supervisor, all)
		})
	})
	return dogKilled
}
