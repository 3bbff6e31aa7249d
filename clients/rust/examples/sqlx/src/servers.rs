//! Servers of the example's own: hapax testserver ($HAPAX), and PostgreSQL in a fresh directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

pub struct Servers {
    hapax: Child,
    said: Vec<String>,
    postgres: Child,
    port: u16,
    dir: PathBuf,
}

pub fn start() -> Servers {
    let dir = std::env::temp_dir().join(format!("hapax-sqlx-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let script = dir.join("script.json");
    std::fs::write(&script, "{}").unwrap();
    let mut hapax = Command::new(std::env::var("HAPAX").expect("HAPAX, the path of a built hapax"));
    hapax.args(["testserver", "--http", "127.0.0.1:0", "--until-eof", "--script"]).arg(script);
    let mut hapax = hapax.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let said = lines(hapax.stdout.take().unwrap()).take_while(|line| line != "ready").collect();
    let (postgres, port) = postgres(&dir);
    Servers { hapax, said, postgres, port, dir }
}

fn lines(from: ChildStdout) -> impl Iterator<Item = String> {
    BufReader::new(from).lines().map(Result::unwrap)
}

fn postgres(dir: &std::path::Path) -> (Child, u16) {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL under /usr/lib/postgresql");
    let programs = versions.map(|v| v.unwrap().path().join("bin")).max().expect("a version of PostgreSQL");
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    // It refuses to run as root.
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if root {
        assert!(Command::new("chown").arg("-R").arg("postgres:postgres").arg(dir).status().unwrap().success());
    }
    let as_postgres = |program: &str| {
        let program = programs.join(program);
        if !root {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
        command
    };
    let mut initdb = as_postgres("initdb");
    initdb.arg("-D").arg(&data).args(["-A", "trust", "-U", "postgres", "--no-sync"]).current_dir("/");
    assert!(initdb.stdout(Stdio::null()).status().unwrap().success(), "initdb failed");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = as_postgres("postgres");
    server.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-c", "fsync=off", "-p"]).arg(port.to_string()).arg("-k").arg(dir);
    let mut server = server.current_dir("/").stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready to accept connections") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "PostgreSQL does not start");
    }
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink())); // it stops when nobody reads
    (server, port)
}

impl Servers {
    pub fn database(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn url(&self, name: &str) -> &str {
        self.said.iter().find_map(|line| line.strip_prefix(name)).unwrap().trim()
    }

    pub fn hapax(&self) -> String {
        self.url("server ").into()
    }

    /// How many stretches were taken.
    pub fn takes(&self) -> usize {
        let host = self.url("control ").trim_start_matches("http://");
        let mut c = TcpStream::connect(host).unwrap();
        write!(c, "GET /requests HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        c.read_to_string(&mut answer).unwrap();
        answer.matches("orders/take").count()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.hapax.stdin.take());
        self.hapax.wait().unwrap();
        // An immediate stop: connections are closed, and nobody needs the data.
        let _ = Command::new("kill").arg("-QUIT").arg(self.postgres.id().to_string()).status();
        self.postgres.wait().unwrap();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
