//! Takes numbers in eight threads of four processes, two of which fork amid it, and prints them: soak COUNT URL...

use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::time::Duration;

const WORKERS: usize = 8;

extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// Does something in a child, and returns its ID.
fn in_child(client: &hapax::Client, work: impl FnOnce()) -> i32 {
    // SAFETY: the child allocates, as glibc allows, and ends without anything of the parent's.
    match unsafe { fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                work();
                client.close();
            }));
            unsafe { _exit(done.is_err() as i32) }
        }
        pid => pid,
    }
}

fn wait(pid: i32) {
    let mut status = 0;
    // SAFETY: it is a child of this process, which nobody else waits for.
    assert_eq!(unsafe { waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "a child failed");
}

fn take(client: &hapax::Client, numbers: usize, mut forks: bool) {
    // SAFETY: standard output, which is never closed here; without the lock of std, which a fork could find held.
    let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(1) });
    let (tag, mut left, mut child) = (client.tag("orders"), numbers, None);
    while left > 0 {
        if forks && left <= numbers / 2 {
            let half = left / 2;
            child = Some(in_child(client, || take(client, half, false)));
            (forks, left) = (false, left - half);
        }
        let some: Vec<String> = (0..left.min(100)).map(|_| format!("{}\n", tag.next().unwrap())).collect();
        out.write_all(some.concat().as_bytes()).unwrap(); // short enough to be written at once
        left -= some.len();
    }
    if let Some(child) = child {
        wait(child);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let count: usize = args[1].parse().unwrap();
    let client = hapax::Client::with(hapax::Options { servers: args[2..].to_vec(), max_step: 2000, deadline: Duration::from_secs(120), ..hapax::Options::default() }).unwrap();
    take(&client, 1, false); // the parent has some in hand
    let children: Vec<i32> = (0..WORKERS / 2).map(|i| in_child(&client, || std::thread::scope(|scope| {
        for forks in [i < 2, false] {
            let client = &client;
            scope.spawn(move || take(client, count / WORKERS, forks));
        }
    }))).collect();
    children.into_iter().for_each(wait);
    take(&client, 1, false);
    client.close();
}
